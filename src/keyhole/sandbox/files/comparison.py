"""Compares the files that the host may execute before and after a run (I11).

Called outside, around the run. It reads files that hostile code has just written: every walk and
all reading is bounded, no link is followed, and files that could not be compared are reported.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.redacted import redacted_repr
from keyhole.model.text import visible
from keyhole.sandbox.files.digests import Digests, FileStamp, digest_of, is_same
from keyhole.sandbox.files.executable_finder import (
    ExecutableEntry,
    ExecutableFinder,
    FindingFold,
    FindingGroup,
)
from keyhole.sandbox.files.mount_plan import ComparisonScope, MountKind
from keyhole.sandbox.files.paths import is_below, is_within
from keyhole.sandbox.files.tree_walk import DirectoryListing, TreeTooLarge, WalkBudget, walk_tree
from keyhole.sandbox.files.triggers import SEARCHED, git_data

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINES = 40
"""Findings that are listed; the others are counted."""
MAX_SIGHTS = 100_000
"""Entries that are compared; a large project with its packages has a few thousand."""
MAX_ALONE = 4
"""Changes in one directory that are reported one by one; more are reported in one line."""
_NAMED = 3
"""How many of those that line names."""


class SnapshotEntry(Struct, frozen=True):
    """One file that the host may execute: the reason, its group, and its content at the time."""

    why: str
    mark: FileStamp
    group: FindingGroup | None = None
    link: str = ""
    """The target of a link."""


class Snapshot(Struct, frozen=True):
    """All entries, by path."""

    sights: dict[str, SnapshotEntry]
    unseen: tuple[str, ...] = ()
    """Trees and directories that could not be searched."""
    scope: ComparisonScope = ComparisonScope(())
    """The trees that were to be searched."""

    __repr__ = redacted_repr("sights")

    def digests(self) -> dict[str, str]:
        """The digest of each entry, and of each group with all its entries."""
        texts: dict[str, list[str]] = defaultdict(list)
        for path, sight in sorted(self.sights.items()):
            texts[path].append(sight.mark.text)
            if sight.group is not None and sight.group.path != path:
                texts[sight.group.path].append(f"{path}\0{sight.mark.text}")
        return {path: digest_of("\0".join(parts)) for path, parts in texts.items()}

    def knows(self, path: str, why: str) -> bool:
        """Whether the path was searched, so that a missing entry is gone."""
        if why == SEARCHED:  # only for a shell that has it on its PATH
            return any(path == watched for watched, _ in self.scope.watched)
        return any(is_within(path, root) for root in self.scope.writable) and not any(
            is_within(path, each) for each in self.unseen
        )


class Finding(Struct, frozen=True):
    """A file that the host may execute and that appeared or changed."""

    path: str
    change: str
    """`new` or `changed`."""
    why: str
    detail: str = ""
    """The part of it that changed, if it has several."""
    before: str = ""
    """The digest from before; empty if it is new."""
    now: str = ""

    @property
    def line(self) -> str:
        """The line for the person, without control characters."""
        reasons = f"{self.detail}; {self.why}" if self.detail else self.why
        return f"{self.change}: {visible(self.path)} ({visible(reasons)})"


class Comparison(Struct, frozen=True):
    """All findings of a run, as far as it could be compared."""

    findings: tuple[Finding, ...] = ()
    uncompared: tuple[str, ...] = ()
    """Directories that were not searched, and files that could not be compared."""


def take_snapshot(
    scope: ComparisonScope, budget: WalkBudget | None = None, digests: Digests | None = None
) -> Snapshot:
    """Search the trees that the sandbox can write."""
    looking = _SnapshotBuilder(scope, digests or Digests())
    budget = budget or WalkBudget()
    for tree in scope.writable:
        if any(is_below(tree, other) for other in scope.writable):
            continue
        if not os.path.isdir(tree):
            where, name = os.path.split(tree)
            looking.look_at(DirectoryListing(where, files=[name]), where)
            continue
        looking.walk(tree, tree, budget)
    looking.walk_detours(budget)
    return Snapshot(looking.sights, tuple(looking.unseen), scope)


def compare_snapshots(before: Snapshot, after: Snapshot) -> Comparison:
    """The entries that appeared or changed: *files your host may execute*."""
    was, now = before.digests(), after.digests()
    alone: list[Finding] = []
    groups: dict[FindingGroup, list[Finding]] = defaultdict(list)
    unsure = [path for path in after.unseen if path not in before.unseen] or list(after.unseen)
    for path, sight in sorted(after.sights.items()):
        earlier = before.sights.get(path)
        same = is_same(earlier.mark, sight.mark) if earlier is not None else False
        if same is None:
            unsure.append(path)
        if same is not False:
            continue
        group = sight.group
        link = f"a link to {sight.link}" if sight.link else ""
        if group is not None and not is_within(path, group.path):
            link = f"by the link {group.path}"
        change = "changed" if earlier is not None else "new"
        finding = Finding(path, change, sight.why, link, was.get(path, ""), now[path])
        if group is None:
            alone.append(finding)
        else:
            groups[group].append(finding)
    found = {finding.path: finding for finding in alone}
    for group, changes in groups.items():
        path = group.path
        many = len(changes) > MAX_ALONE and group.fold is FindingFold.MANY
        if (
            group.fold is FindingFold.ALWAYS
            or many
            or (group.fold is FindingFold.NEW and path not in was)
        ):
            change = "changed" if path in was else "new"
            detail = "" if group.fold is FindingFold.NEW else _several(group, changes)
            found[path] = Finding(path, change, group.why, detail, was.get(path, ""), now[path])
        else:
            found |= {finding.path: finding for finding in changes}
    # Files that the host already trusts come first.
    ordered = sorted(found.values(), key=lambda finding: (finding.change == "new", finding.path))
    return Comparison(tuple(ordered), tuple(unsure))


def finding_lines(comparison: Comparison) -> tuple[str, ...]:
    """A line for each finding, and the number of further ones."""
    found = _bounded([finding.line for finding in comparison.findings])
    unsure = [f"not compared: {visible(path)}" for path in comparison.uncompared]
    return (*found, *_bounded(unsure))


def _bounded(texts: Sequence[str]) -> list[str]:
    more = len(texts) - MAX_LINES
    return [*texts[:MAX_LINES], *([f"and {more} more"] if more > 0 else [])]


def _several(group: FindingGroup, changes: list[Finding]) -> str:
    names = [finding.path.removeprefix(f"{group.path}/") for finding in changes]
    more = len(names) - _NAMED
    if more <= 0:
        return ", ".join(names)
    new = sum(finding.change == "new" for finding in changes)
    counted = f"{new} new, {len(changes) - new} changed" if new != len(changes) else f"{new} new"
    return f"{counted}: {', '.join(names[:_NAMED])} and {more} more"


class _SnapshotBuilder:
    """Collects the entries of one snapshot."""

    def __init__(self, scope: ComparisonScope, digests: Digests) -> None:
        self._roots = scope.writable
        self._finder = ExecutableFinder(scope.writable, scope.watched)
        self._digests = digests
        self.sights: dict[str, SnapshotEntry] = {}
        self.unseen: list[str] = []

    def walk(self, top: str, root: str, budget: WalkBudget, called: str = "") -> None:
        """Search a tree, or a directory that a link gives the name `called`."""
        try:
            for listing in walk_tree(top, budget):
                self.look_at(listing, root, called)
                called = ""
        except TreeTooLarge:
            self.unseen.append(top)

    def walk_detours(self, budget: WalkBudget) -> None:
        """Search directories that links give another name."""
        while self._finder.pending:
            detour = self._finder.pending.popleft()
            self._finder.enter(detour)
            self.walk(detour.path, detour.path, budget, detour.name)
        if self._finder.crowded:
            self.unseen = list(self._roots)

    def look_at(self, listing: DirectoryListing, root: str, called: str = "") -> None:
        """Search one directory."""
        where = listing.path
        if listing.closed:
            self.unseen.append(where)
            return
        for found in self._finder.look(listing, root, called):
            self._note(found)
        if root in self._roots:
            data = git_data(where, {*listing.files, *listing.dirs})
            listing.dirs[:] = [name for name in listing.dirs if name not in data]

    def _note(self, found: ExecutableEntry) -> None:
        if found.kind is MountKind.DIR and found.trail is None and found.group is None:
            return  # its entries come by themselves
        if len(self.sights) >= MAX_SIGHTS:
            self.unseen = list(self._roots)
            return
        links = found.trail.links if found.trail else ()
        link = links[0][1] if links else ""
        sight = SnapshotEntry(found.why, self._mark(found), found.group, link)
        self.sights.setdefault(found.path, sight)

    def _mark(self, found: ExecutableEntry) -> FileStamp:
        """The stamp of an entry. A link's has the whole way that it leads, and its target's content
        if that is in a tree which the sandbox can write."""
        trail = found.trail
        if trail is None:
            return (
                FileStamp("directory", "")
                if found.kind is MountKind.DIR
                else self._digests.file(found.path)
            )
        way = "\0".join(f"{step}\0{target}" for step, target in trail.links)
        if not any(is_within(trail.end, root) for root in self._roots):
            return FileStamp(f"link {way}", "")
        if found.kind is MountKind.DIR:
            return FileStamp(f"link {way}\0directory", "")
        end = self._digests.file(trail.end)
        content = f"link {way}\0{end.content}" if end.content else ""
        return FileStamp(content, f"link {way}\0{end.identity}", end.settled)
