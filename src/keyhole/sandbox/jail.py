"""The jail that pushes are judged in: one process for each, that can do nothing but speak to us.

Handed to the gateway by the app. The process is `judge.py`, started by `bailiff.py`, here or in
another process; this side tells it the case, puts its questions to whoever can ask upstream, and
ends it, whatever happens. It believes no more of what comes back than `hearing.py` reads out of it.
The pack is never read on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from keyhole.policy.trial import Unanswered, Unheard, Unjudged, Unsound
from keyhole.sandbox import hearing
from keyhole.sandbox.bailiff import Process
from keyhole.sandbox.bailiff import start_judge as start_judge  # for whoever hands one in
from keyhole.sandbox.hearing import HEAD, MAX_SAID, Garbled, Said
from keyhole.sandbox.programs import Missing
from keyhole.system.places import Bounds, OverShare, Places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from keyhole.policy.trial import Case, Finding, Question
    from keyhole.sandbox.bailiff import Started

    Asker = Callable[[Question], AsyncIterator[bytes]]

MAX_SECONDS = 120.0
"""From when a push is whole to its verdict, upstream's answers included. A client waits for it."""

MAX_QUESTIONS = 64
"""Questions of one judge: twice what a trial puts, so that only one that was taken over meets
it."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer: the commits of 150,000 are half of it. Beyond, it counts as unanswered."""

MAX_ANSWERS = 128 * 1024 * 1024
"""Bytes of all answers in one trial; the judge keeps them in memory."""

PLACES = Bounds(total=4, each=2, waiting=16, spare=1)
"""Judges at work; other pushes wait. Each may take a core and a gibibyte, so there is a bound for
all; the last place is for a session that has none. What waits keeps its pack on disk meanwhile."""

PLACE_WAIT = 300.0
"""Seconds that a push waits for a judge: two that take their whole time, and some."""

MAX_WAITING = 2
"""Judges that were started ahead and have nothing to do yet, of some 15 MiB each."""

WAITING_SECONDS = 60.0
"""How long one waits for the push that was announced."""

_AT_ONCE = 256 * 1024
_ENDED = "the judge ended before its verdict"


class Jail:
    """Judges pushes, each in a process of its own. `close` ends all of them.

    `start` starts one, or has another process do it: what is then awaited is never cancelled, and
    that process buries it. It raises OSError or Missing.
    """

    def __init__(
        self,
        seconds: float = MAX_SECONDS,
        start: Callable[[], Started | Awaitable[Started]] = start_judge,
    ) -> None:
        self._seconds = seconds
        self._start = start
        self._places = Places(PLACES)
        self._waiting: list[Process] = []
        self._coming: set[asyncio.Future[Started]] = set()
        self._ending: set[Process] = set()

    def prepare(self) -> None:
        """Start a judge ahead of the push that is announced, if none waits already."""
        for process in [process for process in self._waiting if not process.alive]:
            self._expire(process)
        if len(self._waiting) + len(self._coming) >= MAX_WAITING:
            return
        # What keeps one from starting is said when there is a push to judge.
        with contextlib.suppress(OSError, Missing):
            started = self._start()
            if isinstance(started, tuple):
                self._keep(Process(*started))
            else:
                self._expect(asyncio.ensure_future(started))

    def for_session(self, session: str) -> SessionJail:
        """The jail as one session uses it: with a share of its own."""
        return SessionJail(self, session)

    async def judge(
        self, pack: int | None, offset: int, case: Case, ask: Asker, session: str = ""
    ) -> tuple[Finding, ...]:
        """What a pack does, that begins at `offset` of a file. Raises Unjudged, Unheard, and
        Unsound."""
        try:
            await self._places.take(session, PLACE_WAIT)
        except OverShare as error:
            raise Unheard(f"judges: {error}") from None
        process = None
        try:
            async with asyncio.timeout(self._seconds) as limit:
                process = await self._take()
                return await _Hearing(process, case, ask).hold(pack, offset)
        except TimeoutError:
            if limit.expired():
                raise Unjudged(f"it took over {self._seconds:g} s to judge") from None
            raise
        except (OSError, EOFError):
            raise Unjudged(_ENDED) from None
        except Garbled:
            raise Unjudged("the judge is out of its mind") from None
        finally:
            if process is not None:
                self._end(process)
            self._places.leave(session)

    def close(self) -> None:
        """End every judge, and wait until it has; one that is yet to come ends when it does."""
        self._coming.clear()
        for process in self._waiting:
            self._end(process)
        self._waiting.clear()
        for process in list(self._ending):
            process.wait()
            self._forget(process)

    async def _take(self) -> Process:
        """One that waits, or a new one. Raises Unjudged."""
        if not self._waiting and self._coming:
            await asyncio.wait(self._coming, return_when=asyncio.FIRST_COMPLETED)
        while self._waiting:
            process = self._waiting.pop(0)
            if process.alive:
                return process
            self._end(process)
        try:
            started = self._start()
            if not isinstance(started, tuple):
                started = await self._come(asyncio.ensure_future(started))
        except (OSError, Missing) as error:
            raise Unjudged(f"no judge can be started: {error}") from None
        return Process(*started)

    async def _come(self, coming: asyncio.Future[Started]) -> Started:
        """Wait for one; if that is given up, it waits for the next push: none is lost."""
        try:
            return await asyncio.shield(coming)
        except asyncio.CancelledError:
            self._expect(coming)
            raise

    def _expect(self, coming: asyncio.Future[Started]) -> None:
        self._coming.add(coming)
        coming.add_done_callback(self._arrived)

    def _arrived(self, coming: asyncio.Future[Started]) -> None:
        expected = coming in self._coming
        self._coming.discard(coming)
        with contextlib.suppress(OSError, Missing, asyncio.CancelledError):
            process = Process(*coming.result())
            self._keep(process) if expected else self._end(process)

    def _keep(self, process: Process) -> None:
        self._waiting.append(process)
        loop = asyncio.get_running_loop()
        process.expiry = loop.call_later(WAITING_SECONDS, self._expire, process)

    def _expire(self, process: Process) -> None:
        if process in self._waiting:
            self._waiting.remove(process)
            self._end(process)

    def _end(self, process: Process) -> None:
        """Kill it. A process with much memory takes a while to end; we do not stand and wait."""
        process.kill()
        if not process.alive:
            process.forget()
            return
        self._ending.add(process)
        process.watch(asyncio.get_running_loop(), self._forget)

    def _forget(self, process: Process) -> None:
        process.forget()
        self._ending.discard(process)


