"""The launch: a command with its limits and mounts, which goes to the helper as JSON.

Made outside by `app`; read by `helper_main.py` (all of it) and, in part, by
`sandbox_init.py`. It holds no secret: the helper and everything after it is on the untrusted side
of the wall."""

from __future__ import annotations

import base64
import json

from msgspec import Struct, field

from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Entry,
    KeptTree,
    Mask,
    MountKind,
    SeedFile,
    Symlink,
    TextFile,
    Tmpfs,
    Volume,
)

STATUS_DESCRIPTOR = 3
FILTER_DESCRIPTOR = 4
ARGUMENTS_DESCRIPTOR = 5
INSIDE_DESCRIPTOR = 6
CONFIG_DESCRIPTOR = 7
COMMANDS_DESCRIPTOR = 8
RECORD_DESCRIPTOR = 9
"""The record of the first process, where a launch has one; bubblewrap writes and closes it."""
FIRST_SEED_DESCRIPTOR = 10
"""The first descriptor of the seeds. The lower ones are for bubblewrap and `sandbox_init.py`. Each
seed has one descriptor, which bubblewrap copies and closes. No other is open."""

MAX_SEEDS = 288
"""Files that a sandbox starts with and owns: settings of a few agents, one's instructions, and the
configs of repositories."""

STEPS = ("namespaces", "network", "capture", "files", "handed-over", "acknowledged", "identity")
"""The helper's set-up steps, in order; tests make it die after each of them."""

HALT = "halt:"
"""The prefix of a step's name at which the helper halts instead, so that a test can end the
gateway."""

REFUSED = "refused:"
"""The prefix of a call that the system is to refuse the helper, for tests."""

MEMORY_TREES = (("/tmp", 4 << 30), ("/dev/shm", 1 << 30))  # noqa: S108 - inside
"""Writable trees in memory that every sandbox has, and how many bytes each may hold."""


class ResourceLimits(Struct, frozen=True):
    """Resource limits of the sandbox (I9)."""

    processes: int
    memory: int
    open_files: int = 65536
    cpus: float = 0.0
    """Processors' worth of time; 0: not bounded."""


class ReviewView(Struct, frozen=True):
    """A writable tree of which the sandbox gets a view: what it changes goes to a layer."""

    tree: str
    layer: str = ""
    """The directory that holds the layer (`upper`, `work`). Without one the sandbox is not made."""


class Launch(Struct, frozen=True):
    """A command and the walls around it."""

    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    files: tuple[Entry, ...]
    bounds: ResourceLimits
    uid: int
    gid: int
    bwrap: str
    nft: str
    python: str
    interactive: bool = False
    maps_root: bool = False
    """Whether the project belongs to root and is shown as the sandbox's user (idmapped)."""
    image: str = ""
    """The image of its container; empty for bubblewrap."""
    lasting: bool = False
    """Whether it outlives the process that started it, so that others may attach to its
    terminal."""
    ports: str = ""
    """Its ports that are joined to the host's, as `empty_network.ports_text` writes them."""
    hostname: str = "keyhole"
    kept_bytes: int = 0
    """Bytes that its kept trees may hold together; 0: none is kept."""
    views: tuple[ReviewView, ...] = ()
    """The trees whose changes are held for review."""
    record: str = ""
    """The file in which its first process is recorded, see `first_process.py`; empty: none."""
    fault: str = field(default="")
    """For tests: steps after which the helper kills itself or halts, and simulated refusals."""

    def to_json(self) -> bytes:
        """The launch as JSON, for the helper; an entry of the mount plan is tagged with the name of
        its class."""
        table = _table(self)
        table["bounds"] = _table(self.bounds)
        table["views"] = [_table(view) for view in self.views]
        table["files"] = [{"is": type(e).__name__, **_table(e)} for e in self.files]
        return json.dumps(table, default=_in_base64).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> Launch:
        """The inverse of `to_json`."""
        table = json.loads(data)
        table["command"] = tuple(table["command"])
        table["files"] = tuple(_entry(e) for e in table["files"])
        table["views"] = tuple(ReviewView(**view) for view in table["views"])
        table["bounds"] = ResourceLimits(**table["bounds"])
        return cls(**table)


def refusals_of(fault: str) -> str:
    """The refusals among the faults: they are properties of the host, and so the same for every
    sandbox."""
    return ",".join(word for word in fault.split(",") if word.startswith(REFUSED))


def _table(value: Struct) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


_ENTRIES: dict[str, type[Entry]] = {
    e.__name__: e
    for e in (Bind, Mask, TextFile, BinaryFile, SeedFile, Symlink, Tmpfs, KeptTree, Volume)
}


def _in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _entry(table: dict[str, object]) -> Entry:
    made = _ENTRIES[str(table.pop("is"))]
    if "kind" in table:
        table["kind"] = MountKind(str(table["kind"]))
    if made is BinaryFile:
        table["content"] = base64.b64decode(str(table["content"]))
    return made(**table)  # type: ignore[arg-type]
