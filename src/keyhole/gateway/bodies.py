"""A request's body that is collected before its head can be sent on.

`http/collecting.py` fills it with the payload, without its framing. `BufferedBody` keeps it in
memory: clients sign bodies without declaring their hash, and a fetch or a batch of large files is
judged by its content. A push waits on disk (`git/push_body.py`). All other bodies are streamed.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.sigv4 import MAX_HASHED_BODY
from keyhole.model.errors import OverLimit
from keyhole.policy.limit import decide_total

if TYPE_CHECKING:
    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.gateway.session import SessionState


class Collected(Struct, frozen=True):
    """A whole body, as it is sent."""

    body: bytes
    digest: str | None = None
    """The digest of the body, for a signature."""


class CollectedBody(ABC):
    """One body that is being collected."""

    __slots__ = ("request",)

    def __init__(self, request: AuthorizedRequest) -> None:
        self.request = request

    @abstractmethod
    def take(self, piece: bytes, limit: int) -> None:
        """Keep bytes of a body of at most `limit`. Raises OverLimit or RequestUnfit."""

    @abstractmethod
    def forget(self) -> None:
        """Release memory and disk."""


class BufferedBody(CollectedBody):
    """A body in memory."""

    __slots__ = ("_body", "_counted", "_state")

    def __init__(self, request: AuthorizedRequest, state: SessionState) -> None:
        super().__init__(request)
        self._state = state
        self._body = bytearray()
        self._counted = 0

    @property
    def most(self) -> int:
        """The largest size in bytes."""
        return MAX_HASHED_BODY

    def take(self, piece: bytes, limit: int) -> None:
        """Keep bytes. Raises OverLimit."""
        size = len(self._body) + len(piece)
        limit = min(limit, self.most)
        if size > limit:
            raise OverLimit(decide_total("body", 0, size, limit))
        self._state.gather(len(piece))
        self._counted += len(piece)
        self._body += piece

    def finish(self) -> Collected:
        """The body as it is sent. Raises RequestUnfit where it cannot be.

        It counts until it is forgotten: the origin may be slow to take it.
        """
        body = self._whole()
        return Collected(body, hashlib.sha256(body).hexdigest())

    def forget(self) -> None:
        """Release the memory."""
        self._state.gather(-self._counted)
        self._counted = 0
        self._body = bytearray()

    def _whole(self) -> bytes:
        body = bytes(self._body)
        self._body = bytearray()
        return body
