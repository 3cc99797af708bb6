"""Runs one confined process for each pushed pack, which can do nothing but talk to the gateway.

The app passes it to the gateway. The process is `judge.py`, started by `judge_process.py`, here or
in another process. This side sends it the push, passes its questions to the caller, who asks
upstream, and ends it in every case. It trusts only what `judge_protocol.py` parses. The pack is
never read on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.judge import judge_protocol
from keyhole.judge.judge_process import (
    JudgeProcess,
    start_judge,  # for callers that pass one in
)
from keyhole.judge.judge_protocol import GARBLED, HEAD, MAX_SAID, JudgeMessage
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import Malformed, OverLimit, ResourceUnusable, UpstreamFailed
from keyhole.policy.push_trial import PushUnjudged
from keyhole.system.share_pool import ShareBounds, SharePool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from keyhole.judge.judge_process import Started
    from keyhole.policy.push_trial import PushCase, PushFinding, UpstreamQuestion

    Asker = Callable[[UpstreamQuestion], AsyncIterator[bytes]]

MAX_SECONDS = 120.0
"""Seconds from when a push is whole to its verdict, upstream's answers included. A client waits for
it."""

MAX_QUESTIONS = 64
"""Questions of one judge: twice as many as a trial asks, so that only a judge that was taken over
reaches it."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer: 150,000 commits take half of it. A larger one counts as unanswered."""

MAX_ANSWERS = 128 * 1024 * 1024
"""Bytes of all answers in one trial; the judge keeps them in memory."""

PLACES = ShareBounds("shares.judges", total=4, each=2, waiting=16, spare=1)
"""Judges at work; other pushes wait. Each may take a core and a gibibyte, so the total is bounded;
the last place is for a session that has none. A waiting push keeps its pack on disk."""


