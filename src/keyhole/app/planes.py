"""A data plane as the control process sees it: started, asked, watched, and ended from outside.

`Plane` is one process; `Planes` is the one that serves now, and starts another when it was lost.
Nothing that a data plane does or says keeps the control process waiting: calls have deadlines,
what it says is bounded and read by the shapes of `calls.py`, and SIGKILL needs no help of it.
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

from keyhole.app.calls import ANSWERS, CLOSED, MAX_ANSWER, READY, SAID
from keyhole.app.companion import start
from keyhole.app.heartbeat import STUCK_SECONDS, Watch, make_pulse
from keyhole.app.message import Frames
from keyhole.control.interface import NoSuch, Refused
from keyhole.control.request import read_json
from keyhole.control.shape import Misshapen
from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.app.calls import Closed, Ready, Said
    from keyhole.app.keeping import Keeping

START_SECONDS = 60.0
"""How long a data plane may take to be ready, as `keyhole up` gives the whole gateway."""

GONE_SECONDS = 5.0
"""How long the kernel may take to end a process that was killed. Its sockets are closed by then,
but for one whose thread waits for a disk: that one serves nobody either."""

MAX_LOSSES = 4
LOSSES_SECONDS = 60.0
"""After so many data planes that broke or got stuck within so many seconds, no other is started.
Those that a person had closed are not counted: each took a command."""

MAX_WAITING = 4096
"""Calls that wait for a data plane which does not read; beyond it they are refused."""

STUCK = f"it did not respond for {STUCK_SECONDS:g} s"
UNANSWERED = "it did not answer"
BROKEN = "it broke off"
SPOKE = "it said what it may not say"
LATE = f"it was not ready within {START_SECONDS:g} s"


class PlaneFailed(Exception):
    """A data plane could not be started; the message says why."""


class Lost(Exception):
    """The data plane ended before it answered."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What is done with what a data plane says."""

    closed: Callable[[Closed], None]
    said: Callable[[Said], None]
    turned: Callable[[], None]
    lost: Callable[[Plane, str], None]
    """It has ended, by itself or not: the reason in words."""


