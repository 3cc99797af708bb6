"""How much a request lets a model write: the length of an answer times the number of answers (I9).

`model_features.py` walks a body and shows each number to an `AnswerLength`, which compares them
with the service's `max_tokens` at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.policy.model_rules import MAX_NAME, text_of

if TYPE_CHECKING:
    from keyhole.wire.strict_json import JsonValue

MAX_PROMPT = 10_000
"""Numbers in a list that are looked at, to tell one text as tokens from many texts (I12)."""


class AnswerLength:
    """What one request says about the length and the number of its answers."""

    __slots__ = ("_found", "_most", "_number", "_places", "_tokens")

    def __init__(self, most: int | None) -> None:
        """`most` is the policy's `max_tokens`; None: nothing is compared."""
        self._most = most
        self._tokens: int | None = None
        self._found: set[str] = set()
        """Where it says a length."""
        self._number = 1
        self._places: list[str] = []
        """Where the request asks for several answers."""

    def read_tokens(self, value: JsonValue, place: str) -> str:
        """Read a length. Returns what is wrong with it, or an empty text."""
        number = _whole_number(value)
        self._tokens = max(number or 0, self._tokens or 0)
        self._found.add(place)
        # Attack: null or a list leaves room for a second member; -1 is no limit for some servers.
        if self._most is None or (number is not None and number <= self._most):
            return ""
        return f"{place} is {text_of(value)[:MAX_NAME]}"

    def read_number(self, value: JsonValue, place: str) -> str:
        """Read how many answers a request asks for. Returns what is wrong with it."""
        if value is None or self._most is None:
            return ""
        number = _whole_number(value)
        if not number:
            return f"{place} is {text_of(value)[:MAX_NAME]}"
        self._multiply(number, place)
        return ""

    def read_prompts(self, value: JsonValue, place: str) -> None:
        """Read the texts that are to be answered: a list of them, or one, also as a list of
        tokens."""
        if not isinstance(value, list):
            return
        if len(value) > MAX_PROMPT or not all(isinstance(each, int) for each in value):
            self._multiply(len(value), place)

    def _multiply(self, number: int, place: str) -> None:
        # Attack: each number is small, and the answers of `n` and of `best_of` are all billed.
        if number > 1 and self._most is not None:
            self._number = min(self._number * number, self._most + 1)
            self._places.append(place)

    def is_missing(self, places: tuple[tuple[str, ...], ...]) -> bool:
        """Whether the policy wants a length, and the request says none at these places."""
        wanted = self._most is not None and bool(places)
        return wanted and self._found.isdisjoint(map(".".join, places))

    @property
    def each(self) -> int:
        """The length that each answer may have; 0 if there are too many answers."""
        return (self._most or 0) // self._number

    @property
    def excess(self) -> str:
        """What is wrong with all answers together, or an empty text."""
        if self._most is None or self._number == 1 or 0 < (self._tokens or 1) <= self.each:
            return ""
        length = "" if self._tokens is None else f" of {self._tokens} tokens"
        return f"it asks for several answers{length} ({', '.join(self._places)})"


def _whole_number(value: JsonValue) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
