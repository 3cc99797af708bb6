"""Plans an apply: which changes are chosen, which are held back, and the order of the steps. Pure.

Deny is the default: a change that the host may execute, that leads out of its tree, or that is
large is applied only by its own name; a conflict only if the person says so; a special file never.
The refs and the index of a repository belong together: a conflict in one holds all of them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.changes.entry import (
    Action,
    ApplyPlan,
    ApplyStep,
    ChangeKind,
    EntryKind,
    FileChange,
    HeldChange,
    HoldReason,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_UNNAMED = 1 << 30
"""Bytes of a file that is applied without being named: a sparse file may claim any size."""

_MODES = 0o777
"""Bits of a mode that are applied: never setuid, setgid or sticky."""

_LAST = ("packed-refs", "refs/", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "index", "logs/")
"""Entries of `.git` that name objects, so that they are written after these."""


class Selection(Struct, frozen=True):
    """The changes that a person chose."""

    named: tuple[str, ...] = ()
    """Absolute paths; none: every change."""
    replaces: bool = False
    """Whether a conflict that was named replaces the person's file."""

    def covers(self, change: FileChange) -> bool:
        """Whether the change is chosen, by itself or with a directory."""
        path = change.path
        return not self.named or any(path == n or path.startswith(f"{n}/") for n in self.named)

    def names(self, change: FileChange) -> bool:
        """Whether the change was named by itself, or with the group that it is shown in."""
        group = change.executed.group if change.executed else ""
        return change.path in self.named or (bool(group) and group in self.named)


def plan_apply(changes: Sequence[FileChange], selection: Selection) -> ApplyPlan:
    """The plan for these changes of one or more trees."""
    chosen: dict[str, FileChange] = {}
    held: list[HeldChange] = []
    by_path = {change.path: change for change in changes}
    for change in changes:
        if not selection.covers(change):
            continue
        reason = _held(change, selection)
        if reason is None:
            chosen[change.path] = change
        else:
            held.append(HeldChange(change, reason))
    # The directories that a chosen entry lies in come along, if they are new.
    for change in list(chosen.values()):
        for parent in _parents(change):
            above = by_path.get(parent)
            if above is not None and parent not in chosen and above.change is ChangeKind.NEW:
                chosen[parent] = above
    _hold_repositories(chosen, held, selection)
    _hold_blocked(chosen, held, by_path)
    _hold_emptied(chosen, held, by_path, selection)
    _leave_empty(chosen, held)
    ordered = sorted(chosen.values(), key=lambda change: change.path)
    return ApplyPlan(tuple(_steps(ordered)), tuple(ordered), tuple(held))


def _held(change: FileChange, selection: Selection) -> HoldReason | None:
    if change.kind is EntryKind.SPECIAL and change.change is not ChangeKind.REMOVED:
        return HoldReason.SPECIAL
    if change.unreadable:
        return HoldReason.UNREADABLE
    named = selection.names(change)
    # A directory is no conflict by itself: it is removed only when it is empty.
    if change.conflict and not (
        selection.replaces and selection.covers(change) and selection.named
    ):
        return HoldReason.CONFLICT
    if named:
        return None
    if change.executed is not None:
        return HoldReason.EXECUTED
    if change.change is ChangeKind.REMOVED:
        return None
    if change.leads_out:
        return HoldReason.LEADS_OUT
    return HoldReason.LARGE if change.size > MAX_UNNAMED else None


def _hold_repositories(
    chosen: dict[str, FileChange], held: list[HeldChange], selection: Selection
) -> None:
    """Hold back the refs and the index of a repository in which the person staged or committed
    something, too. Otherwise the sandbox's commit would be there with the person's index, which
    then undoes that commit at the next one."""
    conflicts = {
        _repository(each.change)
        for each in held
        if each.reason is HoldReason.CONFLICT and _names_objects(each.change)
    }
    for path, change in list(chosen.items()):
        together = _names_objects(change) and _repository(change) in conflicts
        if together and not selection.names(change):
            del chosen[path]
            held.append(HeldChange(change, HoldReason.REPOSITORY))


