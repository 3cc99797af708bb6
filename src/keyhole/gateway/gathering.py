"""A request's body taken whole, where its hash is part of the signature that stands before it.

Used by `inspected.py` for clients that sign a body and do not declare its hash, as boto3 does for
most services. All other bodies pass as they come.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keyhole.gateway.session import OverLimit
from keyhole.inject.sigv4 import MAX_HASHED_BODY
from keyhole.policy.limit import decide_total
from keyhole.wire.httpbody import ChunkedReader

if TYPE_CHECKING:
    from keyhole.gateway.inspection import Asked
    from keyhole.gateway.session import SessionState

MAX_GATHERED = 2 * MAX_HASHED_BODY
"""Bytes of such bodies that a session may have in memory at once (I9)."""


class Gathering:
    """One body."""

    __slots__ = ("_body", "_counted", "_left", "_reader", "_state", "asked", "done")

    def __init__(self, asked: Asked, state: SessionState) -> None:
        self.asked = asked
        self.done = asked.head.length == 0
        self._state = state
        self._body = bytearray()
        self._counted = 0
        self._left = asked.head.length
        self._reader = ChunkedReader(asked.treat) if asked.head.length < 0 else None

    def feed(self, data: bytes, limit: int) -> bytes:
        """Take bytes; what is behind the body comes back. Raises Malformed or OverLimit."""
        if self._reader is None:
            piece, rest = data[: self._left], data[self._left :]
            self._left -= len(piece)
            self._take(piece, limit)
            self.done = not self._left
            return rest
        for piece in self._reader.feed(data):
            self._take(piece, limit)
        self.done = self._reader.done
        return self._reader.rest if self.done else b""

    def finish(self) -> tuple[bytes, str]:
        """The body and the hex digest of it; the request's head now says its length.

        It counts until it is forgotten: the origin may be slow to take it.
        """
        body = bytes(self._body)
        self.asked.head.length = len(body)
        self.asked.head.expects_continue = False
        self._body = bytearray()
        return body, hashlib.sha256(body).hexdigest()

    def forget(self) -> None:
        """Give the memory back."""
        self._state.gathered -= self._counted
        self._counted = 0
        self._body = bytearray()

    def _take(self, piece: bytes, limit: int) -> None:
        size = len(self._body) + len(piece)
        if size > min(limit, MAX_HASHED_BODY):
            raise OverLimit(decide_total("body", 0, size, min(limit, MAX_HASHED_BODY)))
        if self._state.gathered + len(piece) > MAX_GATHERED:
            raise OverLimit(decide_total("body", self._state.gathered, len(piece), MAX_GATHERED))
        self._state.gathered += len(piece)
        self._counted += len(piece)
        self._body += piece
