"""The interface of a run's gateway: a data plane of its own, or a gateway that already runs.

`run.py` holds the sandbox and uses only `RunGateway`. In both cases another process serves the door
(I12), and sends messages for the user over a channel: `RemoteGateway` is the common part, and
`SharedGateway` that of gateways which serve other runs too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct

from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.session.end_reason import EndReason

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.sandbox.launch import Launch

FINISH_SECONDS = 2.0
"""How long the process that serves the door may take to send its log's last digest."""


class RunGateway(Protocol):
    """A gateway, as a run sees it."""

    def begin(self, launch: Launch) -> None:
        """Called before a sandbox is made: make sure that events can be recorded (I8)."""

    def admit(self, door: list[socket.socket]) -> None:
        """Take the door; when this returns, the sandbox may start (I2)."""

    async def open(self, ended: Callable[[EndReason], None]) -> None:
        """Serve the door from now on; `ended` is called with the reason when it is no longer
        served."""

    def note(self, what: str, **details: str | int) -> None:
        """Record an event of the sandbox."""

    async def close(self, code: int) -> str:
        """The sandbox has ended: return the audit log's last digest."""


class RemoteGateway:
    """A session with its door served by another process."""

    def __init__(
        self,
        ttl: float,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`ttl` is used if the other process, which has its own timer, is gone. `warn` shows
        messages even with `--quiet`; None: as `report`."""
        self._ttl = ttl
        self._report = report
        self._warn = warn or report
        self.repeated: Callable[[str, int], None] = lambda *_: None
        """Called at the end with each line that was reported once and came more often."""
        self._line: SandboxChannel | None = None
        self._ended: Callable[[EndReason], None] = lambda _: None
        self._head: asyncio.Future[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._opened_at = 0.0

    def _attend(self, ended: Callable[[EndReason], None]) -> asyncio.AbstractEventLoop:
        """Read messages from the channel from now on."""
        loop = asyncio.get_running_loop()
        self._ended = ended
        self._opened_at = loop.time()
        self._head = loop.create_future()
        return loop

    async def _finish(self, code: int) -> str | None:
        """Report how the sandbox ended, and wait for the last digest; None if none came."""
        if self._timer is not None:
            self._timer.cancel()
        self._closing = True
        if self._line is None or self._head is None:
            return None
        self._line.say(ended=code)
        try:
            return await asyncio.wait_for(self._head, FINISH_SECONDS)
        except TimeoutError:
            return None
        finally:
            self._line.close()

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"say": str(line), "times": int(times)}:
                self.repeated(line, times)
            case {"say": str(line)}:
                self._report(line)
            case {"closed": str(why)} if why in tuple(EndReason):
                self._ended(EndReason(why))
            case {"head": str(digest)} if self._head is not None and not self._head.done():
                self._head.set_result(digest)

    def _lost(self, why: str) -> None:
        """The other process has ended: the door is closed and stays closed (I2)."""
        if self._head is not None and not self._head.done():
            self._head.set_result("")
        if self._closing:
            return
        if why:
            self._warn(why)
        loop = asyncio.get_running_loop()
        left = max(0.0, self._opened_at + self._ttl - loop.time())
        self._timer = loop.call_later(left, self._ended, EndReason.EXPIRED)


class SharedGatewayRun(Struct, frozen=True):
    """A run at a gateway that serves other runs too."""

    @property
    def simple(self) -> bool:
        """Whether the helper may go on early. Here it waits until the gateway has the door."""
        return False

    @property
    def addresses(self) -> tuple[str, ...]:
        """None: a run that publishes ports has a gateway of its own."""
        return ()

    @property
    def shared(self) -> bool:
        """Whether its gateway serves other runs, too."""
        return True


class SharedGateway(RemoteGateway):
    """A gateway that serves other runs too. It has a log of its own, and a channel to it, `_sock`,
    is made when the door is handed over."""

    gone: ClassVar[str]
    """Shown when the process at the other end of the channel has ended."""

    _sock: socket.socket | None = None

    def begin(self, launch: Launch) -> None:
        """Do nothing: the gateway has its log open."""

    async def open(self, ended: Callable[[EndReason], None]) -> None:
        """The door is served already; read messages from the channel."""
        if self._sock is None:
            raise RuntimeError("the door is handed over first")
        loop = self._attend(ended)
        self._line = SandboxChannel(loop, self._sock, self._heard, lambda: self._lost(self.gone))

    def note(self, what: str, **details: str | int) -> None:
        """Ask the gateway to record it."""
        if self._line is not None:
            self._line.say(note=what, **details)

    async def close(self, code: int) -> str:
        """Report how the sandbox ended, and wait for the last digest."""
        if self._line is None and self._sock is not None:
            self._sock.close()
        return await self._finish(code) or ""
