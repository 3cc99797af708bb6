"""The node that an agent serves, as the gateway tells it. Imports nothing of the cluster's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from keyhole.app.setup.host_paths import HostPaths


class NodeSettings(Struct, frozen=True):
    """The node that an agent serves."""

    node: str
    """Its name in the cluster."""
    kubelet: Path
    """The kubelet's directory."""
    cni: Path
    """The socket for the CNI plugin."""

    module: ClassVar[str] = "keyhole.app.kube.node_agent"

    def written(self, places: HostPaths) -> bytes:
        """The message to the agent, which is sent first and once."""
        own = {"node": self.node, "kubelet": self.kubelet, "cni": self.cni}
        where = {name: getattr(places, name) for name in ("home", "config", "state", "runtime")}
        return json.dumps({name: str(value) for name, value in (own | where).items()}).encode()

    @classmethod
    def read(cls, data: bytes) -> tuple[NodeSettings, HostPaths]:
        """The inverse of `written`."""
        told = json.loads(data)
        places = HostPaths(*(Path(told[name]) for name in ("home", "config", "state", "runtime")))
        return cls(told["node"], Path(told["kubelet"]), Path(told["cni"])), places
