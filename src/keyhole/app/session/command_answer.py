"""Reads what `approvals.command` printed.

Used by data planes, which start no program: `approval_command.py` runs it, in another process.
"""

from __future__ import annotations

import json
from typing import Any

from keyhole.control.operation_table import MAX_GRANT_SECONDS
from keyhole.gateway.asking import AskAnswer
from keyhole.model.errors import Refused
from keyhole.policy.asks import Answer

MAX_COMMANDS = 8
"""Commands of one session at a time; each may wait for a person in a chat."""


def read_printed_answer(printed: bytes) -> dict[str, Any]:
    """The object that a command printed; empty for none. Raises Refused."""
    if not printed.strip():
        return {}
    try:
        said = json.loads(printed)
    except (ValueError, RecursionError):
        raise Refused("the command printed no JSON") from None
    if not isinstance(said, dict):
        raise Refused("the command printed no JSON object")
    return said


def read_command_answer(ask: str, said: dict[str, Any]) -> AskAnswer | None:
    """The answer of `approvals.command`; None: it leaves the question to a person. Raises
    Refused."""
    word, seconds = said.get("answer"), said.get("seconds", 0)
    if word is None:
        return None
    if word not in tuple(Answer) or word == Answer.ALWAYS:
        raise Refused("its `answer` is none that a command can give")
    if not isinstance(seconds, int) or not 0 <= seconds <= MAX_GRANT_SECONDS:
        raise Refused("its `seconds` are no number of seconds within a day")
    if word == Answer.FOR and not seconds:
        raise Refused("`for` needs `seconds`")
    return AskAnswer(ask, Answer(word), seconds, 0, "command")
