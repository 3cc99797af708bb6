"""The trial of a push: what its pack does to each ref, proven by content alone.

Run by the confined judge. Pure: a question for upstream comes out as a UpstreamQuestion, and the
response goes in as a pack whose objects are named by their content. An attacker has read this code,
so the rule is to believe no claim and to refuse anything that is not shown:

- a commit is *trusted* that a branch or tag of the repository reaches. That upstream has it proves
  nothing: forks share their objects with their parent, and anyone can fork;
- all other commits on the way from a command's `new` are *new*. Each must be shown, follow shown or
  trusted ones, and leave every denied path as it is in a parent that counts (`new_commits.py`);
- an update is a fast-forward if `old` is met on the way;
- a push may not say that history ends at a commit of its own: a server that takes shallow pushes
  would forget what is behind it, for everybody.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import KeyholeError
from keyhole.policy.ancestry import Ancestry
from keyhole.policy.new_commits import NewCommits
from keyhole.policy.push import RefChange
from keyhole.policy.pushed_objects import PushedObjects
from keyhole.wire.git_object import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Generator

    from keyhole.model.glob import Glob
    from keyhole.policy.ancestry import CommitPath
    from keyhole.wire.pack import Pack
    from keyhole.wire.receive_pack import RefCommand

MAX_QUESTIONS = 32
"""Questions in one trial; a common push takes two. Each is a request to upstream."""

MAX_WANTS = 8192
"""Objects in one question: 400 KiB of a request, and all branches of a large repository."""

MAX_HAVES = 256
"""Commits that a question names as present: as many as git itself names."""

MAX_PEELS = 8
"""Depth of tags that point at tags; git makes one."""

_ALL_NAMED = 64
"""The number of newest commits that a question names one by one; of older ones it names ever
fewer."""

_TAGS = "refs/tags/"


class QuestionPurpose(enum.StrEnum):
    """The purpose of a question."""

    HISTORY = "history"
    """The commits that `wants` reach and `haves` do not."""
    OBJECTS = "objects"
    """These commits and trees. The answer may hold more."""


class UpstreamQuestion(Struct, frozen=True):
    """A question for upstream. The answer is a pack."""

    ask: QuestionPurpose
    wants: tuple[str, ...]
    haves: tuple[str, ...] = ()


class PushCase(Struct, frozen=True):
    """The input of a trial: commands, and facts about the repository and its policy."""

    commands: tuple[RefCommand, ...]
    tips: frozenset[str]
    """All branches and tags of the repository, and what its annotated tags point at."""
    deny_paths: tuple[Glob, ...]
    object_format: str
    shallow: tuple[str, ...] = ()
    """Commits at which, as the push claims, the pusher's history ends."""


class PushFinding(Struct, frozen=True):
    """The result for one command."""

    ref: str
    change: RefChange
    denied_path: str | None
    why: str = ""
    unproven: bool = False
    """Whether something on the way was not shown. It may hold anything, so the push is refused,
    also under `force`."""


UNJUDGED = Decision(reason=Reason.PUSH_UNJUDGED)


class PushUnjudged(KeyholeError):
    """A trial that could not be finished; the push is refused. The message is for the pusher."""

    def __init__(self, message: str, decision: Decision = UNJUDGED) -> None:
        super().__init__(message, reason=decision.reason)
        self.decision = decision


