"""The reason why a ref was refused, in the few words that git prints behind `! [remote rejected]`.

Used by the gateway for each refused command of a push. The words go to the sandbox: they contain
only the policy's own patterns and names that the client sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.reasons import info_of, sentence_of
from keyhole.model.ref import short_ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.decision import Decision
    from keyhole.policy.policy import GitGrant

PREFIX = "keyhole: "


def refusal_message(git: GitGrant, name: str, decision: Decision, why: str = "") -> str:
    """One line: the refusal and, where it helps, the allowed patterns."""
    short = short_ref(name)
    if decision.reason is Reason.DENIED_PATH:
        return PREFIX + sentence_of(decision.reason, short, path=why)
    said = sentence_of(decision.reason, short)
    match decision.reason:
        case Reason.REF_NOT_GRANTED:
            hint = f"allowed: {_list(git.push)}"
        case Reason.TAG_NOT_GRANTED:
            hint = f"allowed: {_list(git.tags)}" if git.tags else ""
        case Reason.REF_MOVED | Reason.OVER_SHARE:
            hint = info_of(decision.reason).hint
        case _:
            hint = ""
    return PREFIX + said + (f"; {hint}" if hint else "") + (f" ({why})" if why else "")


def _list(globs: Iterable[object]) -> str:
    return ", ".join(map(str, globs))
