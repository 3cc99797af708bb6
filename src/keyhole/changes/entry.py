"""Values of this room: what a layer changes, what holds a change back, and what an apply does.
Pure."""

from __future__ import annotations

import enum

from msgspec import Struct


class EntryKind(enum.StrEnum):
    """The kinds of entries at a path."""

    ABSENT = "absent"
    FILE = "file"
    LINK = "link"
    DIRECTORY = "directory"
    SPECIAL = "special"
    """A pipe, a socket, a device; or a directory that is too deep to be read."""


class ChangeKind(enum.StrEnum):
    """The ways in which an entry differs."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"


class HoldReason(enum.StrEnum):
    """Why a change is not applied by itself."""

    CONFLICT = "conflict"
    REPOSITORY = "repository"
    """It belongs to a ref or an index that is in conflict."""
    EXECUTED = "host-may-execute"
    LEADS_OUT = "leads-out"
    SPECIAL = "special"
    LARGE = "large"
    UNREADABLE = "unreadable"
    BLOCKED = "blocked"


class ExecutedBy(Struct, frozen=True):
    """Why the host may execute a file, and the directory that a person may name instead of it."""

    why: str
    group: str = ""


class FileChange(Struct, frozen=True):
    """One entry that differs between the person's tree and the view."""

    tree: str
    """The tree's absolute path on the host."""
    name: str
    """The path in the tree."""
    change: ChangeKind
    kind: EntryKind
    """The kind of the new entry, or of the removed one."""
    was: EntryKind
    """The kind of the entry in the person's tree."""
    size: int = 0
    mode: int = 0
    target: str = ""
    """The target of a new link."""
    stamp: str = ""
    """The stamp of the entry in the person's tree, now."""
    conflict: bool = False
    """Whether the person's entry changed since the sandbox began to work on it."""
    unreadable: bool = False
    executed: ExecutedBy | None = None

    @property
    def path(self) -> str:
        """The absolute path on the host."""
        return f"{self.tree}/{self.name}"

    @property
    def leads_out(self) -> bool:
        """Whether it is a link to something outside of its tree."""
        return self.kind is EntryKind.LINK and leads_out(self.name, self.target)


def leads_out(name: str, target: str) -> bool:
    """Whether a link of this path, relative to its tree, has a target outside of the tree.

    Judged by the names alone: a target that goes through another link is judged when that link is.
    Attack: `d/up -> ..` is in the tree, and so seems `d/up/../file`, which lies beside the tree. So
    a target goes up before it names anything, or it counts as one that leads out.
    """
    if target.startswith("/"):
        return True
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return up > name.count("/") or ".." in parts[up:]


class HeldChange(Struct, frozen=True):
    """A change that was not applied, and why."""

    change: FileChange
    reason: HoldReason


class Action(enum.StrEnum):
    """The kinds of steps of an apply."""

    UNLINK = "unlink"
    RMDIR = "rmdir"
    MKDIR = "mkdir"
    WRITE = "write"
    LINK = "link"


class ApplyStep(Struct, frozen=True):
    """One step, which can be repeated and undone."""

    action: Action
    tree: str
    name: str
    before: str = ""
    """The stamp that the entry must still have; empty: nothing may be there."""
    mode: int = 0
    target: str = ""

    @property
    def path(self) -> str:
        """The absolute path on the host."""
        return f"{self.tree}/{self.name}"


class ApplyPlan(Struct, frozen=True):
    """The steps of an apply in their order, and the changes that are held back."""

    steps: tuple[ApplyStep, ...] = ()
    chosen: tuple[FileChange, ...] = ()
    held: tuple[HeldChange, ...] = ()
