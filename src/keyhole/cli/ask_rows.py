"""Questions of sandboxes, as lines for a person and for `--json`.

Everything that a sandbox chose is escaped, and never stands first on a line (I8).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.cli.amounts import moment
from keyhole.control.ask_words import ask_words
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.control.values import AskView


def ask_line(ask: AskView) -> str:
    """A question on one line: its id, what asks, what a yes allows, and what to look at twice."""
    left = max(0, ask.expires - int(time.time()))
    when = f"{left} s left" if ask.state == "pending" else "refused meanwhile; a yes serves a retry"
    more = f", {ask.waiting} wait" if ask.waiting > 1 else ""
    marks = "".join(f"  ! {visible(mark)}" for mark in ask.marks)
    return f"{ask.id}  {ask.session}  {ask_words(ask)}  ({when}{more}){marks}"


def ask_json(ask: AskView) -> dict[str, object]:
    """The question for `--json`: names as in docs/control-api.md, times as in the audit log."""
    found: dict[str, object] = {
        name: getattr(ask, name) for name in ask.__struct_fields__ if name not in ("marks",)
    }
    times = {"asked": moment(ask.asked), "expires": moment(ask.expires)}
    return found | {"marks": list(ask.marks)} | times
