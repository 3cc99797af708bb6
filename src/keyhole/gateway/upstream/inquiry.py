"""Requests of the gateway's own to an inspected host, with the service's credential.

Used by `git/remote.py` to learn what a repository has before a push is judged. The response is
handed on piece by piece and never to the sandbox; an origin that sends faster than it is read
waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from keyhole.model.decision import Reason
from keyhole.model.errors import UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from keyhole.gateway.turn import Turn
    from keyhole.gateway.upstream.http2 import Http2Origin
    from keyhole.gateway.upstream.origin import AnyOriginConnection, OriginConnection
    from keyhole.gateway.upstream.pool import OriginPool
    from keyhole.http.field import Field
    from keyhole.http.request import OutboundHead
    from keyhole.http.response import ResponseHead
    from keyhole.model.decision import Decision

PATIENCE = 60.0
"""Seconds without a byte of the answer."""

MAX_WAITING = 4
"""Pieces of an answer that wait to be read before the origin is paused."""

_OK = 200


class WriteQuestion(Protocol):
    """Builds a request of the gateway's own, with the service's credential."""

    def __call__(
        self, service: str, method: str, target: str, lines: list[bytes], length: int
    ) -> OutboundHead:
        """`lines` are the fields beside the credential."""


class Questions:
    """Requests of the gateway's own, from one session to one host."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[OriginConnection | Http2Origin]],
        pool: OriginPool,
        write: WriteQuestion,
        catalogued: Callable[[str], bool],
        turn: Turn,
    ) -> None:
        """`connect` dials by the policy that is in force then; `catalogued`: whether the
        service's server is known to read the bodies that it accepts; `turn` is the session's."""
        self._connect = connect
        self._pool = pool
        self._write = write
        self._catalogued = catalogued
        self._turn = turn

    async def ask(
        self, service: str, method: str, target: str, lines: list[bytes], body: bytes = b""
    ) -> AsyncIterator[bytes]:
        """The body of the response to a request that changes nothing. Raises UpstreamFailed."""
        head = self._write(service, method, target, lines, len(body))
        inquiry, piece = await self._begin(service, head, body)
        try:
            while piece is not None:
                yield piece
                piece = await inquiry.next()
            origin, inquiry.reusable = inquiry.reusable, None
            if origin is not None and (not body or self._catalogued(service)):
                self._pool.keep(service, origin, asyncio.get_running_loop().time())
            elif origin is not None:
                origin.close()  # it may not have read the question's body (I4)
        finally:
            inquiry.give_up()

    async def _begin(
        self, service: str, head: OutboundHead, body: bytes
    ) -> tuple[Inquiry, bytes | None]:
        """Send the question, on a kept connection if one still lives."""
        kept = self._pool.take(service)
        while True:
            fresh = kept is None
            if kept is None:
                kept = self._pool.share(service, await self._connect())
            inquiry = Inquiry(kept, head, body, self._turn)
            try:
                return inquiry, await inquiry.next()
            except UpstreamFailed:
                inquiry.give_up()
                # Attack: an origin that refuses every stream is dialled for ever (I9).
                if fresh or not inquiry.stale:
                    raise
                kept = None
            except BaseException:
                inquiry.give_up()
                raise


class Inquiry:
    """One question: it receives the origin's response in place of a client's stream."""

    __slots__ = ("_done", "_error", "_origin", "_pieces", "_wake", "reusable", "stale")

    def __init__(
        self, origin: AnyOriginConnection, head: OutboundHead, body: bytes, turn: Turn
    ) -> None:
        self.reusable: OriginConnection | None = None
        """The connection, once the response is whole and it can serve again."""
        self.stale = False
        """A kept connection was closed before a byte of the response came."""
        self._origin: AnyOriginConnection | None = origin
        self._pieces: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._done = False
        self._error: UpstreamFailed | None = None
        origin.send_request(head, self, turn)
        if body:
            origin.send_data(body)
            origin.end_request()
        origin.flush()

    async def next(self) -> bytes | None:
        """The next piece of the body; None at its end. Raises UpstreamFailed."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._done:
                return None
            self._wake.clear()
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._wake.wait()
            except TimeoutError:
                raise UpstreamFailed(Reason.UPSTREAM_SLOW, "the origin does not answer") from None
        piece = self._pieces.popleft()
        if len(self._pieces) < MAX_WAITING and self._origin is not None:
            self._origin.resume()
        return piece

    def give_up(self) -> None:
        """Stop reading and drop the connection, even if the response has just ended."""
        for origin in (self._origin, self.reusable):
            if origin is not None:
                origin.drop()
        self._origin = self.reusable = None

    # ── what an origin says ───────────────────────────────────────────────────────────────────────

    def response_interim(self, head: ResponseHead) -> None:
        """Interim responses are ignored here."""

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        """The answer's head: only status 200 can be used."""
        if head.status != _OK:
            self.fail(Reason.UPSTREAM_MALFORMED, f"the origin answers with {head.status}")
        elif head.encoding:
            self.fail(Reason.ENCODING_REFUSED, "the origin encodes its answer")
        elif body:
            self.response_data(body)

    def response_data(self, data: bytes | memoryview) -> None:
        """Bytes of the response."""
        self._pieces.append(bytes(data))
        if len(self._pieces) >= MAX_WAITING and self._origin is not None:
            self._origin.pause()
        self._wake.set()

    def response_flush(self) -> None:
        """Do nothing: there is no client to flush to."""

    def protocol_ended(self) -> None:
        """Not called: no other protocol was asked for."""

    def response_ended(self, trailers: Sequence[Field]) -> None:
        """The response is whole."""
        origin, self._origin = self._origin, None
        if origin is not None:
            self.reusable = origin.release()
            if self.reusable is None:
                origin.close()
        self._done = True
        self._wake.set()

    def origin_lost(self, *, stale: bool, unread: bool = False) -> None:
        """The origin is gone."""
        self._origin = None
        self.stale = stale and not self._pieces
        why = "the origin closed the connection before it answered"
        self._error = UpstreamFailed(Reason.UPSTREAM_CLOSED, why)
        self._wake.set()

    def fail(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """The answer cannot be used."""
        self._error = UpstreamFailed(reason, why or reason)
        self.give_up()
        self._wake.set()

    def over_limit(self, decision: Decision) -> None:
        """Not called: nothing is counted here."""

    def origin_caught_up(self) -> None:
        """The question was sent whole."""
