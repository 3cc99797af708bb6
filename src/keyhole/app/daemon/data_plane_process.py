"""A data plane, as seen by the control process: started, called, watched, and ended from outside.

`DaemonDataPlaneProcess` is one process; `DataPlaneSupervisor` has the one that serves now as one
worker of the gateway, and starts another when it is lost. A data plane cannot keep the control
process waiting: calls have deadlines, its messages are bounded and parsed by the shapes of
`plane_messages.py`, and it can be killed at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.daemon.plane_messages import (
    ANSWERS,
    CLOSED,
    LOG_ENDED,
    MAX_ANSWER,
    READY,
    SAID,
)
from keyhole.app.processes.child import start_child
from keyhole.app.processes.heartbeat import STUCK_SECONDS, HeartbeatMonitor, make_heartbeat_pipe
from keyhole.app.processes.message_frames import MessageBuffer
from keyhole.app.session.ask_board import ASK_REPORT
from keyhole.control.interface import NoSuchSession
from keyhole.control.request import read_json
from keyhole.model.errors import Refused, SetupFailed, Unparsable
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.app.daemon.keeper_process import KeeperProcess
    from keyhole.app.daemon.plane_messages import DataPlaneReady, DoorClosed, SessionMessage
    from keyhole.app.session.ask_board import AskReport

START_SECONDS = 60.0
"""How long a data plane may take to be ready, as `keyhole up` gives the whole gateway."""

GONE_SECONDS = 5.0
"""How long the kernel may take to end a process that was killed. Its sockets are closed by then,
unless a thread waits for a disk; in that case the process serves no client either."""

MAX_LOSSES = 4
LOSSES_SECONDS = 60.0
"""If this many data planes of one worker break or get stuck within this many seconds, no other is
started for it. Those that a person closed are not counted: each took a command."""

MAX_WAITING = 4096
"""Calls that may wait for a data plane which does not read; further ones are refused."""

STUCK = f"it did not respond for {STUCK_SECONDS:g} s"
UNANSWERED = "it did not answer"
BROKEN = "it broke off"
SPOKE = "it said what it may not say"
LATE = f"it was not ready within {START_SECONDS:g} s"


_LOST = "the data plane ended before it answered"


class DataPlaneListener(Struct, frozen=True):
    """Callbacks for the messages of a data plane, of which the first ones say whose they are."""

    closed: Callable[[DaemonDataPlaneProcess, DoorClosed], None]
    said: Callable[[DaemonDataPlaneProcess, SessionMessage], None]
    asked: Callable[[DaemonDataPlaneProcess, AskReport], None]
    lacking: Callable[[], None]
    """Called when it lacks some of a limit that all workers have together."""
    log_ended: Callable[[str], None]
    """Called with the digest of the last line of its audit log."""
    turned: Callable[[], None]
    lost: Callable[[DaemonDataPlaneProcess, str], None]
    """Called when it has ended, with the reason in words."""


class DaemonDataPlaneProcess:
    """One data plane."""

    def __init__(
        self, calls: socket.socket, answers: socket.socket, pulse: int, process: int
    ) -> None:
        """`process` is its number."""
        self._calls, self._answers, self._pulse = calls, answers, pulse
        self.pid = process
        self._pidfd = os.pidfd_open(process)
        self._frames = MessageBuffer(MAX_ANSWER)
        self._number = 0
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._acknowledged: dict[int, asyncio.Event] = {}
        self._waiting: deque[tuple[bytes, list[socket.socket]]] = deque()
        self._watch: HeartbeatMonitor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: DataPlaneListener | None = None
        self._why = BROKEN
        self._log_ended = False
        self.ready: asyncio.Future[DataPlaneReady] | None = None
        self.gone = asyncio.Event()

    @classmethod
    def start(
        cls, told: Mapping[str, Any], keeping: KeeperProcess, env: Mapping[str, str]
    ) -> DaemonDataPlaneProcess:
        """Start the process; `told` has its directories, limits and shares. Raises OSError."""
        link, judges = keeping.open_link()
        calls, their_calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, their_answers = socket.socketpair()
        pulse, their_pulse = make_heartbeat_pipe()
        ends = (their_calls, their_answers, os.fdopen(their_pulse, "wb", 0), link, judges)
        try:
            pid = start_child("keyhole.app.daemon.data_plane", ends, env)
        except OSError:
            calls.close()
            answers.close()
            os.close(pulse)
            raise
        calls.send(json.dumps(told).encode())
        return cls(calls, answers, pulse, pid)

    def attach(self, loop: asyncio.AbstractEventLoop, heard: DataPlaneListener) -> None:
        """Read its messages on a loop."""
        self._loop, self._heard = loop, heard
        self.ready = loop.create_future()
        for each in (self._calls, self._answers):
            each.setblocking(False)
        loop.add_reader(self._answers, self._readable)
        loop.add_reader(self._pidfd, self._died)

    @property
    def quiet(self) -> bool:
        """Whether it has not responded for longer than a busy host explains, or has ended."""
        return self.gone.is_set() or (self._watch is not None and self._watch.quiet)

    @property
    def serves(self) -> bool:
        """Whether it is ready and responds."""
        return self._watch is not None and not self.quiet

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, name: str, words: Mapping[str, Any], sockets: Sequence[socket.socket] = ()
    ) -> Any:  # noqa: ANN401 - by what is called
        """Call it, and return its answer. Raises NoSuchSession, Refused or ConnectionError."""
        number, answer = self._ask(name, words, sockets)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def call_acknowledged(
        self, name: str, words: Mapping[str, Any], receipt: float, done: float
    ) -> Any:  # noqa: ANN401
        """The same, with `receipt` seconds until it confirms the call, and `done` seconds until it
        answers.

        Also raises TimeoutError.
        """
        number, answer = self._ask(name, words, ())
        received = self._acknowledged[number] = asyncio.Event()
        try:
            async with asyncio.timeout(receipt):
                await received.wait()
            async with asyncio.timeout(done):
                return await answer
        finally:
            answer.cancel()
            self._asked.pop(number, None)
            self._acknowledged.pop(number, None)

    def tell(self, name: str, words: Mapping[str, Any]) -> None:
        """Call it without waiting for an answer."""
        self._send(json.dumps({"do": name, "number": 0, **words}, ensure_ascii=False), ())

    def _ask(
        self, name: str, words: Mapping[str, Any], sockets: Sequence[socket.socket]
    ) -> tuple[int, asyncio.Future[Any]]:
        if self._loop is None or self.gone.is_set():
            raise ConnectionResetError(_LOST)
        if len(self._waiting) >= MAX_WAITING:
            raise Refused(f"the data plane is too slow: {UNANSWERED}")
        self._number += 1
        answer = self._loop.create_future()
        self._asked[self._number] = name, answer
        message = {"do": name, "number": self._number, **words}
        self._send(json.dumps(message, ensure_ascii=False), sockets)
        return self._number, answer

    def _send(self, message: str, sockets: Sequence[socket.socket]) -> None:
        if self.gone.is_set() or len(self._waiting) > MAX_WAITING:
            return
        # A path that is not UTF-8 has surrogates, and `json.loads` takes them as they are.
        data = message.encode("utf-8", "surrogatepass")
        # Kept open here until they are sent; the caller may close its own.
        self._waiting.append((data, [each.dup() for each in sockets]))
        self._writable()

    def _writable(self) -> None:
        if self._loop is None:
            return
        while self._waiting:
            message, sockets = self._waiting[0]
            try:
                socket.send_fds(self._calls, [message], [each.fileno() for each in sockets])
            except BlockingIOError:
                self._loop.add_writer(self._calls, self._writable)
                return
            except OSError:
                break  # its pidfd reports its end
            self._waiting.popleft()
            for each in sockets:
                each.close()
        self._loop.remove_writer(self._calls)

    # ── heard ─────────────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        if self._loop is None:
            return
        try:
            data = self._answers.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._answers)
            return
        try:
            for frame in self._frames.feed(data):
                self._hear(read_json(frame))
        except (ValueError, TypeError, KeyError):
            self.end(SPOKE)

    def _hear(self, message: object) -> None:
        heard = self._heard
        if heard is None or self._loop is None or self.ready is None:
            return
        match message:
            case {"answer": int(number)}:
                self._answered(number, message)
            case {"received": int(number)}:
                event = self._acknowledged.get(number)
                if event is not None:
                    event.set()
            case {"closed": event}:
                heard.closed(self, CLOSED.read(event, "closed"))
            case {"said": event}:
                heard.said(self, SAID.read(event, "said"))
            case {"asked": event}:
                heard.asked(self, ASK_REPORT.read(event, "asked"))
            case {"lacking": True}:
                heard.lacking()
            case {"log_ended": event} if not self._log_ended:
                self._log_ended = True  # one line of this process's log for each data plane
                heard.log_ended(LOG_ENDED.read(event, "log_ended").head)
            case {"ready": words} if not self.ready.done():
                # It must beat from now on.
                self._watch = HeartbeatMonitor(
                    self._loop, self._pulse, lambda: self.end(STUCK), heard.turned
                )
                self.ready.set_result(READY.read(words, "ready"))
            case {"failed": str(why)} if not self.ready.done():
                self.ready.set_exception(SetupFailed(visible(why)))
            case _:
                raise Unparsable("a message that is none of ours")

    def _answered(self, number: int, message: object) -> None:
        name, answer = self._asked.get(number, ("", None))
        if answer is None or answer.done():
            return  # no caller is left
        match message:
            case {"refused": str(why)}:
                answer.set_exception(Refused(visible(why)[:1000]))
            case {"unknown": True}:
                answer.set_exception(NoSuchSession())
            case {"fault": True}:
                answer.set_exception(RuntimeError(f"the data plane failed at {name}"))
            case {"value": value}:
                record = ANSWERS[name]
                answer.set_result(None if record is None else record.read(value, name))
            case _:
                raise Unparsable("an answer that is none")

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def end(self, why: str) -> None:
        """Kill it: the kernel closes all its connections and doors (I2)."""
        if not self.gone.is_set():
            self._why = why
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def ended(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return False
        return True

    def _died(self) -> None:
        if self._loop is None or self._heard is None or self.ready is None:
            return
        # Its last messages, which may say why it failed, are read before its end is handled.
        while self._answers.fileno() >= 0 and self._more():
            self._readable()
        self.gone.set()
        for each in (self._pidfd, self._answers, self._calls):
            self._loop.remove_reader(each)
        self._loop.remove_writer(self._calls)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        if self._watch is not None:
            self._watch.close()
        else:
            os.close(self._pulse)
        self._calls.close()
        self._answers.close()
        for _, sockets in self._waiting:
            for each in sockets:
                each.close()
        self._waiting.clear()
        for _, answer in list(self._asked.values()):
            if not answer.done():
                answer.set_exception(ConnectionResetError(_LOST))
        if not self.ready.done():
            self.ready.set_exception(SetupFailed("the data plane ended before it was ready"))
        self.ready.exception()  # read here, as no other code waits for it
        self._heard.lost(self, self._why)

    def _more(self) -> bool:
        try:
            return bool(self._answers.recv(1, socket.MSG_PEEK))
        except OSError:
            return False


class DataPlaneSupervisor:
    """The data plane that serves now as one worker."""

    def __init__(
        self, told: Callable[[], Mapping[str, Any]], keeping: KeeperProcess, env: Mapping[str, str]
    ) -> None:
        """`told` makes the first message to a new one."""
        self._told, self._keeping, self._env = told, keeping, env
        self._losses: deque[float] = deque(maxlen=MAX_LOSSES)
        self.restarts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: DataPlaneListener | None = None
        self.now = self._start()

    def _start(self) -> DaemonDataPlaneProcess:
        return DaemonDataPlaneProcess.start(self._told(), self._keeping, self._env)

    def attach(self, loop: asyncio.AbstractEventLoop, heard: DataPlaneListener) -> None:
        """Read its messages, and those of its successors."""
        self._loop, self._heard = loop, heard
        self.now.attach(loop, heard)

    async def first(self) -> DataPlaneReady:
        """Wait until the first one serves. Raises SetupFailed."""
        if self.now.ready is None:
            raise SetupFailed(f"the data plane cannot serve: {BROKEN}")
        try:
            async with asyncio.timeout(START_SECONDS):
                return await asyncio.shield(self.now.ready)
        except TimeoutError:
            raise SetupFailed(f"the data plane cannot serve: {LATE}") from None

    def replace(self, why: str) -> str:
        """Start another in place of one that was lost. Returns why there is none, or an empty
        text."""
        if self._loop is None or self._heard is None:
            return BROKEN
        now = time.monotonic()
        if why != UNANSWERED:
            self._losses.append(now)
        if len([each for each in self._losses if now - each < LOSSES_SECONDS]) >= MAX_LOSSES:
            return f"{MAX_LOSSES} were lost within {LOSSES_SECONDS:g} s"
        if not self._keeping.alive:
            return "its keeper has ended, too"
        try:
            self.now = self._start()
        except OSError as error:
            return f"no other could be started: {error.strerror}"
        self.restarts += 1
        plane = self.now
        plane.attach(self._loop, self._heard)
        self._loop.call_later(START_SECONDS, self._see_ready, plane)
        return ""

    def _see_ready(self, plane: DaemonDataPlaneProcess) -> None:
        if plane.ready is not None and not plane.ready.done():
            plane.end(LATE)

    async def close(self) -> None:
        """Let it end in order, and kill it if it does not."""
        plane = self.now
        if not plane.gone.is_set():
            plane.tell("end", {})
            if plane.quiet or not await plane.ended(GONE_SECONDS):
                plane.end(UNANSWERED)
                await plane.ended(GONE_SECONDS)
