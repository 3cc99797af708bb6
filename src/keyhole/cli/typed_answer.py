"""Reads the answers that a person types, into `keyhole watch` and as flags of `approve`."""

from __future__ import annotations

import math
import os

from keyhole.cli.errors import CliError
from keyhole.control.operation_table import MAX_GRANT_SECONDS
from keyhole.control.values import AnswerRequest, AnswerWord
from keyhole.model.errors import KeyholeError, Refused, Unparsable
from keyhole.model.quantity import format_duration, parse_duration
from keyhole.model.text import visible

MAX_LINE = 4096
"""Bytes of a typed line."""

WORDS = {
    "a": AnswerWord.ONCE,
    "approve": AnswerWord.ONCE,
    "s": AnswerWord.SESSION,
    "session": AnswerWord.SESSION,
    "w": AnswerWord.ALWAYS,
    "always": AnswerWord.ALWAYS,
    "f": AnswerWord.FOR,
    "for": AnswerWord.FOR,
    "d": AnswerWord.NO,
    "deny": AnswerWord.NO,
    "n": AnswerWord.NEVER,
    "never": AnswerWord.NEVER,
    "x": AnswerWord.NO_TO_ALL,
    "no-to-all": AnswerWord.NO_TO_ALL,
}


class TypedLines:
    """Lines of a descriptor, as they are typed or piped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""

    @property
    def usable(self) -> bool:
        """Whether it can be read at all: standard input may be closed."""
        return self._descriptor >= 0

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def read(self) -> list[str] | None:
        """The lines that have come; None at the end."""
        try:
            more = os.read(self._descriptor, MAX_LINE)
        except OSError:
            return None
        if not more:
            return None
        *lines, self._data = (self._data + more).split(b"\n")
        self._data = self._data[-MAX_LINE:]
        return [line.decode("utf-8", "replace") for line in lines]


def read_answer(word: str, rest: list[str]) -> AnswerRequest:
    """An answer as it is typed. Raises Refused."""
    answer = WORDS.get(word)
    if answer is None:
        raise Refused(f"'{visible(word)}' is none of the answers")
    if not rest or len(rest) > 2 or (len(rest) == 2) != (answer is AnswerWord.FOR):
        raise Refused(f"`{word} ID{' TIME' if answer is AnswerWord.FOR else ''}` is expected")
    if answer is not AnswerWord.FOR:
        return AnswerRequest(answer, via="watch")
    try:
        return AnswerRequest(answer, read_duration(rest[1]), "watch")
    except KeyholeError as error:
        raise Refused(str(error)) from None


def read_duration(text: str) -> int:
    """The seconds that a yes lasts. Raises CliError."""
    try:
        seconds = math.ceil(parse_duration(text))
    except Unparsable as error:
        raise CliError(f"--for: {error.message}") from None
    if not 1 <= seconds <= MAX_GRANT_SECONDS:
        most = format_duration(MAX_GRANT_SECONDS)
        raise CliError(f"--for is at most {most}; for longer, change the policy")
    return seconds
