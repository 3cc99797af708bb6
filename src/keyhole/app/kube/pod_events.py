"""Writes refusals as events of the pod, for `kubectl describe pod`.

Attack: a hostile pod makes the agent flood the API server with refusals. The gateway reports each
kind of refusal once, and at most 200 a session. Here a pod gets a few events and then one a minute,
and all pods of the node share a rate (I9, I12). The audit log has every refusal.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lightkube import codecs
from msgspec import Struct

from keyhole.app.kube.resources import AWAY
from keyhole.model.text import visible
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from lightkube import AsyncClient

    from keyhole.app.kube.resources import PodIdentity

POD_BURST, POD_PER_SECOND = 5, 1 / 60
NODE_BURST, NODE_PER_SECOND = 20, 1.0
"""Events of one pod, and of all pods of a node: the number at once, and the rate a second."""

MAX_WAITING = 64
"""Events that wait for the API server; further ones are dropped."""

MAX_PODS = 1024
"""Pods whose rates are kept."""

MAX_MESSAGE = 512
"""Characters of an event's message; the API server accepts 1024."""

REASON = "KeyholeRefused"


class _PodRate(Struct):
    bucket: TokenBucket
    left_out: int = 0


class PodEvents:
    """Writes the events of one node's pods."""

    def __init__(self, client: AsyncClient, node: str) -> None:
        self._client = client
        self._node = node
        self._all = TokenBucket.full("events", NODE_PER_SECOND, _now(), NODE_BURST)
        self._pods: dict[str, _PodRate] = {}
        self._waiting: asyncio.Queue[tuple[PodIdentity, str]] = asyncio.Queue(MAX_WAITING)

    def refused(self, pod: PodIdentity, line: str) -> None:
        """Write an event, if the rates allow it."""
        rate = self._rate(pod.uid)
        now = _now()
        if not rate.bucket.take(now).allowed or not self._all.take(now).allowed:
            rate.left_out += 1
            return
        more = f" ({rate.left_out} more are in the audit log)" if rate.left_out else ""
        rate.left_out = 0
        try:
            self._waiting.put_nowait((pod, visible(line)[: MAX_MESSAGE - len(more)] + more))
        except asyncio.QueueFull:
            rate.left_out += 1

    async def write(self) -> None:
        """Send the events one after another; never returns."""
        while True:
            pod, message = await self._waiting.get()
            try:
                await self._client.create(codecs.from_dict(_event(pod, message, self._node)))
            except AWAY:
                continue  # nobody waits for it

    def _rate(self, uid: str) -> _PodRate:
        found = self._pods.pop(uid, None)
        if found is None:
            bucket = TokenBucket.full("events", POD_PER_SECOND, _now(), POD_BURST)
            found = _PodRate(bucket)
        self._pods[uid] = found  # the last used is last
        if len(self._pods) > MAX_PODS:
            self._pods.pop(next(iter(self._pods)))
        return found


def _now() -> float:
    return asyncio.get_running_loop().time()


def _event(pod: PodIdentity, message: str, node: str) -> dict[str, object]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {
            "name": f"{pod.name[:200]}.{secrets.token_hex(8)}", "namespace": pod.namespace,
        },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning", "reason": REASON, "message": message,
        "source": {"component": "keyhole", "host": node},
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
    }  # fmt: skip
