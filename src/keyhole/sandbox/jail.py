"""The jail that pushes are judged in: one process for each, that can do nothing but speak to us.

Handed to the gateway by the app. The process is `judge.py`; this side starts it, tells it the case,
puts its questions to whoever can ask upstream, and ends it, whatever happens. It believes no more
of what comes back than `hearing.py` reads out of it. The pack is never read on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from keyhole.policy.trial import Unanswered, Unjudged, Unsound
from keyhole.sandbox import hearing
from keyhole.sandbox.hearing import HEAD, MAX_SAID, Garbled, Said
from keyhole.sandbox.jailfilter import build_judge_filter
from keyhole.sandbox.judge import SOCKET
from keyhole.sandbox.programs import Missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from keyhole.policy.trial import Case, Finding, Question

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

MAX_AT_ONCE = 4
"""Judges at work; other pushes wait. Each may take a core and a gibibyte."""

MAX_WAITING = 2
"""Judges that were started ahead and have nothing to do yet, of some 15 MiB each."""

WAITING_SECONDS = 60.0
"""How long one waits for the push that was announced."""

_AT_ONCE = 256 * 1024
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
from keyhole.sandbox.judge import main
main()
"""
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and an exec would pass that on."""

_ENDED = "the judge ended before its verdict"


class Jail:
    """Judges pushes, each in a process of its own. `close` ends all of them."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting: list[_Process] = []
        self._ending: set[_Process] = set()

    def prepare(self) -> None:
        """Start a judge ahead of the push that is announced, if none waits already."""
        for process in [process for process in self._waiting if not process.alive]:
            self._expire(process)
        if len(self._waiting) >= MAX_WAITING:
            return
        # What keeps one from starting is said when there is a push to judge.
        with contextlib.suppress(OSError, Missing):
            process = _Process()
            self._waiting.append(process)
            loop = asyncio.get_running_loop()
            process.expiry = loop.call_later(WAITING_SECONDS, self._expire, process)

    async def judge(
        self, pack: int | None, offset: int, case: Case, ask: Asker
    ) -> tuple[Finding, ...]:
        """What a pack does, that begins at `offset` of a file. Raises Unjudged, and Unsound."""
        async with self._slots:
            try:
                process = self._take()
            except (OSError, Missing) as error:
                raise Unjudged(f"no judge can be started: {error}") from None
            try:
                async with asyncio.timeout(self._seconds) as limit:
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
                self._end(process)

    def close(self) -> None:
        """End every judge, and wait until it has."""
        for process in self._waiting:
            self._end(process)
        self._waiting.clear()
        for process in list(self._ending):
            process.wait()
            self._forget(process)

    def _take(self) -> _Process:
        while self._waiting:
            process = self._waiting.pop(0)
            if process.alive:
                return process
            self._end(process)
        return _Process()

    def _expire(self, process: _Process) -> None:
        if process in self._waiting:
            self._waiting.remove(process)
            self._end(process)

    def _end(self, process: _Process) -> None:
        """Kill it. A process with much memory takes a while to end; we do not stand and wait."""
        process.kill()
        if process.ended:
            process.forget()
            return
        self._ending.add(process)
        process.watch(self._forget)

    def _forget(self, process: _Process) -> None:
        process.wait()
        process.forget()
        self._ending.discard(process)


class _Process:
    """One judge, a child of the thread that started it: with the thread it ends (PDEATHSIG)."""

    def __init__(self) -> None:
        program = build_judge_filter()
        self.expiry: asyncio.TimerHandle | None = None
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._pid = _start(theirs)
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._pid)
        self.ended = False
        # Into an empty buffer that is larger: it neither waits nor is cut.
        with contextlib.suppress(OSError):
            self.control.send(hearing.frame(Said.FILTER, program))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return not self.ended and os.waitid(os.P_PID, self._pid, how) is None

    def kill(self) -> None:
        """End it now, and take note if it already has."""
        if self.expiry is not None:
            self.expiry.cancel()
        self.control.close()
        os.kill(self._pid, signal.SIGKILL)
        self.ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0

    def wait(self) -> None:
        """Wait for the end of one that was killed."""
        if not self.ended:
            os.waitpid(self._pid, 0)
            self.ended = True

    def watch(self, done: Callable[[_Process], None]) -> None:
        """Have its end told."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, done, self)

    def forget(self) -> None:
        """Let go of the last of it."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)


def _start(control: socket.socket) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        actions.append((os.POSIX_SPAWN_DUP2, control.fileno(), SOCKET))
        # Whatever else this process was started with, the judge closes itself.
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
        return os.posix_spawn(
            sys.executable, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS
        )
    finally:
        os.close(null)


class _Hearing:
    """One case before one judge."""

    def __init__(self, process: _Process, case: Case, ask: Asker) -> None:
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
