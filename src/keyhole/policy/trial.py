"""A push, tried: what its pack does to each ref, shown by content alone (facts: git protocol §6).

Run by the judge in its jail. Pure: what upstream must be asked comes out as a Question, and what it
said goes in as a pack whose every object was named by its content. Whoever pushes has read this, so
the rule is that nothing is believed and what is not shown is refused:

- a commit is *trusted* that a branch or tag of the repository reaches. That upstream has it proves
  nothing: forks share their objects with their parent, and anyone can fork;
- all other commits on the way from a command's `new` are *new*. Each must be shown, follow shown or
  trusted ones, and leave every denied path as it is in a parent that counts (`newcommits.py`);
- an update is a fast-forward if `old` is met on the way;
- a push may not say that history ends at a commit of its own: a server that takes shallow pushes
  would forget what is behind it, for everybody.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, replace
from keyhole.policy.ancestry import Ancestry
from keyhole.policy.newcommits import NewCommits
from keyhole.policy.push import Change
from keyhole.policy.pushedobjects import Objects
from keyhole.wire.gitobject import Kind
from keyhole.wire.httpfield import Malformed

if TYPE_CHECKING:
    from collections.abc import Generator

    from keyhole.model.glob import Glob
    from keyhole.policy.ancestry import Way
    from keyhole.wire.pack import Pack
    from keyhole.wire.receivepack import Command

MAX_QUESTIONS = 32
"""Questions in one trial; a common push takes two. Each is a request to upstream."""

MAX_WANTS = 8192
"""Objects in one question: 400 KiB of a request, and all branches of a large repository."""

MAX_HAVES = 256
"""Commits that a question says are here: what git itself names before it stops counting."""

MAX_PEELS = 8
"""Tags on tags; git makes one."""

_ALL_NAMED = 64
"""The newest commits that a question names each; of those behind them, ever fewer."""

_TAGS = "refs/tags/"


class Ask(enum.StrEnum):
    """What a question is for."""

    HISTORY = "history"
    """The commits that `wants` reach and `haves` do not."""
    OBJECTS = "objects"
    """These commits and trees. More of what they hold does no harm."""


@dataclass(frozen=True, slots=True)
class Question:
    """What upstream is to be asked. The answer is a pack."""

    ask: Ask
    wants: tuple[str, ...]
    haves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be tried: commands, and what is known of the repository and its policy."""

    commands: tuple[Command, ...]
    tips: frozenset[str]
    """All branches and tags of the repository, and what its annotated tags point at."""
    deny_paths: tuple[Glob, ...]
    object_format: str
    shallow: tuple[str, ...] = ()
    """Commits at which, as the push says, the history of who pushes ends."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one command."""

    ref: str
    change: Change
    denied_path: str | None
    why: str = ""
    unproven: bool = False
    """Something on the way was not shown, so it may hold anything: refuse, force or not."""