class Plane:
    """One data plane."""

    def __init__(
        self, calls: socket.socket, answers: socket.socket, pulse: int, process: int
    ) -> None:
        """`process` is its number."""
        self._calls, self._answers, self._pulse = calls, answers, pulse
        self.pid = process
        self._pidfd = os.pidfd_open(process)
        self._frames = Frames(MAX_ANSWER)
        self._number = 0
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._acknowledged: dict[int, asyncio.Event] = {}
        self._waiting: deque[tuple[bytes, list[socket.socket]]] = deque()
        self._watch: Watch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: Heard | None = None
        self._why = BROKEN
        self.ready: asyncio.Future[Ready] | None = None
        self.gone = asyncio.Event()

    @classmethod
    def start(cls, told: Mapping[str, Any], keeping: Keeping, env: Mapping[str, str]) -> Plane:
        """Start the process; `told` says where things are. Raises OSError."""
        link, judges = keeping.open_link()
        calls, their_calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, their_answers = socket.socketpair()
        pulse, their_pulse = make_pulse()
        ends = (their_calls, their_answers, os.fdopen(their_pulse, "wb", 0), link, judges)
        try:
            pid = start("keyhole.app.daemonplane", ends, env)
        except OSError:
            calls.close()
            answers.close()
            os.close(pulse)
            raise
        calls.send(json.dumps(told).encode())
        return cls(calls, answers, pulse, pid)

    def attach(self, loop: asyncio.AbstractEventLoop, heard: Heard) -> None:
        """Listen to it on a loop."""
        self._loop, self._heard = loop, heard
        self.ready = loop.create_future()
        for each in (self._calls, self._answers):
            each.setblocking(False)
        loop.add_reader(self._answers, self._readable)
        loop.add_reader(self._pidfd, self._died)

    @property
    def quiet(self) -> bool:
        """Whether it has not turned for longer than a busy host explains, or is not there."""
        return self.gone.is_set() or (self._watch is not None and self._watch.quiet)

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self, name: str, words: Mapping[str, Any], sockets: Sequence[socket.socket] = ()
    ) -> Any:  # noqa: ANN401 - by what is called
        """Have it do something; the answer. Raises NoSuch, Refused or Lost."""
        number, answer = self._ask(name, words, sockets)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def call_acknowledged(
        self, name: str, words: Mapping[str, Any], receipt: float, done: float
    ) -> Any:  # noqa: ANN401
        """The same within `receipt` seconds until it says that it heard, and `done` for the rest.

        Raises TimeoutError, too.
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
        """Have it do something, and wait for nothing."""
        self._send(json.dumps({"do": name, "number": 0, **words}, ensure_ascii=False), ())

    def _ask(
        self, name: str, words: Mapping[str, Any], sockets: Sequence[socket.socket]
    ) -> tuple[int, asyncio.Future[Any]]:
        if self._loop is None or self.gone.is_set():
            raise Lost
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
        # Kept open here until they are sent, whatever whoever called does with its own.
        self._waiting.append((message.encode(), [each.dup() for each in sockets]))
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
                break  # its end is heard by its pidfd
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
        except (Misshapen, ValueError, TypeError, KeyError):
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
                heard.closed(CLOSED.read(event, "closed"))  # type: ignore[arg-type]
            case {"said": event}:
                heard.said(SAID.read(event, "said"))  # type: ignore[arg-type]
            case {"ready": words} if not self.ready.done():
                # From now on it must beat.
                self._watch = Watch(self._loop, self._pulse, lambda: self.end(STUCK), heard.turned)
                self.ready.set_result(READY.read(words, "ready"))  # type: ignore[arg-type]
            case {"failed": str(why)} if not self.ready.done():
                self.ready.set_exception(PlaneFailed(visible(why)))
            case _:
                raise Misshapen("a message that is none of ours")

    def _answered(self, number: int, message: object) -> None:
        name, answer = self._asked.get(number, ("", None))
        if answer is None or answer.done():
            return  # nobody waits any more
        match message:
            case {"refused": str(why)}:
                answer.set_exception(Refused(visible(why)[:1000]))
            case {"unknown": True}:
                answer.set_exception(NoSuch())
            case {"fault": True}:
                answer.set_exception(RuntimeError(f"the data plane failed at {name}"))
            case {"value": value}:
                record = ANSWERS[name]
                answer.set_result(None if record is None else record.read(value, name))
            case _:
                raise Misshapen("an answer that is none")

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def end(self, why: str) -> None:
        """Kill it: the kernel closes every connection and every door of it (I2)."""
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
        # Its last words, why it failed among them, come before its end.
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
                answer.set_exception(Lost())
        if not self.ready.done():
            self.ready.set_exception(PlaneFailed("the data plane ended before it was ready"))
        self.ready.exception()  # read here, as nobody else may wait for it
        self._heard.lost(self, self._why)

    def _more(self) -> bool:
        try:
            return bool(self._answers.recv(1, socket.MSG_PEEK))
        except OSError:
            return False


class Planes:
    """The data plane that serves now."""

    def __init__(self, told: Mapping[str, Any], keeping: Keeping, env: Mapping[str, str]) -> None:
        self._told, self._keeping, self._env = dict(told), keeping, env
        self._losses: deque[float] = deque(maxlen=MAX_LOSSES)
        self.restarts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: Heard | None = None
        self.now = self._start()

    def _start(self) -> Plane:
        return Plane.start(self._told, self._keeping, self._env)

    def attach(self, loop: asyncio.AbstractEventLoop, heard: Heard) -> None:
        """Listen to it, and to those that come after it."""
        self._loop, self._heard = loop, heard
        self.now.attach(loop, heard)

    async def first(self) -> Ready:
        """Wait until the first one serves. Raises PlaneFailed."""
        if self.now.ready is None:
            raise PlaneFailed(f"the data plane cannot serve: {BROKEN}")
        try:
            async with asyncio.timeout(START_SECONDS):
                return await asyncio.shield(self.now.ready)
        except TimeoutError:
            raise PlaneFailed(f"the data plane cannot serve: {LATE}") from None

    def replace(self, why: str) -> str:
        """Start another in the place of one that was lost; why there is none, else nothing."""
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

    def _see_ready(self, plane: Plane) -> None:
        if plane.ready is not None and not plane.ready.done():
            plane.end(LATE)

    async def close(self) -> None:
        """Let it end in order, and kill it where it does not."""
        plane = self.now
        if not plane.gone.is_set():
            plane.tell("end", {})
            if plane.quiet or not await plane.ended(GONE_SECONDS):
                plane.end(UNANSWERED)
                await plane.ended(GONE_SECONDS)