def share_of_judges(workers: int) -> ShareBounds:
    """The places of one of so many processes that judge: four for all, and at least two for each,
    so that a push of one session does not keep all others of its process waiting (I12)."""
    if workers == 1:
        return PLACES
    total = max(2, PLACES.total // workers)
    return replace(PLACES, total=total, each=total // 2, spare=0)


PLACE_WAIT = 300.0
"""Seconds that a push waits for a judge: a little more than two trials may take."""

MAX_WAITING = 2
"""Judges that were started ahead and have nothing to do yet, of some 15 MiB each."""

WAITING_SECONDS = 60.0
"""Seconds that such a judge waits for the announced push."""

_AT_ONCE = 256 * 1024
_UNSOUND = Decision(reason=Reason.PUSH_MALFORMED)
"""The pack is malformed or beyond a bound."""
_ENDED = "the judge ended before its verdict"


class JudgePool:
    """Judges pushes, each in a process of its own. `close` ends all of them.

    `start` starts one, or has another process do it: the wait for that is never cancelled, and
    that process reaps it. It raises OSError or ResourceUnusable.
    """

    def __init__(
        self,
        seconds: float = MAX_SECONDS,
        start: Callable[[], Started | Awaitable[Started]] = start_judge,
        places: ShareBounds = PLACES,
    ) -> None:
        self._seconds = seconds
        self._start = start
        self._places = SharePool(places)
        self._waiting: list[JudgeProcess] = []
        self._coming: set[asyncio.Future[Started]] = set()
        self._ending: set[JudgeProcess] = set()

    def prepare(self) -> None:
        """Start a judge ahead of the push that is announced, if none waits already."""
        for process in [process for process in self._waiting if not process.alive]:
            self._expire(process)
        if len(self._waiting) + len(self._coming) >= MAX_WAITING:
            return
        # A failure to start is reported when there is a push to judge.
        with contextlib.suppress(OSError, ResourceUnusable):
            started = self._start()
            if isinstance(started, tuple):
                self._keep(JudgeProcess(*started))
            else:
                self._expect(asyncio.ensure_future(started))

    def for_session(self, session: str) -> SessionJudges:
        """The judges as one session uses them: with a share of its own."""
        return SessionJudges(self, session)

    async def judge(
        self, pack: int | None, offset: int, case: PushCase, ask: Asker, session: str = ""
    ) -> tuple[PushFinding, ...]:
        """Judge a pack that begins at `offset` of a file. Raises PushUnjudged."""
        try:
            await self._places.take(session, PLACE_WAIT)
        except OverLimit as error:
            raise PushUnjudged(f"judges: {error}", error.decision) from None
        process = None
        try:
            async with asyncio.timeout(self._seconds) as limit:
                process = await self._take()
                return await _JudgeRun(process, case, ask).hold(pack, offset)
        except TimeoutError:
            if limit.expired():
                raise PushUnjudged(f"it took over {self._seconds:g} s to judge") from None
            raise
        except (OSError, EOFError):
            raise PushUnjudged(_ENDED) from None
        except Malformed:
            raise PushUnjudged("the judge is out of its mind") from None
        finally:
            if process is not None:
                self._end(process)
            self._places.leave(session)

    def close(self) -> None:
        """End every judge, and wait for that; one that is still being started ends when it
        arrives."""
        self._coming.clear()
        for process in self._waiting:
            self._end(process)
        self._waiting.clear()
        for process in list(self._ending):
            process.wait()
            self._forget(process)

    async def _take(self) -> JudgeProcess:
        """A judge that waits, or a new one. Raises PushUnjudged."""
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
        except (OSError, ResourceUnusable) as error:
            raise PushUnjudged(f"no judge can be started: {error}") from None
        return JudgeProcess(*started)

    async def _come(self, coming: asyncio.Future[Started]) -> Started:
        """Wait for a judge. If the wait is cancelled, the judge is kept for the next push."""
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
        with contextlib.suppress(OSError, ResourceUnusable, asyncio.CancelledError):
            process = JudgeProcess(*coming.result())
            self._keep(process) if expected else self._end(process)

    def _keep(self, process: JudgeProcess) -> None:
        self._waiting.append(process)
        loop = asyncio.get_running_loop()
        process.expiry = loop.call_later(WAITING_SECONDS, self._expire, process)

    def _expire(self, process: JudgeProcess) -> None:
        if process in self._waiting:
            self._waiting.remove(process)
            self._end(process)

    def _end(self, process: JudgeProcess) -> None:
        """Kill it, without waiting for its end: a process with much memory takes a while."""
        process.kill()
        if not process.alive:
            process.forget()
            return
        self._ending.add(process)
        process.watch(asyncio.get_running_loop(), self._forget)

    def _forget(self, process: JudgeProcess) -> None:
        process.forget()
        self._ending.discard(process)


class SessionJudges:
    """The judges of one session's pushes."""

    def __init__(self, pool: JudgePool, session: str) -> None:
        self._pool = pool
        self._session = session

    def prepare(self) -> None:
        """A push is announced."""
        self._pool.prepare()

    async def judge(
        self, pack: int | None, offset: int, case: PushCase, ask: Asker
    ) -> tuple[PushFinding, ...]:
        """As `JudgePool.judge`."""
        return await self._pool.judge(pack, offset, case, ask, self._session)


class _JudgeRun:
    """One push that one judge judges."""

    def __init__(self, process: JudgeProcess, case: PushCase, ask: Asker) -> None:
        self._control = process.control
        self._case = case
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._left = MAX_ANSWERS

    async def hold(self, pack: int | None, offset: int) -> tuple[PushFinding, ...]:
        """Send the case, answer questions, and read the findings."""
        size = 0 if pack is None else os.fstat(pack).st_size - offset
        told = judge_protocol.write_case(self._case, offset, size)
        # The descriptor goes with the first bytes, which find an empty buffer.
        head = HEAD.pack(JudgeMessage.CASE.value, len(told))
        socket.send_fds(self._control, [head], [] if pack is None else [pack])
        await self._loop.sock_sendall(self._control, told)
        for _ in range(MAX_QUESTIONS + 1):
            said, content = await self._hear()
            if said == JudgeMessage.FOUND:
                return judge_protocol.read_findings(content, self._case)
            if said == JudgeMessage.UNSOUND:
                why = judge_protocol.one_plain_line(content.decode("latin-1"))
                raise PushUnjudged(why, _UNSOUND)
            if said == JudgeMessage.FAILED:
                raise PushUnjudged(
                    f"the judge failed: {judge_protocol.one_plain_line(content.decode('latin-1'))}"
                )
            if said != JudgeMessage.QUESTION:
                raise Malformed(GARBLED)
            await self._answer(judge_protocol.read_question(content, self._case.object_format))
        raise Malformed(GARBLED)

    async def _answer(self, question: UpstreamQuestion) -> None:
        """Pass on the response of upstream, piece by piece."""
        left = min(MAX_ANSWER, self._left)
        end = JudgeMessage.ANSWERED
        pieces = self._ask(question)
        try:
            async for piece in pieces:
                left -= len(piece)
                self._left -= len(piece)
                if left < 0:
                    end = JudgeMessage.UNANSWERED
                    break
                await self._loop.sock_sendall(
                    self._control, judge_protocol.frame(JudgeMessage.PIECE, piece)
                )
        except UpstreamFailed:  # the trial goes on without
            end = JudgeMessage.UNANSWERED
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        await self._loop.sock_sendall(self._control, judge_protocol.frame(end))

    async def _hear(self) -> tuple[bytes, bytes]:
        said, size = HEAD.unpack(await self._exactly(HEAD.size))
        if size > MAX_SAID:
            raise Malformed(GARBLED)
        return said, await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await self._loop.sock_recv(self._control, min(size - len(data), _AT_ONCE))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
