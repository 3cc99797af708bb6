"""Decides whether a push may change a ref in this way.

Called for each command of a push, after the repository and the endpoint were allowed: first with
the most favourable assumption, before the pack has come, and again with the facts that the judge
proved. A fact that could not be proven is UNKNOWN, and that denies.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob, fold
from keyhole.model.ref import Ref, RefKind
from keyhole.policy.asks import ASK_RULE
from keyhole.policy.schema import ApiAccess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.policy.policy import GitGrant, Service
    from keyhole.wire.receive_pack import RefCommand


_NONE: frozenset[str] = frozenset()


class RefChange(enum.Enum):
    """How a ref moves. The zero value is never allowed."""

    UNKNOWN = 0
    CREATE = 1
    FAST_FORWARD = 2
    FORCE = 3
    DELETE = 4


class RemoteFacts(Struct, frozen=True):
    """Facts about the remote: its default branch (None: unknown) and its aliases."""

    default_branch: Ref | None = None
    symbolic: frozenset[Ref] = frozenset()

    @classmethod
    def of(cls, head: str | None, symbolic: Iterable[str]) -> RemoteFacts:
        """Make them from a server's full names; a name that is not plain matches no rule."""
        aliases = frozenset(ref for ref in map(_plain, symbolic) if ref)
        return cls(_plain(head) if head else None, aliases)


def _plain(name: str) -> Ref | None:
    try:
        return Ref.parse(name)
    except Unparsable:
        return None


def decide_by_name(service: Service, command: RefCommand) -> Decision:
    """Decide a command before anything is known of the remote, with the most favourable
    assumption."""
    decision = decide_ref_update(service, command.ref, _best(command), RemoteFacts())
    if decision.reason is Reason.DEFAULT_BRANCH_UNKNOWN:
        return Decision(Verdict.ALLOW, Reason.RULE, decision.rule)
    return decision


def _best(command: RefCommand) -> RefChange:
    """The most favourable change that a command can be."""
    if command.is_delete:
        return RefChange.DELETE
    return RefChange.CREATE if command.is_create else RefChange.FAST_FORWARD


def decide_optimistically(
    service: Service,
    command: RefCommand,
    remote: RemoteFacts,
    tips: Mapping[str, str],
    approved: frozenset[str] = _NONE,
) -> Decision:
    """Decide a command by its names alone, as if its pack proved the most favourable change.

    `tips` has the present value of each ref at the remote. A client with another value is out of
    date; the remote would refuse its update too, though not a delete.
    """
    decision = decide_ref_update(service, command.ref, _best(command), remote, approved)
    known = tips.get(command.ref, "")
    if decision.allowed and known != (command.old if command.old.strip("0") else ""):
        return Decision(reason=Reason.REF_MOVED, rule=decision.rule)
    return decision


def decide_ref_update(
    service: Service,
    name: str,
    change: RefChange,
    remote: RemoteFacts,
    approved: frozenset[str] = _NONE,
) -> Decision:
    """Decide one ref update of a push. `approved` are full names that a person allows as if `push`
    or `tags` had a pattern for each; what protects a ref still does."""
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
        return _decide_tag(service, git, ref, change, approved=name in approved)
    return _decide_branch(service, git, ref, change, remote, approved=name in approved)


def _decide_tag(
    service: Service, git: GitGrant, ref: Ref, change: RefChange, *, approved: bool
) -> Decision:
    index = _first(git.tags, ref.segments)
    if index is None and not approved:
        return Decision(reason=Reason.TAG_NOT_GRANTED, rule=f"{service.rule}.tags")
    if change is not RefChange.CREATE:
        return Decision(reason=Reason.TAG_MOVE, rule=_rule(f"{service.rule}.tags", index))
    return _allowed(f"{service.rule}.tags", index)


def _decide_branch(
    service: Service,
    git: GitGrant,
    ref: Ref,
    change: RefChange,
    remote: RemoteFacts,
    *,
    approved: bool,
) -> Decision:
    rule = service.rule
    if not git.push:
        return Decision(reason=Reason.READ_ONLY, rule=f"{rule}.push")
    index = _first(git.push, ref.segments)
    if index is None and not approved:
        return Decision(reason=Reason.REF_NOT_GRANTED, rule=f"{rule}.push")
    protected = _protection(git, ref, remote)
    if protected:
        return Decision(reason=protected, rule=f"{rule}.protect")
    granted, refusal = {
        RefChange.UNKNOWN: (git.force, Reason.ANCESTRY_UNKNOWN),
        RefChange.CREATE: (git.create, Reason.CREATE_NOT_GRANTED),
        RefChange.FAST_FORWARD: (True, Reason.RULE),
        RefChange.FORCE: (git.force, Reason.FORCE_NOT_GRANTED),
        RefChange.DELETE: (git.delete, Reason.DELETE_NOT_GRANTED),
    }[change]
    if not granted:
        return Decision(reason=refusal, rule=_rule(f"{rule}.push", index))
    return _allowed(f"{rule}.push", index)


def _rule(key: str, index: int | None) -> str:
    return key if index is None else f"{key}[{index}]"


def _allowed(key: str, index: int | None) -> Decision:
    if index is None:
        return Decision(Verdict.ALLOW, Reason.APPROVED, ASK_RULE)
    return Decision(Verdict.ALLOW, Reason.RULE, _rule(key, index))


def is_protected(git: GitGrant, branch: str) -> bool:
    """Whether the policy itself protects a branch by name, whatever the remote's default is.

    Compared without regard to case: some servers' storage folds it.
    """
    folded = tuple(fold(s) for s in branch.split("/"))
    return any(glob.folded().matches(folded) for glob in git.protect or ())


def may_not_move(service: Service, branch: str) -> bool:
    """Whether a pull request may not be moved to a branch: `protect` names it, and the sandbox may
    merge.

    Attack: move a request there while the answer is under way that names its old branch, and merge
    it by that answer.
    """
    git = service.git
    return git is None or (git.api.covers(ApiAccess.MERGE) and is_protected(git, branch))


def _protection(git: GitGrant, ref: Ref, remote: RemoteFacts) -> Reason | None:
    if git.protect is not None:
        return Reason.REF_PROTECTED if is_protected(git, "/".join(ref.segments)) else None
    folded = tuple(fold(s) for s in ref.segments)
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
