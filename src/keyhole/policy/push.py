"""May this ref be changed in this way? (DESIGN §4, facts: git protocol §5)

Called for each command of a push, after the repository and the endpoint were allowed: before the
pack is there with the best that it could be, and again with what was proven of it. What could not
be proven is UNKNOWN, and that denies.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob, fold
from keyhole.model.ref import Ref, RefKind
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.policy.policy import GitGrant, Service
    from keyhole.wire.receivepack import Command


class Change(enum.Enum):
    """How a ref moves. The zero is the one that nothing may."""

    UNKNOWN = 0
    CREATE = 1
    FAST_FORWARD = 2
    FORCE = 3
    DELETE = 4


@dataclass(frozen=True, slots=True)
class Remote:
    """What was learnt of the remote: its default branch (None: not learnt) and its aliases."""

    default_branch: Ref | None = None
    symbolic: frozenset[Ref] = frozenset()

    @classmethod
    def of(cls, head: str | None, symbolic: Iterable[str]) -> Remote:
        """From full names as a server tells them; one that is not plain can be nobody's to push."""
        aliases = frozenset(ref for ref in map(_plain, symbolic) if ref)
        return cls(_plain(head) if head else None, aliases)


def _plain(name: str) -> Ref | None:
    try:
        return Ref.parse(name)
    except Unparsable:
        return None


def decide_by_name(service: Service, command: Command) -> Decision:
    """Decide a command before anything is known of the remote, as well as it could then go."""
    decision = decide_ref_update(service, command.ref, _best(command), Remote())
    if decision.reason is Reason.DEFAULT_BRANCH_UNKNOWN:
        return Decision(Verdict.ALLOW, Reason.RULE, decision.rule)
    return decision


def _best(command: Command) -> Change:
    """The best that a command can be."""
    if command.is_delete:
        return Change.DELETE
    return Change.CREATE if command.is_create else Change.FAST_FORWARD


def foresee(
    service: Service, command: Command, remote: Remote, tips: Mapping[str, str]
) -> Decision:
    """Decide a command by its names alone, as if its pack showed the best that it can.

    `tips` is what each ref is at the remote. A client that believes otherwise works on what is
    past; the remote would refuse it too, though not a delete.
    """
    decision = decide_ref_update(service, command.ref, _best(command), remote)
    known = tips.get(command.ref, "")
    if decision.allowed and known != (command.old if command.old.strip("0") else ""):
        return Decision(reason=Reason.REF_MOVED, rule=decision.rule)
    return decision


def decide_ref_update(service: Service, name: str, change: Change, remote: Remote) -> Decision:
    """Decide one ref update of a push."""
    git = service.git
    if git is None:
        return Decision()
    if not name.startswith(("refs/heads/", "refs/tags/")):
        return Decision(reason=Reason.REF_NAMESPACE)
    try:
        ref = Ref.parse(name)
    except Unparsable:
        return Decision(reason=Reason.REF_MALFORMED)
    if str(ref).lower() in {str(alias).lower() for alias in remote.symbolic}:
        # Pushing to an alias moves its target; some servers' storage folds case.
        return Decision(reason=Reason.REF_SYMBOLIC)
    if ref.kind is RefKind.TAG:
        return _decide_tag(service, git, ref, change)
    return _decide_branch(service, git, ref, change, remote)


def _decide_tag(service: Service, git: GitGrant, ref: Ref, change: Change) -> Decision:
    index = _first(git.tags, ref.segments)
    if index is None:
        return Decision(reason=Reason.TAG_NOT_GRANTED, rule=f"{service.rule}.tags")
    if change is not Change.CREATE:
        return Decision(reason=Reason.TAG_MOVE, rule=f"{service.rule}.tags[{index}]")
    return Decision(Verdict.ALLOW, Reason.RULE, f"{service.rule}.tags[{index}]")


def _decide_branch(
    service: Service, git: GitGrant, ref: Ref, change: Change, remote: Remote
) -> Decision:
    rule = service.rule
    if not git.push:
        return Decision(reason=Reason.READ_ONLY, rule=f"{rule}.push")
    index = _first(git.push, ref.segments)
    if index is None:
        return Decision(reason=Reason.REF_NOT_GRANTED, rule=f"{rule}.push")
    protected = _protection(git, ref, remote)
    if protected:
        return Decision(reason=protected, rule=f"{rule}.protect")
    granted, refusal = {
        Change.UNKNOWN: (git.force, Reason.ANCESTRY_UNKNOWN),
        Change.CREATE: (git.create, Reason.CREATE_NOT_GRANTED),
        Change.FAST_FORWARD: (True, Reason.RULE),
        Change.FORCE: (git.force, Reason.FORCE_NOT_GRANTED),
        Change.DELETE: (git.delete, Reason.DELETE_NOT_GRANTED),
    }[change]
    if not granted:
        return Decision(reason=refusal, rule=f"{rule}.push[{index}]")
    return Decision(Verdict.ALLOW, Reason.RULE, f"{rule}.push[{index}]")


def _protection(git: GitGrant, ref: Ref, remote: Remote) -> Reason | None:
    """Protected names are compared without regard to case: some servers' storage folds it."""
    folded = tuple(fold(s) for s in ref.segments)
    if git.protect is not None:
        held = any(glob.folded().matches(folded) for glob in git.protect)
        return Reason.REF_PROTECTED if held else None
    if Glob(ref.segments) in git.push:
        return None
    if remote.default_branch is None:
        return Reason.DEFAULT_BRANCH_UNKNOWN
    if folded == tuple(fold(s) for s in remote.default_branch.segments):
        return Reason.REF_PROTECTED
    return None


def _first(globs: tuple[Glob, ...], segments: tuple[str, ...]) -> int | None:
    for index, glob in enumerate(globs):
        if glob.matches(segments):
            return index
    return None
