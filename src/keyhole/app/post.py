"""Where a run's door is served: by a data plane of its own, or by a gateway that is there already.

`run.py` holds the sandbox and asks no more of a gateway than `Post`. Either way another process
serves the door (I12), and says what concerns the person over a line: `Served` is what both have in
common.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from keyhole.app.ending import Ending

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.app.line import Line
    from keyhole.sandbox.launch import Launch

FAREWELL_SECONDS = 2.0
"""How long the process that serves the door may take to say its log's last digest."""


class Post(Protocol):
    """A gateway, as a run sees it."""

    def begin(self, launch: Launch) -> None:
        """A sandbox is about to be: see that what happens can be written down (I8)."""

    def admit(self, door: list[socket.socket]) -> None:
        """Take the door; when this returns, the sandbox may start (I2)."""

    async def open(self, ended: Callable[[Ending], None]) -> None:
        """Serve it from now on; `ended` hears when it is served no longer, and why."""

    def note(self, what: str, **details: str | int) -> None:
        """Write down what became of the sandbox."""

    async def close(self, code: int) -> str:
        """The sandbox has ended; the audit log's last digest."""


class Served:
    """A session whose door another process serves."""

    def __init__(
        self,
        ttl: float,
        report: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`ttl` is what is kept to when the other process, which keeps to its own, is gone. `warn`
        is for what a quiet person must read, too; None: as `report`."""
        self._ttl = ttl
        self._report = report
        self._warn = warn or report
        self._line: Line | None = None
        self._ended: Callable[[Ending], None] = lambda _: None
        self._head: asyncio.Future[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._opened_at = 0.0

    def _attend(self, ended: Callable[[Ending], None]) -> asyncio.AbstractEventLoop:
        """Expect what is said over the line from now on."""
        loop = asyncio.get_running_loop()
        self._ended = ended
        self._opened_at = loop.time()
        self._head = loop.create_future()
        return loop

    async def _farewell(self, code: int) -> str | None:
        """Say how the sandbox ended, and wait for the last word; None where there was none."""
        if self._timer is not None:
            self._timer.cancel()
        self._closing = True
        if self._line is None or self._head is None:
            return None
        self._line.say(ended=code)
        try:
            return await asyncio.wait_for(self._head, FAREWELL_SECONDS)
        except TimeoutError:
            return None
        finally:
            self._line.close()

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"say": str(line)}:
                self._report(line)
            case {"closed": str(why)} if why in tuple(Ending):
                self._ended(Ending(why))
            case {"head": str(digest)} if self._head is not None and not self._head.done():
                self._head.set_result(digest)

    def _lost(self, why: str) -> None:
        """The other process has ended: the door is closed, and the sandbox stays so (I2)."""
        if self._head is not None and not self._head.done():
            self._head.set_result("")
        if self._closing:
            return
        if why:
            self._warn(why)
        loop = asyncio.get_running_loop()
        left = max(0.0, self._opened_at + self._ttl - loop.time())
        self._timer = loop.call_later(left, self._ended, Ending.EXPIRED)
