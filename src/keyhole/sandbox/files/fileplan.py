"""The file plan as values: what is mounted where, in order. Made by `planning.py`.

Read by the launcher. Targets and sources are canonical absolute paths without a link in them. A
bind takes the mounts below its source along (in a user namespace the kernel insists); those that
were not asked for are masked.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable


class Refused(Exception):
    """The run must not start; `reason` says why and what to do (exit 125)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Kind(enum.StrEnum):
    """What a bind or a mask lies on."""

    FILE = "file"
    DIR = "dir"


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or tree of the host."""

    source: str
    target: str
    kind: Kind
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """An empty, read-only file or directory over something that is not to be seen."""

    target: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Text:
    """A read-only file with this content."""

    target: str
    content: str
    mode: int = 0o444
    guards: bool = True
    """Whether something under it must stay covered; then a run ends when the cover is lost."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A read-only file with this content, which is no text; nothing under it is to be hidden."""

    target: str
    content: bytes
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class Seed:
    """A file in one of the trees in memory that the sandbox owns from then on: no mount, so that
    clients which rewrite their settings, or replace them by renaming, can."""

    target: str
    content: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link."""

    target: str
    to: str


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """An empty, writable directory in memory, of so many bytes at most."""

    target: str
    size: int
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Volume:
    """A writable directory that an engine keeps under a name, and that outlives the sandbox."""

    target: str
    name: str
    shared: bool = False
    """Whether other sandboxes may have it at the same time."""


Entry = Bind | Mask | Text | Blob | Seed | Symlink | Tmpfs | Volume


def mounted(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The targets that are mount points inside."""
    return tuple(e.target for e in entries if not isinstance(e, Symlink | Seed))


def guarding(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The mount points whose loss would show or open something: a run without them ends."""
    return mounted(e for e in entries if not _is_expendable(e))


def _is_expendable(entry: Entry) -> bool:
    return isinstance(entry, Blob) or (isinstance(entry, Text) and not entry.guards)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked through, before and after a run, for what the host may execute."""

    writable: tuple[str, ...]
    """Trees that the sandbox can write."""
    watched: tuple[tuple[str, str], ...] = ()
    """Directories all of whose content counts, each with why."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """All that the sandbox sees, in the order in which it must be mounted."""

    entries: tuple[Entry, ...]
    writable: tuple[str, ...]
    """The trees that the sandbox can write, for `refuse_inside`."""
    watched: tuple[tuple[str, str], ...] = ()
    """Directories all of whose content the host executes, each with why: git hooks outside of
    `.git` (core.hooksPath), and what is on the person's PATH."""
    notices: tuple[str, ...] = ()
    """Lines for the person, once."""

    @property
    def scope(self) -> Scope:
        """What is compared around the run."""
        return Scope(self.writable, self.watched)
