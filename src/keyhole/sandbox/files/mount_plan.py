"""The mount plan as values, in mount order. Made by `mount_planning.py`.

Read by the launcher. Targets and sources are canonical absolute paths without a link in them. A
bind includes the mounts below its source (in a user namespace the kernel insists on it); those that
were not asked for are masked.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


class MountKind(enum.StrEnum):
    """The kind of a bind's or mask's target."""

    FILE = "file"
    DIR = "dir"


class Bind(Struct, frozen=True):
    """A file or tree of the host."""

    source: str
    target: str
    kind: MountKind
    writable: bool = False


class Mask(Struct, frozen=True):
    """An empty, read-only file or directory over something that must not be seen."""

    target: str
    kind: MountKind


class TextFile(Struct, frozen=True):
    """A read-only file with this content."""

    target: str
    content: str
    mode: int = 0o444
    guards: bool = True
    """Whether it hides something that must stay covered; then a run ends when the cover is lost."""
    own_copy: str = ""
    """The path of a copy that the sandbox can write, in a tree in memory. The target is a link to
    it, if this system can mount a link; else the target is the read-only file."""


class BinaryFile(Struct, frozen=True):
    """A read-only file with this content, in bytes. It hides nothing that must stay covered."""

    target: str
    content: bytes
    mode: int = 0o444


class SeedFile(Struct, frozen=True):
    """A file in one of the trees in memory, which the sandbox owns. It is not a mount, so that
    clients can rewrite their settings, or replace them by renaming."""

    target: str
    content: str
    mode: int = 0o600


def entry_bytes(entry: TextFile | BinaryFile | SeedFile) -> bytes:
    """The content of a file as it is written. A text may hold paths that are not UTF-8."""
    content = entry.content
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")


class Symlink(Struct, frozen=True):
    """A symbolic link."""

    target: str
    to: str


class Tmpfs(Struct, frozen=True):
    """An empty, writable directory in memory, with a limit in bytes."""

    target: str
    size: int
    mode: int = 0o755


class KeptTree(Struct, frozen=True):
    """A writable directory of Keyhole's own, which earlier runs of untrusted code have filled.

    No path is resolved in it: the helper makes and mounts everything below it by descriptor."""

    source: str
    target: str


class Volume(Struct, frozen=True):
    """A writable directory that an engine keeps under a name, and that outlives the sandbox."""

    target: str
    name: str
    shared: bool = False
    """Whether other sandboxes may have it at the same time."""


Entry = Bind | Mask | TextFile | BinaryFile | SeedFile | Symlink | Tmpfs | KeptTree | Volume


def mount_targets(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The targets that are mount points inside."""
    return tuple(e.target for e in entries if not isinstance(e, Symlink | SeedFile))


def guarding_targets(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Mount points that hide or protect something: a run that loses one of them ends."""
    return mount_targets(e for e in entries if not _is_expendable(e))


def _is_expendable(entry: Entry) -> bool:
    return isinstance(entry, BinaryFile) or (isinstance(entry, TextFile) and not entry.guards)


def kept_sources(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The directories of kept trees on the host."""
    return tuple(e.source for e in entries if isinstance(e, KeptTree))


class ComparisonScope(Struct, frozen=True):
    """The trees that are searched, before and after a run, for files that the host may execute."""

    writable: tuple[str, ...]
    """Trees that the sandbox can write."""
    watched: tuple[tuple[str, str], ...] = ()
    """Directories whose whole content counts, each with the reason."""


class MountPlan(Struct, frozen=True):
    """Everything that the sandbox sees, in mount order."""

    entries: tuple[Entry, ...]
    writable: tuple[str, ...]
    """The trees that the sandbox can write, for `refuse_writable_programs`."""
    watched: tuple[tuple[str, str], ...] = ()
    """Directories whose whole content the host executes, each with the reason: git hooks outside of
    `.git` (core.hooksPath), and directories on the user's PATH."""
    notices: tuple[str, ...] = ()
    """Lines for the person, printed once."""
    reviewed: tuple[str, ...] = ()
    """The outermost writable trees, if their changes are held for review."""

    @property
    def scope(self) -> ComparisonScope:
        """The trees that are compared before and after the run."""
        return ComparisonScope(self.writable, self.watched)