class SessionJail:
    """The judges of one session's pushes."""

    def __init__(self, jail: Jail, session: str) -> None:
        self._jail = jail
        self._session = session

    def prepare(self) -> None:
        """A push is announced."""
        self._jail.prepare()

    async def judge(
        self, pack: int | None, offset: int, case: Case, ask: Asker
    ) -> tuple[Finding, ...]:
        """As `Jail.judge`."""
        return await self._jail.judge(pack, offset, case, ask, self._session)


class _Hearing:
    """One case before one judge."""

    def __init__(self, process: Process, case: Case, ask: Asker) -> None:
        self._control = process.control
        self._case = case
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._left = MAX_ANSWERS

    async def hold(self, pack: int | None, offset: int) -> tuple[Finding, ...]:
        """Tell the case, answer what is asked, and take the findings."""
        size = 0 if pack is None else os.fstat(pack).st_size - offset
        told = hearing.write_case(self._case, offset, size)
        # The descriptor goes with the first bytes, which find an empty buffer.
        head = HEAD.pack(Said.CASE.value, len(told))
        socket.send_fds(self._control, [head], [] if pack is None else [pack])
        await self._loop.sock_sendall(self._control, told)
        for _ in range(MAX_QUESTIONS + 1):
            said, content = await self._hear()
            if said == Said.FOUND:
                return hearing.read_findings(content, self._case)
            if said == Said.UNSOUND:
                raise Unsound(hearing.plain(content.decode("latin-1")))
            if said == Said.FAILED:
                raise Unjudged(f"the judge failed: {hearing.plain(content.decode('latin-1'))}")
            if said != Said.QUESTION:
                raise Garbled
            await self._answer(hearing.read_question(content, self._case.object_format))
        raise Garbled

    async def _answer(self, question: Question) -> None:
        """Pass on what upstream says, piece by piece."""
        left = min(MAX_ANSWER, self._left)
        end = Said.ANSWERED
        pieces = self._ask(question)
        try:
            async for piece in pieces:
                left -= len(piece)
                self._left -= len(piece)
                if left < 0:
                    end = Said.UNANSWERED
                    break
                await self._loop.sock_sendall(self._control, hearing.frame(Said.PIECE, piece))
        except Unanswered:
            end = Said.UNANSWERED
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        await self._loop.sock_sendall(self._control, hearing.frame(end))

    async def _hear(self) -> tuple[bytes, bytes]:
        said, size = HEAD.unpack(await self._exactly(HEAD.size))
        if size > MAX_SAID:
            raise Garbled
        return said, await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await self._loop.sock_recv(self._control, min(size - len(data), _AT_ONCE))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
