"""What is started, as one value that crosses to the helper as JSON.

Made outside by whoever composes a run; read by `enter.py` (all of it) and, in part, by `inside.py`.
It holds no secret: the helper and everything after it is on the untrusted side of the wall.
"""

from __future__ import annotations

import base64
import json

from keyhole.model.value import dataclass, field, field_names
from keyhole.sandbox.files.fileplan import (
    Bind,
    Blob,
    Entry,
    Kind,
    Mask,
    Seed,
    Symlink,
    Text,
    Tmpfs,
    Volume,
)

STATUS_DESCRIPTOR = 3
FILTER_DESCRIPTOR = 4
ARGUMENTS_DESCRIPTOR = 5
INSIDE_DESCRIPTOR = 6
CONFIG_DESCRIPTOR = 7
FIRST_SEED_DESCRIPTOR = 8
"""The descriptors that bubblewrap and `inside.py` find open; above them are those of the seeds, one
each, which bubblewrap copies and closes, and nothing else is."""

MAX_SEEDS = 32
"""Files that a sandbox begins with and owns; a few agents' settings."""

STEPS = ("namespaces", "network", "capture", "files", "handed-over", "acknowledged", "identity")
"""The helper's set-up steps, in order; tests make it die after each of them."""

HALT = "halt:"
"""Before a step's name: the helper halts there instead, so that a test can end the gateway."""

REFUSED = "refused:"
"""Before what the system is to refuse the helper, for tests."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Resource limits of the sandbox (I9)."""

    processes: int
    memory: int
    open_files: int = 65536
    cpus: float = 0.0
    """Processors' worth of time; 0: not bounded."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command and the walls around it."""

    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    files: tuple[Entry, ...]
    bounds: Bounds
    uid: int
    gid: int
    bwrap: str
    nft: str
    python: str
    interactive: bool = False
    maps_root: bool = False
    """Whether the project belongs to root and is shown as the sandbox's user (idmapped)."""
    image: str = ""
    """What its container is made from; empty for bubblewrap."""
    lasting: bool = False
    """Whether it outlives whoever started it: its terminal is there for any who attach."""
    hostname: str = "keyhole"
    fault: str = field(default="")
    """Steps after which the helper kills itself or halts, and refusals to be met; for tests."""

    def to_json(self) -> bytes:
        """As the helper reads it; an entry of the file plan is told by the name of its class."""
        table = _table(self)
        table["bounds"] = _table(self.bounds)
        table["files"] = [{"is": type(e).__name__, **_table(e)} for e in self.files]
        return json.dumps(table, default=_in_base64).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> Launch:
        """The inverse of `to_json`."""
        table = json.loads(data)
        table["command"] = tuple(table["command"])
        table["files"] = tuple(_entry(e) for e in table["files"])
        table["bounds"] = Bounds(**table["bounds"])
        return cls(**table)


def refusals_of(fault: str) -> str:
    """The refusals among the faults: what the host is like, and so the same for every sandbox."""
    return ",".join(word for word in fault.split(",") if word.startswith(REFUSED))


def _table(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in field_names(type(value))}


_ENTRIES: dict[str, type[Entry]] = {
    e.__name__: e for e in (Bind, Mask, Text, Blob, Seed, Symlink, Tmpfs, Volume)
}


def _in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _entry(table: dict[str, object]) -> Entry:
    made = _ENTRIES[str(table.pop("is"))]
    if "kind" in table:
        table["kind"] = Kind(str(table["kind"]))
    if made is Blob:
        table["content"] = base64.b64decode(str(table["content"]))
    return made(**table)  # type: ignore[arg-type]
