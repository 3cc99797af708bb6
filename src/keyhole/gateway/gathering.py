"""A request's body that is taken before its head can go, read out of its framing.

Used by `inspected.py`. `Gathering` keeps a body in memory: clients sign bodies without declaring
their hash, and a fetch or a batch of large files is judged by what it asks for. Pushes have a place
of their own (`pushes.py`). All other bodies pass as they come.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from keyhole.gateway.session import OverLimit
from keyhole.inject.sigv4 import MAX_HASHED_BODY
from keyhole.model.value import dataclass
from keyhole.policy.limit import decide_total
from keyhole.wire.httpbody import ChunkedReader

if TYPE_CHECKING:
    from keyhole.gateway.inspection import Asked
    from keyhole.gateway.session import SessionState

MAX_GATHERED = 2 * MAX_HASHED_BODY
"""Bytes of such bodies that a session may have in memory at once (I9)."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A request whose body is whole."""

    asked: Asked
    body: bytes
    digest: str | None = None
    """Of the body, where a signature is made of it."""


class Body(ABC):
    """One body on its way in."""

    __slots__ = ("_left", "_reader", "asked", "done")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._begin()

    def _begin(self) -> None:
        length = self.asked.head.length
        self.done = length == 0
        self._left = length
        self._reader = ChunkedReader(self.asked.treat) if length < 0 else None

    def feed(self, data: bytes, limit: int) -> bytes:
        """Take bytes; what is behind the body comes back. Raises Malformed or OverLimit."""
        if self._reader is None:
            piece, rest = data[: self._left], data[self._left :]
            self._left -= len(piece)
            self._take(piece, limit)
            self.done = not self._left
            return rest
        self._take(self._reader.feed(data), limit)
        self.done = self._reader.done
        return self._reader.rest if self.done else b""

    @abstractmethod
    def forget(self) -> None:
        """Give back what it holds."""

    @abstractmethod
    def _take(self, piece: bytes, limit: int) -> None:
        """Keep bytes of the body, of which there may be `limit`."""


class Gathering(Body):
    """A body in memory."""

    __slots__ = ("_body", "_counted", "_state")

    def __init__(self, asked: Asked, state: SessionState) -> None:
        super().__init__(asked)
        self._state = state
        self._body = bytearray()
        self._counted = 0

    @property
    def most(self) -> int:
        """Bytes that it may have."""
        return MAX_HASHED_BODY

    def finish(self) -> Gathered:
        """The request with its body as it goes on; the head now says its length.

        It counts until it is forgotten: the origin may be slow to take it. Raises Unfit where
        a body cannot go on.
        """
        body = self._set_length(self._whole())
        return Gathered(self.asked, body, hashlib.sha256(body).hexdigest())

    def forget(self) -> None:
        """Give the memory back."""
        self._state.gathered -= self._counted
        self._counted = 0
        self._body = bytearray()

    def _whole(self) -> bytes:
        body = bytes(self._body)
        self._body = bytearray()
        return body

    def _set_length(self, body: bytes) -> bytes:
        self.asked.head.length = len(body)
        self.asked.head.expects_continue = False
        return body

    def _take(self, piece: bytes, limit: int) -> None:
        size = len(self._body) + len(piece)
        limit = min(limit, self.most)
        if size > limit:
            raise OverLimit(decide_total("body", 0, size, limit))
        if self._state.gathered + len(piece) > MAX_GATHERED:
            raise OverLimit(decide_total("body", self._state.gathered, len(piece), MAX_GATHERED))
        self._state.gathered += len(piece)
        self._counted += len(piece)
        self._body += piece
