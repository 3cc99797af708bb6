"""The pods of this node on disk, so that the next agent opens their doors again.

A small file for each pod: where its network, its interfaces and its volume are. The files are
root's, and no pod can reach them; which policy a pod has is asked of the API server each time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.resources import PodIdentity
from keyhole.sandbox.pods.away_network import DIRECTORY, drop_network

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_NETWORK = Path(DIRECTORY, "keyhole-none")
"""In the record of a pod without a network; nothing has this name."""


class PodRecord(Struct, frozen=True):
    """A pod with a door."""

    pod: PodIdentity
    network: Path
    away: Path
    """The network in which its interfaces are."""
    addresses: tuple[str, ...] = ()
    """Its addresses in the cluster."""
    volume: Path | None = None
    sandbox: str = ""
    """Its Sandbox of agent-sandbox, if it has a door only while a SandboxClaim has that."""
    claim: str = ""
    """The uid of that claim. A pod never changes it: one that ran for another is not clean."""

    @property
    def has_network(self) -> bool:
        """Whether its network is still there."""
        return self.network.exists()

    @property
    def has_volume(self) -> bool:
        """Whether the kubelet has not yet taken its volume away."""
        return self.volume is not None and os.path.ismount(self.volume)


class PodRecords:
    """The directory with a file for each pod."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, record: PodRecord) -> None:
        """A pod has got its door."""
        pod = record.pod
        said = {
            "namespace": pod.namespace,
            "name": pod.name,
            "network": str(record.network),
            "away": str(record.away),
            "addresses": list(record.addresses),
            "volume": str(record.volume) if record.volume else "",
            "sandbox": record.sandbox,
            "claim": record.claim,
        }
        path = self._file(pod.uid)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(said), "utf-8")
        beside.replace(path)

    def write_volume(self, pod: PodIdentity, volume: Path) -> None:
        """A pod has got its volume, and no network yet; a record that it has already stays."""
        if not self._file(pod.uid).exists():
            self.write(PodRecord(pod, NO_NETWORK, NO_NETWORK, volume=volume))

    def claimed(self, uid: str) -> tuple[str, str]:
        """The Sandbox and the claim in a pod's record, which outlives its network."""
        try:
            said = json.loads(self._file(uid).read_text("utf-8"))
            return str(said["sandbox"]), str(said["claim"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ""

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self._file(uid).unlink(missing_ok=True)

    def read(self) -> Iterator[PodRecord]:
        """All pods that have a record. One may have neither network nor volume: its node was
        started again, or the pod ended while no agent was there."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                said = json.loads(path.read_text("utf-8"))
                pod = PodIdentity(path.stem, said["namespace"], said["name"])
                network, away = Path(said["network"]), Path(said["away"])
                addresses = tuple(map(str, said["addresses"]))
                volume = Path(said["volume"]) if said["volume"] else None
                sandbox, claim = str(said["sandbox"]), str(said["claim"])
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            record = PodRecord(pod, network, away, addresses, volume, sandbox, claim)
            if not record.has_network:
                drop_network(str(away))
            yield record

    def _file(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"
