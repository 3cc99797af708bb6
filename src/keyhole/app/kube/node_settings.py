"""The node that an agent serves, as the gateway tells it. Imports nothing of the cluster's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from keyhole.app.setup.host_paths import HostPaths

OWN_NETWORK = Path("/proc/self/ns/net")


class NodeSettings(Struct, frozen=True):
    """The node that an agent serves."""

    node: str
    """Its name in the cluster."""
    kubelet: Path
    """The kubelet's directory."""
    cni: Path
    """The socket for the CNI plugin."""
    metrics: Path | None = None
    """The file for metrics, which another container serves."""
    network: Path = OWN_NETWORK
    """The node's own network, in which the kubelet runs."""

    module: ClassVar[str] = "keyhole.app.kube.node_agent"

    def written(self, places: HostPaths) -> bytes:
        """The first message to the agent."""
        own = {
            "node": self.node,
            "kubelet": self.kubelet,
            "cni": self.cni,
            "metrics": self.metrics or "",
            "network": self.network,
        }
        return json.dumps(
            {name: str(value) for name, value in own.items()} | places.told()
        ).encode()

    @classmethod
    def read(cls, data: bytes) -> tuple[NodeSettings, HostPaths]:
        """The inverse of `written`."""
        told = json.loads(data)
        metrics = Path(told["metrics"]) if told["metrics"] else None
        settings = cls(
            told["node"], Path(told["kubelet"]), Path(told["cni"]), metrics, Path(told["network"])
        )
        return settings, HostPaths.read(told)
