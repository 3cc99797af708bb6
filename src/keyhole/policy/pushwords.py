"""Why a ref was refused, in the few words that git prints behind `! [remote rejected]`.

Asked by the gateway for each refused command of a push. They go to the sandbox: nothing is in them
but what the policy says and the client itself sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.decision import Decision
    from keyhole.policy.policy import GitGrant

PREFIX = "keyhole: "

_PLAIN = {
    Reason.READ_ONLY: "the repository is granted for reading alone",
    Reason.REF_MALFORMED: "not a plain branch or tag name",
    Reason.REF_NAMESPACE: "only branches and tags can be pushed",
    Reason.TAG_MOVE: "a tag is never moved or deleted",
    Reason.DEFAULT_BRANCH_UNKNOWN: "the remote's default branch could not be learnt",
    Reason.PUSH_OPTION: "this push option is not allowed",
    Reason.PUSH_MALFORMED: "the push is malformed",
    Reason.PUSH_UNJUDGED: "the push could not be judged",
    Reason.OVER_SHARE: "this sandbox has too many pushes that wait; try again",
}


def refusal_words(git: GitGrant, name: str, decision: Decision, why: str = "") -> str:
    """One line: what is not allowed and, where it helps, what is."""
    short = name.removeprefix("refs/heads/").removeprefix("refs/tags/")
    match decision.reason:
        case Reason.REF_NOT_GRANTED:
            said = f"push to {short} is not allowed; allowed: {_list(git.push)}"
        case Reason.TAG_NOT_GRANTED:
            allowed = f"; allowed: {_list(git.tags)}" if git.tags else ""
            said = f"tag {short} is not allowed{allowed}"
        case Reason.REF_PROTECTED:
            said = f"{short} is protected"
        case Reason.REF_SYMBOLIC:
            said = f"{short} stands for another branch on the server"
        case Reason.REF_MOVED:
            said = f"{short} is not there, or has moved; fetch first"
        case Reason.CREATE_NOT_GRANTED:
            said = f"creating {short} is not allowed"
        case Reason.FORCE_NOT_GRANTED:
            said = f"rewriting {short} is not allowed; it may only move forward"
        case Reason.DELETE_NOT_GRANTED:
            said = f"deleting {short} is not allowed"
        case Reason.ANCESTRY_UNKNOWN:
            said = f"it cannot be shown that {short} only moves forward"
        case Reason.DENIED_PATH:
            return f"{PREFIX}{short} would change {why}, which deny_paths protects"
        case reason:
            said = _PLAIN.get(reason, str(reason))
    return f"{PREFIX}{said}" + (f" ({why})" if why else "")


def _list(globs: Iterable[object]) -> str:
    return ", ".join(map(str, globs))
