"""The pods of this node on disk, so that the next agent opens their doors again.

A small file for each pod: where its network and its volume are. The files are root's, and no pod
can reach them; which policy a pod has is asked of the API server each time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.resources import PodIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator


class PodRecord(Struct, frozen=True):
    """A pod with a door."""

    pod: PodIdentity
    network: Path
    volume: Path | None


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
            "volume": str(record.volume) if record.volume else "",
        }
        path = self._file(pod.uid)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(said), "utf-8")
        beside.replace(path)

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self._file(uid).unlink(missing_ok=True)

    def read(self) -> Iterator[PodRecord]:
        """The pods whose networks are still there; records of others are removed."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                said = json.loads(path.read_text("utf-8"))
                pod = PodIdentity(path.stem, said["namespace"], said["name"])
                network = Path(said["network"])
                volume = Path(said["volume"]) if said["volume"] else None
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            if network.exists():
                yield PodRecord(pod, network, volume)
            else:
                path.unlink(missing_ok=True)

    def _file(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"