def _hold_emptied(
    chosen: dict[str, FileChange],
    held: list[HeldChange],
    by_path: dict[str, FileChange],
    selection: Selection,
) -> None:
    """Hold back removals from a directory that a link or file replaces, where that one is held
    back: otherwise the person would have an empty directory instead of either."""
    for path, change in list(chosen.items()):
        if change.change is not ChangeKind.REMOVED or selection.names(change):
            continue
        above = (by_path.get(parent) for parent in _parents(change))
        if any(
            a is not None
            and a.path not in chosen
            and a.was is EntryKind.DIRECTORY
            and a.kind is not EntryKind.DIRECTORY
            for a in above
        ):
            del chosen[path]
            held.append(HeldChange(change, HoldReason.BLOCKED))


def _hold_blocked(
    chosen: dict[str, FileChange], held: list[HeldChange], by_path: dict[str, FileChange]
) -> None:
    """Hold back entries of a directory that is not made, because something else is in its place;
    and files that would replace a directory which keeps an entry."""
    kept = {each.change.path for each in held}
    kept |= {path for path in by_path if path not in chosen}
    occupied = {parent for path in kept for parent in _parents(by_path[path])}
    for path, change in sorted(chosen.items()):
        above = (by_path.get(parent) for parent in _parents(change))
        blocked = change.change is not ChangeKind.REMOVED and any(
            a is not None and a.path not in chosen and a.kind is EntryKind.DIRECTORY for a in above
        )
        replaced = change.was is EntryKind.DIRECTORY and change.kind is not EntryKind.DIRECTORY
        if blocked or (replaced and path in occupied):
            del chosen[path]
            held.append(HeldChange(change, HoldReason.BLOCKED))


def _leave_empty(chosen: dict[str, FileChange], held: list[HeldChange]) -> None:
    """Make no new directory that would hold nothing, because all its entries are held back."""
    holding = {parent for each in held for parent in _parents(each.change)}
    used = {
        parent
        for change in chosen.values()
        if not _is_new_directory(change) or change.path not in holding
        for parent in _parents(change)
    }
    for path in holding - used:
        if path in chosen and _is_new_directory(chosen[path]):
            del chosen[path]


def _is_new_directory(change: FileChange) -> bool:
    return change.kind is EntryKind.DIRECTORY and change.change is ChangeKind.NEW


def _parents(change: FileChange) -> Iterable[str]:
    path = change.path
    while len(path := path.rpartition("/")[0]) > len(change.tree):
        yield path


def _steps(changes: Sequence[FileChange]) -> Iterable[ApplyStep]:
    """Remove files, then directories from below, make directories from above, then write."""
    removed = [c for c in changes if c.change is ChangeKind.REMOVED]
    others = [c for c in changes if c.change is not ChangeKind.REMOVED]
    directory = EntryKind.DIRECTORY
    for change in removed:
        if change.was is not directory:
            yield ApplyStep(Action.UNLINK, change.tree, change.name, change.stamp)
    for change in others:
        if change.kind is directory and change.was is not EntryKind.ABSENT:
            yield ApplyStep(Action.UNLINK, change.tree, change.name, change.stamp)
    gone = [c for c in changes if c.was is directory and _replaces_directory(c)]
    for change in reversed(gone):
        yield ApplyStep(Action.RMDIR, change.tree, change.name, change.stamp)
    for change in others:
        if change.kind is directory:
            yield ApplyStep(Action.MKDIR, change.tree, change.name, "", change.mode & _MODES)
    for change in sorted((c for c in others if c.kind is not directory), key=_order):
        before = "" if change.was is directory else change.stamp
        if change.kind is EntryKind.LINK:
            yield ApplyStep(Action.LINK, change.tree, change.name, before, target=change.target)
        else:
            yield ApplyStep(Action.WRITE, change.tree, change.name, before, change.mode & _MODES)


def _replaces_directory(change: FileChange) -> bool:
    return change.change is ChangeKind.REMOVED or change.kind is not EntryKind.DIRECTORY


def _order(change: FileChange) -> tuple[int, str]:
    """Git's objects first, its refs and index last: an interrupted apply leaves a repository that
    git can read."""
    _, found, rest = f"/{change.name}".rpartition("/.git/")
    if found and rest.startswith("objects/"):
        return (0, change.path)
    return (2 if _names_objects(change) else 1, change.path)


def _names_objects(change: FileChange) -> bool:
    """Whether it is one of git's files that name objects: a ref, the index."""
    _, found, rest = f"/{change.name}".rpartition("/.git/")
    return bool(found) and rest.startswith(_LAST)


def _repository(change: FileChange) -> str:
    return f"{change.tree}/{change.name}".rpartition("/.git/")[0]
