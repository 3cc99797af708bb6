"""A forge's answer that is read whole before anything of it is passed on.

The base of the readers of GitHub's GraphQL and search: both collect the bytes within the same
bounds, and then leave out what is not of a granted repository.
"""

from __future__ import annotations

from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit
from keyhole.policy.body import AnswerRewriter

MAX_ANSWER = 2 << 20
"""Bytes of an answer. A hundred pull requests with their texts have half."""

MAX_OBJECTS = 10_000
"""Objects of an answer, counted by its opening braces. Reading them takes 20 ms, in which no other
session is served (I12)."""


class CollectedAnswer(AnswerRewriter):
    """Collects an answer; the subclass reads it in `end`."""

    whole = True

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """As `AnswerRewriter`."""
        self._data += piece
        if len(self._data) > MAX_ANSWER:
            raise ResponseUnfit(Reason.GRAPHQL, f"the answer has more than {MAX_ANSWER} bytes")
        return b""

    def _collected(self) -> bytes:
        """The whole answer. Raises ResponseUnfit if it has too many objects."""
        data = bytes(self._data)
        if data.count(b"{") > MAX_OBJECTS:
            why = f"the answer has more than {MAX_OBJECTS} objects; ask for fewer"
            raise ResponseUnfit(Reason.GRAPHQL, why)
        return data