class PushTrial:
    """The trial of one push. `run` yields questions, is sent a pack for each (or None), and returns
    the findings."""

    def __init__(self, case: PushCase, pack: Pack | None) -> None:
        self._case = case
        self._known = PushedObjects(case.object_format, pack)
        self._tips = sorted(bytes.fromhex(tip) for tip in case.tips)
        self._ancestry = Ancestry(self._known.commit, self._tips)
        self._new = NewCommits(case.deny_paths, self._known, self._ancestry)
        self._shallow = [bytes.fromhex(oid) for oid in dict.fromkeys(case.shallow)]
        self._hopeless: set[bytes] = set()
        """Objects that were requested already: requesting them again is useless."""
        self._doubted: set[bytes] = set()
        """Commits that were asked about among others,"""
        self._doubted_alone: set[bytes] = set()
        """and alone, which is final."""
        self._questions = 0

    def run(self) -> Generator[UpstreamQuestion, Pack | None, tuple[PushFinding, ...]]:
        """Try it. Raises Malformed for a pack that is malformed or beyond a bound."""
        starts = [self._start(command) for command in self._case.commands]
        yield from self._show([start for start in starts if isinstance(start, bytes)])
        # All proofs come before the first question on ancestry: an answer to them shows commits,
        # too.
        proofs = [self._proof(start) for start in starts]
        if ends := self._ends_of_its_own():
            why = f"it says that history ends at commit {_short(ends[0])}, which it brings"
            proofs = [PushFinding("", RefChange.UNKNOWN, None, why, unproven=True) for _ in starts]
        findings = []
        for command, start, proof in zip(self._case.commands, starts, proofs, strict=True):
            change = RefChange.DELETE if command.is_delete else RefChange.UNKNOWN
            if isinstance(start, bytes) and not proof.unproven:
                change = yield from self._change(command, start)
            findings.append(replace(proof, ref=command.ref, change=change))
        return tuple(findings)

    def _start(self, command: RefCommand) -> bytes | str:
        """The commit that a ref is to name, through the pack's tags; or the reason why there is
        none."""
        if command.is_delete:
            return ""
        oid = bytes.fromhex(command.new)
        if command.ref.startswith(_TAGS):
            for _ in range(MAX_PEELS):
                tag = self._known.tag(oid)
                if tag is None:
                    break
                oid = tag.target
                if tag.kind not in (ObjectKind.COMMIT, ObjectKind.TAG):
                    return "the tag is not of a commit"
        if self._known.is_other(oid):
            return "it names something else than a commit"
        return oid

    def _proof(self, start: bytes | str) -> PushFinding:
        """The facts that are proven of a path so far."""
        if isinstance(start, str):
            return PushFinding("", RefChange.UNKNOWN, None, start, unproven=bool(start))
        way = self._ancestry.walk([start])
        for oid in way.new:
            if (path := self._new.touched(oid)) is not None:
                return PushFinding("", RefChange.UNKNOWN, path, f"in commit {_short(oid)}")
        why = ""
        if way.border:
            why = f"no branch or tag is known to reach commit {_short(way.border[-1])}"
        elif (unsettled := self._new.unsettled(way)) is not None:
            why = "its commits could not be compared with what the repository has"
            if self._new.is_disordered(unsettled):
                why = f"which parent of merge {_short(unsettled)} is the newer could not be learnt"
        return PushFinding("", RefChange.UNKNOWN, None, why, unproven=bool(why))

    # ── each new commit beside its parents ────────────────────────────────────────────────────

    def _show(self, starts: list[bytes]) -> Generator[UpstreamQuestion, Pack | None, None]:
        """Compare each new commit, and ask for the objects that are needed for it."""
        self._new.compare(self._ancestry.walk(starts))
        yield from self._trust(starts)
        yield from self._complete(starts)
        # More is trusted now, so other parents may count for commits that were compared before.
        while (yield from self._trust(starts)) and self._questions <= MAX_QUESTIONS:
            yield from self._complete(starts)
        self._new.compare(self._ancestry.walk(starts))

    def _complete(self, starts: list[bytes]) -> Generator[UpstreamQuestion, Pack | None, None]:
        """Ask for the objects that are missing to compare the new commits."""
        while self._questions <= MAX_QUESTIONS:
            way = self._ancestry.walk(starts)
            self._new.compare(way)
            if way.border:
                return
            wants = [oid for oid in self._new.missing(way) if oid not in self._hopeless]
            # Commits, trees and files in questions of their own: git leaves out objects that
            # another requested one contains.
            commits = [oid for oid in wants if self._ancestry.trusts(oid)]
            files = [oid for oid in self._new.files(way) if oid not in self._hopeless]
            wants = sorted(commits or wants or files)[:MAX_WANTS]
            if wants:
                yield from self._ask(QuestionPurpose.OBJECTS, wants)
                # Git also leaves out a tree that another requested tree contains: it is requested
                # again.
                came = [oid for oid in wants if self._known.has(oid)]
                self._hopeless.update(came or wants)
            elif not (yield from self._put_in_order(way)):
                return

    def _put_in_order(self, way: CommitPath) -> Generator[UpstreamQuestion, Pack | None, bool]:
        """Ask which parent of a merge is older. Returns whether there was such a merge."""
        doubt = self._new.doubt(way)
        if doubt is None:
            return False
        answered = False
        if len(doubt.ends) <= MAX_WANTS:
            haves = self._with_floor(doubt.sought)
            answered = yield from self._ask(QuestionPurpose.HISTORY, list(doubt.ends), haves)
        self._new.close(doubt, answered=answered)
        return True

    def _with_floor(self, oid: bytes) -> list[bytes]:
        """A commit and the trusted ones behind it: upstream may know only those, and stops
        there."""
        return list(dict.fromkeys([oid, *self._ancestry.walk([oid]).floor]))[:MAX_HAVES]

    # ── trust ─────────────────────────────────────────────────────────────────────────────────

    def _trust(self, starts: list[bytes]) -> Generator[UpstreamQuestion, Pack | None, bool]:
        """Ask whether the repository reaches commits that are not sound. Returns whether that is
        new.

        Packs often contain commits that a branch already has (a client that knows none of the tips
        sends all history), and some of them changed a denied path in their time.
        """
        asked = False
        way = self._ancestry.walk(starts)
        touching = [oid for oid in way.new if self._new.touched(oid) is not None]
        doubtful = list(dict.fromkeys(way.border + self._ends_of_its_own() + touching))
        if not self._doubted.issuperset(doubtful):
            asked = True
            self._doubted.update(doubtful)
            # Name trusted commits and some of the others, so that the answer is no larger than
            # needed.
            haves = list(dict.fromkeys(doubtful + way.floor + _thinned(list(way.new))))[:MAX_HAVES]
            if len(haves) == 1:
                self._doubted_alone.update(haves)
            yield from self._descend(doubtful, haves)
        # If one of two commits follows the other, an answer names only the later one. Asked for
        # alone, each is named if it is reached at all. The commit that was met last is probably the
        # oldest, and others follow it.
        while (last := self._last_in_doubt(starts)) and self._questions <= MAX_QUESTIONS:
            asked = True
            self._doubted_alone.update(last)
            yield from self._descend(last, self._with_floor(*last))
        return asked

    def _last_in_doubt(self, starts: list[bytes]) -> list[bytes]:
        """The last commit that must be trusted and is not; empty if it was asked about alone."""
        open_ends = self._ends_of_its_own() + self._ancestry.walk(starts).border
        return [oid for oid in open_ends[-1:] if oid not in self._doubted_alone]

    def _ends_of_its_own(self) -> list[bytes]:
        """The push's own commits at which it claims that history ends.

        A shallow clone names its last commits. If such a commit is trusted or unknown, the claim
        has no effect: it cuts off only commits that a ref newly reaches by this push.
        """
        return [o for o in self._shallow if self._known.shows(o) and not self._ancestry.trusts(o)]

    def _descend(
        self, doubtful: list[bytes], haves: list[bytes]
    ) -> Generator[UpstreamQuestion, Pack | None, None]:
        """Ask for history from the tips down to some commits: it names those that it reaches."""
        tips = [tip for tip in self._tips if tip not in haves]
        for first in range(0, len(tips), MAX_WANTS):
            if not all(map(self._ancestry.trusts, doubtful)):
                yield from self._ask(
                    QuestionPurpose.HISTORY, tips[first : first + MAX_WANTS], haves
                )

    # ── ancestry ──────────────────────────────────────────────────────────────────────────────

    def _change(
        self, command: RefCommand, start: bytes
    ) -> Generator[UpstreamQuestion, Pack | None, RefChange]:
        """How a command moves its ref."""
        if command.is_create:
            return RefChange.CREATE
        if command.ref.startswith(_TAGS):
            return RefChange.FORCE  # a tag that moves; its target does not matter
        old = bytes.fromhex(command.old)
        ends = self._ancestry.ends(start, old)
        if ends:
            wants = ends[:MAX_WANTS]
            if len(wants) < len(ends) or not (
                yield from self._ask(QuestionPurpose.HISTORY, wants, [old])
            ):
                return RefChange.UNKNOWN
            # The last commit before `old` cannot be reached from it, so it would be in the answer.
            ends = self._ancestry.ends(start, old)
        return RefChange.FAST_FORWARD if ends is None else RefChange.FORCE

    def _ask(
        self, ask: QuestionPurpose, wants: list[bytes], haves: list[bytes] | None = None
    ) -> Generator[UpstreamQuestion, Pack | None, bool]:
        """Ask one question, unless there were too many. Returns whether it was answered."""
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            return False
        named = (tuple(oid.hex() for oid in oids) for oids in (wants, haves or ()))
        answer = yield UpstreamQuestion(ask, *named)
        if answer is not None:
            self._known.add(answer)
            self._ancestry.spread()
        return answer is not None


def _thinned(commits: list[bytes]) -> list[bytes]:
    """The newest of them one by one, and ever fewer of the older ones: a commit that upstream knows
    is near."""
    chosen, at, gap = commits[:_ALL_NAMED], _ALL_NAMED, 1
    while at < len(commits):
        chosen.append(commits[at])
        gap += 1 + gap // 4
        at += gap
    return chosen


def _short(oid: bytes) -> str:
    return oid.hex()[:12]
