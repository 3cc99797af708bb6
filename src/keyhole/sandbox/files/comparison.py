"""What a run left behind that the host may execute: looked at before and after, and compared (I11).

Called outside, around the run. It reads what hostile code has just written: every walk and all
reading is bounded, no link is followed, and what could not be compared is said.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass, field
from keyhole.sandbox.files.digests import Digests, Mark, digest_of, is_same
from keyhole.sandbox.files.executed import Finder, Fold, Found, Group
from keyhole.sandbox.files.fileplan import Kind, Scope
from keyhole.sandbox.files.paths import is_below, is_within
from keyhole.sandbox.files.survey import Budget, Listing, TooLarge, walk
from keyhole.sandbox.files.triggers import GIT_DATA, SEARCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINES = 40
"""Findings that are named; the rest is counted."""
MAX_SIGHTS = 100_000
"""Things that are compared; a large project with its packages has a few thousand."""
MAX_ALONE = 4
"""Changes in one directory that are told one by one; more are told in one line."""
_NAMED = 3
"""Of those, how many that line names."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One thing that the host may execute: why, what it belongs to, and its content at the time."""

    why: str
    mark: Mark
    group: Group | None = None
    link: str = ""
    """What a link says."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of them, by path."""

    sights: dict[str, Sight] = field(repr=False)
    unseen: tuple[str, ...] = ()
    """Trees and directories that could not be looked through."""
    scope: Scope = Scope(())
    """What was to be looked through."""

    def digests(self) -> dict[str, str]:
        """Of each thing, and of each group with all that belongs to it."""
        texts: dict[str, list[str]] = defaultdict(list)
        for path, sight in sorted(self.sights.items()):
            texts[path].append(sight.mark.text)
            if sight.group is not None and sight.group.path != path:
                texts[sight.group.path].append(f"{path}\0{sight.mark.text}")
        return {path: digest_of("\0".join(parts)) for path, parts in texts.items()}

    def knows(self, path: str, why: str) -> bool:
        """Whether it was looked for, so that it is gone if it is not among the sights."""
        if why == SEARCHED:  # only for a shell that has it on its PATH
            return any(path == watched for watched, _ in self.scope.watched)
        return any(is_within(path, root) for root in self.scope.writable) and not any(
            is_within(path, each) for each in self.unseen
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the host may execute and that appeared or changed."""

    path: str
    change: str
    """`new` or `changed`."""
    why: str
    detail: str = ""
    """What of it, where it is more than one thing."""
    before: str = ""
    """The digest that it had; empty if it is new."""
    now: str = ""

    @property
    def line(self) -> str:
        """For the person; no byte in it is a control character."""
        reasons = f"{self.detail}; {self.why}" if self.detail else self.why
        return f"{self.change}: {visible(self.path)} ({visible(reasons)})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a run left behind, as far as it could be compared."""

    findings: tuple[Finding, ...] = ()
    uncompared: tuple[str, ...] = ()
    """Places that were not looked through, and files of which nobody can say."""


def snapshot(
    scope: Scope, budget: Budget | None = None, digests: Digests | None = None
) -> Snapshot:
    """Look through the trees that the sandbox can write."""
    looking = _Looking(scope, digests or Digests())
    budget = budget or Budget()
    for tree in scope.writable:
        if any(is_below(tree, other) for other in scope.writable):
            continue
        if not os.path.isdir(tree):
            where, name = os.path.split(tree)
            looking.look_at(Listing(where, files=[name]), where)
            continue
        looking.walk(tree, tree, budget)
    looking.walk_detours(budget)
    return Snapshot(looking.sights, tuple(looking.unseen), scope)


def compare(before: Snapshot, after: Snapshot) -> Comparison:
    """What appeared or changed: *files your host may execute*."""
    was, now = before.digests(), after.digests()
    alone: list[Finding] = []
    groups: dict[Group, list[Finding]] = defaultdict(list)
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
        many = len(changes) > MAX_ALONE and group.fold is Fold.MANY
        if group.fold is Fold.ALWAYS or many or (group.fold is Fold.NEW and path not in was):
            change = "changed" if path in was else "new"
            detail = "" if group.fold is Fold.NEW else _several(group, changes)
            found[path] = Finding(path, change, group.why, detail, was.get(path, ""), now[path])
        else:
            found |= {finding.path: finding for finding in changes}
    # What the host already trusts comes first.
    ordered = sorted(found.values(), key=lambda finding: (finding.change == "new", finding.path))
    return Comparison(tuple(ordered), tuple(unsure))


def lines(comparison: Comparison) -> tuple[str, ...]:
    """For the person: a line for each, and how many more there are."""
    found = _bounded([finding.line for finding in comparison.findings])
    unsure = [f"not compared: {visible(path)}" for path in comparison.uncompared]
    return (*found, *_bounded(unsure))


def _bounded(texts: Sequence[str]) -> list[str]:
    more = len(texts) - MAX_LINES
    return [*texts[:MAX_LINES], *([f"and {more} more"] if more > 0 else [])]


def _several(group: Group, changes: list[Finding]) -> str:
    names = [finding.path.removeprefix(f"{group.path}/") for finding in changes]
    more = len(names) - _NAMED
    if more <= 0:
        return ", ".join(names)
    new = sum(finding.change == "new" for finding in changes)
    counted = f"{new} new, {len(changes) - new} changed" if new != len(changes) else f"{new} new"
    return f"{counted}: {', '.join(names[:_NAMED])} and {more} more"


class _Looking:
    """Collects the sights of one snapshot."""

    def __init__(self, scope: Scope, digests: Digests) -> None:
        self._roots = scope.writable
        self._finder = Finder(scope.writable, scope.watched)
        self._digests = digests
        self.sights: dict[str, Sight] = {}
        self.unseen: list[str] = []

    def walk(self, top: str, root: str, budget: Budget, called: str = "") -> None:
        """Go through a tree, or a directory that a link gives the name `called`."""
        try:
            for listing in walk(top, budget):
                self.look_at(listing, root, called)
                called = ""
        except TooLarge:
            self.unseen.append(top)

    def walk_detours(self, budget: Budget) -> None:
        """Go through directories that links give another name."""
        while self._finder.pending:
            detour = self._finder.pending.popleft()
            self._finder.enter(detour)
            self.walk(detour.path, detour.path, budget, detour.name)
        if self._finder.crowded:
            self.unseen = list(self._roots)

    def look_at(self, listing: Listing, root: str, called: str = "") -> None:
        """One directory."""
        where = listing.path
        if listing.closed:
            self.unseen.append(where)
            return
        for found in self._finder.look(listing, root, called):
            self._note(found)
        if root in self._roots and (where.endswith("/.git") or "/.git/" in where):
            # Elsewhere such names may be anything: what looks like a bare repository is walked.
            listing.dirs[:] = [name for name in listing.dirs if name not in GIT_DATA]

    def _note(self, found: Found) -> None:
        if found.kind is Kind.DIR and found.trail is None and found.group is None:
            return  # its entries come by themselves
        if len(self.sights) >= MAX_SIGHTS:
            self.unseen = list(self._roots)
            return
        links = found.trail.links if found.trail else ()
        link = links[0][1] if links else ""
        sight = Sight(found.why, self._mark(found), found.group, link)
        self.sights.setdefault(found.path, sight)

    def _mark(self, found: Found) -> Mark:
        """A link's is the whole way that it leads, and what lies at the end if that is in a tree
        which the sandbox can write."""
        trail = found.trail
        if trail is None:
            return (
                Mark("directory", "") if found.kind is Kind.DIR else self._digests.file(found.path)
            )
        way = "\0".join(f"{step}\0{target}" for step, target in trail.links)
        if not any(is_within(trail.end, root) for root in self._roots):
            return Mark(f"link {way}", "")
        if found.kind is Kind.DIR:
            return Mark(f"link {way}\0directory", "")
        end = self._digests.file(trail.end)
        content = f"link {way}\0{end.content}" if end.content else ""
        return Mark(content, f"link {way}\0{end.identity}", end.settled)
