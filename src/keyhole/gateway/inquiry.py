"""What the gateway itself asks an inspected host, with the service's credential.

Used by `pushes.py` to learn what a repository has before a push is judged. The answer is handed on
piece by piece and never to the sandbox; an origin that sends faster than it is read waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.origin import Insecure
from keyhole.gateway.reach import reach
from keyhole.system.dialler import AddressRefused, Unreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from keyhole.gateway.inspection import Inspection
    from keyhole.gateway.origin import Origin
    from keyhole.model.decision import Decision
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.dialler import Dialler
    from keyhole.wire.httpfield import Field
    from keyhole.wire.httpresponse import ResponseHead

PATIENCE = 60.0
"""Seconds without a byte of the answer."""

MAX_WAITING = 4
"""Pieces of an answer that wait to be read before the origin is paused."""

_OK = 200


class NoAnswer(Exception):
    """The origin gave no answer that can be used; the text is for a person."""


class Asking:
    """How one session asks one host."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        upstream: Dialler,
        book: Callable[[], Rulebook],
        trust: ssl.SSLContext,
        inspection: Inspection,
    ) -> None:
        """`book` is what is in force when an address is dialled."""
        self._loop = loop
        self._upstream = upstream
        self._book = book
        self._trust = trust
        self._inspection = inspection

    async def ask(self, service: str, method: str, message: bytes) -> AsyncIterator[bytes]:
        """The body of the answer to a request that changes nothing. Raises NoAnswer."""
        inquiry, piece = await self._begin(service, method, message)
        try:
            while piece is not None:
                yield piece
                piece = await inquiry.next()
            origin, inquiry.reusable = inquiry.reusable, None
            if origin is not None and (method == "GET" or self._inspection.catalogued(service)):
                origin.resume()
                self._inspection.keep_idle(service, origin, self._loop.time())
            elif origin is not None:
                origin.close()  # it may not have read the question's body (I4)
        finally:
            inquiry.give_up()

    async def _begin(
        self, service: str, method: str, message: bytes
    ) -> tuple[Inquiry, bytes | None]:
        """Put the question, on a kept connection if there is one that still lives."""
        kept = self._inspection.take_idle(service)
        while True:
            inquiry = Inquiry(kept or await self._reach(), method, message)
            try:
                return inquiry, await inquiry.next()
            except Stale:
                kept = None
            except BaseException:
                inquiry.give_up()
                raise

    async def _reach(self) -> Origin:
        try:
            return await reach(
                self._loop,
                self._upstream,
                self._book(),
                self._trust,
                self._inspection.destination(),
            )
        except AddressRefused as error:
            raise NoAnswer(f"its address is refused: {error.decision.reason}") from None
        except (Unreachable, Insecure) as error:
            raise NoAnswer(str(error)) from None


class Stale(NoAnswer):
    """A kept connection was closed before a byte of the answer came."""


class Inquiry:
    """One question: what an origin reports to, in place of an exchange."""

    __slots__ = (
        "_done", "_error", "_origin", "_pieces", "_wake", "method", "reusable", "trailers",
    )  # fmt: skip

    def __init__(self, origin: Origin, method: str, message: bytes) -> None:
        self.method = method
        self.trailers: list[Field] = []
        self.reusable: Origin | None = None
        """The connection, once the answer is whole and it can serve again."""
        self._origin: Origin | None = origin
        self._pieces: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._done = False
        self._error: NoAnswer | None = None
        origin.serve(self)
        origin.send(message)

    async def next(self) -> bytes | None:
        """The next piece of the body; None at its end. Raises NoAnswer."""
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
                raise NoAnswer("the origin does not answer") from None
        piece = self._pieces.popleft()
        if len(self._pieces) < MAX_WAITING and self._origin is not None:
            self._origin.resume()
        return piece

    def give_up(self) -> None:
        """Nobody reads on; nor keeps the connection, if the answer was whole just before."""
        for origin in (self._origin, self.reusable):
            if origin is not None:
                origin.release()
                origin.abort()
        self._origin = self.reusable = None

    # ── what an origin says ───────────────────────────────────────────────────────────────────────

    def interim(self, head: ResponseHead) -> None:
        """An answer before the answer says nothing here."""

    def answered(self, head: ResponseHead, body: bytes | None = None) -> None:
        """The answer's head: only a plain yes can be used."""
        if head.status != _OK:
            self.failed(refusal.UPSTREAM_MALFORMED, f"the origin answers with {head.status}")
        elif head.encoding:
            self.failed(refusal.ENCODING_REFUSED, "the origin encodes its answer")
        elif body:
            self.body(body)

    def body(self, data: bytes | memoryview) -> None:
        """Bytes of the answer."""
        self._pieces.append(bytes(data))
        if len(self._pieces) >= MAX_WAITING and self._origin is not None:
            self._origin.pause()
        self._wake.set()

    def flush(self) -> None:
        """There is nobody to flush to."""

    def relayed(self, data: bytes) -> None:
        """No other protocol was asked for."""
        self.failed(refusal.UPSTREAM_MALFORMED, "the origin switches protocols")

    def relay_ended(self) -> None:
        """The same."""
        self.relayed(b"")

    def complete(self, *, reusable: bool) -> None:
        """The answer is whole."""
        origin, self._origin = self._origin, None
        if origin is not None:
            origin.release()
            if reusable:
                self.reusable = origin
            else:
                origin.close()
        self._done = True
        self._wake.set()

    def origin_lost(self, *, stale: bool) -> None:
        """The origin is gone."""
        self._origin = None
        kind = Stale if stale and not self._pieces else NoAnswer
        self._error = kind("the origin closed the connection before it answered")
        self._wake.set()

    def failed(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """The answer cannot be used."""
        self._error = NoAnswer(why or reason)
        self.give_up()
        self._wake.set()

    def over(self, decision: Decision) -> None:
        """Nothing of it is counted here."""

    def origin_caught_up(self) -> None:
        """The question was sent whole."""
