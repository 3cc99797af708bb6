"""The reports of an agent: metrics for Prometheus, and a KeyholeNode for the API server.

The agent writes metrics to a file, and another container serves them. So this process, which enters
pods' networks, reads no request of a metrics client. Labels come from a bounded set: no pod can add
a series (I9).
"""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import TYPE_CHECKING, Any

from lightkube import codecs
from lightkube.resources.core_v1 import Node

from keyhole import __version__
from keyhole.app.kube.resources import AWAY, GROUP, VERSION
from keyhole.control.client import ControlFailed
from keyhole.control.prometheus import Family, Sample, exposition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightkube import AsyncClient

    from keyhole.app.kube.cluster_view import ClusterView
    from keyhole.app.kube.pod_states import PodStates
    from keyhole.control.client import ControlClient

LOOK_SECONDS = 1.0
"""Seconds between two checks whether a pod's state has changed."""
METRICS_SECONDS = 10.0
"""Seconds between two writes of the metrics."""
HEARD_SECONDS = 60.0
"""Seconds between two reports of a node on which nothing has changed."""


class NodeReport:
    """The reports of one agent."""

    def __init__(
        self, node: str, client: AsyncClient, states: PodStates, say: Callable[[str], None]
    ) -> None:
        self._node = node
        self._client = client
        self._states = states
        self._say = say
        self._uid = ""

    async def keep(self) -> None:
        """Keep the KeyholeNode of this node current; never returns."""
        told, at = -1, 0.0
        while True:
            now = time.monotonic()
            if told != self._states.version or now - at >= HEARD_SECONDS:
                told, at = self._states.version, now
                try:
                    await self._tell()
                except AWAY as error:
                    self._say(f"the KeyholeNode {self._node} was not written: {error!r}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self) -> None:
        if not self._uid:
            found = await self._client.get(Node, self._node)
            self._uid = (found.metadata.uid if found.metadata else None) or ""
        await self._client.apply(codecs.from_dict(self._resource()), force=True)

    def _resource(self) -> dict[str, Any]:
        """Make the Node its owner, so that it is deleted with the Node."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._uid}
        pods = [
            {
                "namespace": each.pod.namespace,
                "name": each.pod.name,
                "policy": each.policy,
                "door": each.state.value,
                "why": each.why,
            }
            for each in self._states.listed()
        ]
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "KeyholeNode",
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "status": {
                "version": __version__,
                "heard": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "doors": self._states.counts(),
                "pods": pods,
            },
        }


async def keep_metrics(
    file: Path, client: ControlClient, view: ClusterView, states: PodStates
) -> None:
    """Write the gateway's metrics and the node's own into a file; never returns."""
    while True:
        try:
            of_gateway = await asyncio.to_thread(client.metrics)
        except ControlFailed:
            of_gateway = ""
        own = await asyncio.to_thread(exposition, _families(view, states))
        beside = file.with_name(f".{file.name}.new")
        beside.write_bytes(of_gateway.encode("utf-8") + own)
        beside.chmod(0o644)
        beside.replace(file)
        await asyncio.sleep(METRICS_SECONDS)


def _families(view: ClusterView, states: PodStates) -> list[Family]:
    doors = [Sample(count, (("door", door),)) for door, count in states.counts().items()]
    valid, faulty = view.counted()
    return [
        Family("keyhole_pods", "gauge", "Pods that policies select, by their doors.", doors),
        Family(
            "keyhole_policies",
            "gauge",
            "KeyholePolicies of the cluster, by whether they are valid.",
            [Sample(valid, (("valid", "true"),)), Sample(faulty, (("valid", "false"),))],
        ),
        Family(
            "keyhole_api_server_up",
            "gauge",
            "Whether the agent follows the policies now.",
            [Sample(int(view.following))],
        ),
    ]