class Unjudged(Exception):
    """A push that was not tried to its end; it is refused. `why` is for whoever pushed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unheard(Unjudged):
    """It was not tried at all: its session has its whole share of judges."""


class Unsound(Unjudged):
    """The pack is malformed or beyond a bound."""


class Unanswered(Exception):
    """Upstream did not answer a question; the trial goes on without."""


class Trial:
    """One push. `run` asks, is sent a pack (or None for no answer), and returns the findings."""

    def __init__(self, case: Case, pack: Pack | None) -> None:
        self._case = case
        self._known = Objects(case.object_format, pack)
        self._tips = sorted(bytes.fromhex(tip) for tip in case.tips)
        self._ancestry = Ancestry(self._known.commit, self._tips)
        self._new = NewCommits(case.deny_paths, self._known, self._ancestry)
        self._shallow = [bytes.fromhex(oid) for oid in dict.fromkeys(case.shallow)]
        self._hopeless: set[bytes] = set()
        """What was asked for, and came or did not: no reason to ask again."""
        self._doubted: set[bytes] = set()
        """Commits that were asked about among others,"""
        self._doubted_alone: set[bytes] = set()
        """and alone, which is final."""
        self._questions = 0

    def run(self) -> Generator[Question, Pack | None, tuple[Finding, ...]]:
        """Try it. Raises Unsound."""
        try:
            starts = [self._start(command) for command in self._case.commands]
            yield from self._show([start for start in starts if isinstance(start, bytes)])
            # All proofs before the first question on ancestry: its answer shows commits, too.
            proofs = [self._proof(start) for start in starts]
            if ends := self._ends_of_its_own():
                why = f"it says that history ends at commit {_short(ends[0])}, which it brings"
                proofs = [Finding("", Change.UNKNOWN, None, why, unproven=True) for _ in starts]
            findings = []
            for command, start, proof in zip(self._case.commands, starts, proofs, strict=True):
                change = Change.DELETE if command.is_delete else Change.UNKNOWN
                if isinstance(start, bytes) and not proof.unproven:
                    change = yield from self._change(command, start)
                findings.append(replace(proof, ref=command.ref, change=change))
            return tuple(findings)
        except Malformed as error:
            raise Unsound(error.why) from None

    def _start(self, command: Command) -> bytes | str:
        """The commit that a ref is to name, through the pack's tags; or why there is none."""
        if command.is_delete:
            return ""
        oid = bytes.fromhex(command.new)
        if command.ref.startswith(_TAGS):
            for _ in range(MAX_PEELS):
                tag = self._known.tag(oid)
                if tag is None:
                    break
                oid = tag.target
                if tag.kind not in (Kind.COMMIT, Kind.TAG):
                    return "the tag is not of a commit"
        if self._known.is_other(oid):
            return "it names something else than a commit"
        return oid

    def _proof(self, start: bytes | str) -> Finding:
        """What is shown of a way by now."""
        if isinstance(start, str):
            return Finding("", Change.UNKNOWN, None, start, unproven=bool(start))
        way = self._ancestry.walk([start])
        for oid in way.new:
            if (path := self._new.touched(oid)) is not None:
                return Finding("", Change.UNKNOWN, path, f"in commit {_short(oid)}")
        why = ""
        if way.border:
            why = f"no branch or tag is known to reach commit {_short(way.border[-1])}"
        elif (unsettled := self._new.unsettled(way)) is not None:
            why = "its commits could not be compared with what the repository has"
            if self._new.is_disordered(unsettled):
                why = f"which parent of merge {_short(unsettled)} is the newer could not be learnt"
        return Finding("", Change.UNKNOWN, None, why, unproven=bool(why))

    # ── each new commit beside its parents ────────────────────────────────────────────────────

    def _show(self, starts: list[bytes]) -> Generator[Question, Pack | None, None]:
        """Try each new commit, and ask for what that takes."""
        self._new.compare(self._ancestry.walk(starts))
        yield from self._trust(starts)
        yield from self._complete(starts)
        # Whatever is trusted since then, commits that were compared may have another parent by it.
        while (yield from self._trust(starts)) and self._questions <= MAX_QUESTIONS:
            yield from self._complete(starts)
        self._new.compare(self._ancestry.walk(starts))

    def _complete(self, starts: list[bytes]) -> Generator[Question, Pack | None, None]:
        """See what is missing to compare the new commits."""
        while self._questions <= MAX_QUESTIONS:
            way = self._ancestry.walk(starts)
            self._new.compare(way)
            if way.border:
                return
            wants = [oid for oid in self._new.missing(way) if oid not in self._hopeless]
            # Commits, trees and files apart: git leaves out what is in another that is asked for.
            commits = [oid for oid in wants if self._ancestry.trusts(oid)]
            files = [oid for oid in self._new.files(way) if oid not in self._hopeless]
            wants = sorted(commits or wants or files)[:MAX_WANTS]
            if wants:
                yield from self._ask(Ask.OBJECTS, wants)
                # Nor does it send a tree apart that is within another one: it is asked for again.
                came = [oid for oid in wants if self._known.has(oid)]
                self._hopeless.update(came or wants)
            elif not (yield from self._put_in_order(way)):
                return

    def _put_in_order(self, way: Way) -> Generator[Question, Pack | None, bool]:
        """Ask which parent of a merge is the older one; whether there was such a merge."""
        doubt = self._new.doubt(way)
        if doubt is None:
            return False
        answered = False
        if len(doubt.ends) <= MAX_WANTS:
            haves = self._with_floor(doubt.sought)
            answered = yield from self._ask(Ask.HISTORY, list(doubt.ends), haves)
        self._new.close(doubt, answered=answered)
        return True

    def _with_floor(self, oid: bytes) -> list[bytes]:
        """A commit and what is trusted behind it: upstream may know only that, and stops there."""
        return list(dict.fromkeys([oid, *self._ancestry.walk([oid]).floor]))[:MAX_HAVES]

    # ── trust ─────────────────────────────────────────────────────────────────────────────────

    def _trust(self, starts: list[bytes]) -> Generator[Question, Pack | None, bool]:
        """Ask whether the repository reaches what is not sound by itself; whether that was new.

        Packs often bring commits along that a branch has (a client that knows none of the tips
        sends all history), and some of them changed a denied path in their time.
        """
        asked = False
        way = self._ancestry.walk(starts)
        touching = [oid for oid in way.new if self._new.touched(oid) is not None]
        doubtful = list(dict.fromkeys(way.border + self._ends_of_its_own() + touching))
        if not self._doubted.issuperset(doubtful):
            asked = True
            self._doubted.update(doubtful)
            # Trusted ones and some of the others, so that what is answered is no more than needed.
            haves = list(dict.fromkeys(doubtful + way.floor + _thinned(list(way.new))))[:MAX_HAVES]
            if len(haves) == 1:
                self._doubted_alone.update(haves)
            yield from self._descend(doubtful, haves)
        # Of two on one line, an answer names only the upper one. Asked alone, each is named if it
        # is reached at all; the one that was met last is likely the oldest, with others above it.
        while (last := self._last_in_doubt(starts)) and self._questions <= MAX_QUESTIONS:
            asked = True
            self._doubted_alone.update(last)
            yield from self._descend(last, self._with_floor(*last))
        return asked

    def _last_in_doubt(self, starts: list[bytes]) -> list[bytes]:
        """The last of what must be trusted and is not; nothing if that was asked about alone."""
        open_ends = self._ends_of_its_own() + self._ancestry.walk(starts).border
        return [oid for oid in open_ends[-1:] if oid not in self._doubted_alone]

    def _ends_of_its_own(self) -> list[bytes]:
        """Commits at which history is said to end, and which are the push's own.

        A shallow clone names what it ends at. If that is trusted, or nobody here has seen it, a
        server has no use for it: it cuts off what a ref comes to reach by the push, and nothing
        that one reaches already.
        """
        return [o for o in self._shallow if self._known.shows(o) and not self._ancestry.trusts(o)]

    def _descend(
        self, doubtful: list[bytes], haves: list[bytes]
    ) -> Generator[Question, Pack | None, None]:
        """Ask for history from the tips down to some commits: it names those that it reaches."""
        tips = [tip for tip in self._tips if tip not in haves]
        for first in range(0, len(tips), MAX_WANTS):
            if not all(map(self._ancestry.trusts, doubtful)):
                yield from self._ask(Ask.HISTORY, tips[first : first + MAX_WANTS], haves)

    # ── ancestry ──────────────────────────────────────────────────────────────────────────────

    def _change(self, command: Command, start: bytes) -> Generator[Question, Pack | None, Change]:
        """How a command moves its ref."""
        if command.is_create:
            return Change.CREATE
        if command.ref.startswith(_TAGS):
            return Change.FORCE  # a tag that moves, whereto does not matter
        old = bytes.fromhex(command.old)
        ends = self._ancestry.ends(start, old)
        if ends:
            wants = ends[:MAX_WANTS]
            if len(wants) < len(ends) or not (yield from self._ask(Ask.HISTORY, wants, [old])):
                return Change.UNKNOWN
            # The last commit before `old` cannot be reached from it, so it would be in the answer.
            ends = self._ancestry.ends(start, old)
        return Change.FAST_FORWARD if ends is None else Change.FORCE

    def _ask(
        self, ask: Ask, wants: list[bytes], haves: list[bytes] | None = None
    ) -> Generator[Question, Pack | None, bool]:
        """Put one question, unless there were too many; whether it was answered."""
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            return False
        named = (tuple(oid.hex() for oid in oids) for oids in (wants, haves or ()))
        answer = yield Question(ask, *named)
        if answer is not None:
            self._known.add(answer)
            self._ancestry.spread()
        return answer is not None


def _thinned(commits: list[bytes]) -> list[bytes]:
    """The newest of them, and behind these ever fewer: one that is known upstream is near."""
    chosen, at, gap = commits[:_ALL_NAMED], _ALL_NAMED, 1
    while at < len(commits):
        chosen.append(commits[at])
        gap += 1 + gap // 4
        at += gap
    return chosen


def _short(oid: bytes) -> str:
    return oid.hex()[:12]
