"""Shows questions as notifications of the desktop, for as long as a server shows them.

`keyhole watch --desktop` runs it, in a process of its own: no gateway and no data plane touches the
bus. While a server with buttons is there, gateways see that a person can answer, and hold what no
rule names; when it goes, they no longer do.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING

from keyhole.app.desktop.ask_notices import AskNotices
from keyhole.app.desktop.notification_server import (
    Dismissed,
    NotificationServer,
    Pressed,
    ServerChanged,
)
from keyhole.app.monitor.ask_watch import AskWatch
from keyhole.control.watchers import watching
from keyhole.model.errors import KeyholeError, ResourceUnusable
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.setup.host_paths import HostPaths

TICK = 0.25
"""Seconds between two looks at what may be shown now, when nothing happens."""

IDLE_SECONDS = 30.0
"""After so long without a gateway, one that a run started ends."""


class DesktopWatch:
    """One process's notifications."""

    def __init__(
        self, paths: HostPaths, bus: str, search_path: str, report: Callable[[str], None]
    ) -> None:
        """`bus` is the bus's socket; `report` shows a line to whoever started it. Raises
        ResourceUnusable."""
        self._paths = paths
        self._report = report
        self._server = NotificationServer(bus)
        self._woken, self._waking = socket.socketpair()
        for each in (self._woken, self._waking):
            each.setblocking(False)
        self._watch = AskWatch(paths, self._wake, search_path)
        self._used = time.monotonic()

    def run(self, ready: Callable[[], None], *, until_idle: bool) -> None:
        """Show questions until the bus goes, or with `until_idle` until no gateway is left. `ready`
        is called once somebody can answer. Raises ResourceUnusable if nobody can at first."""
        try:
            if not self._server.find():
                raise ResourceUnusable("no notification server with buttons is on this desktop")
            while True:
                self._serve(ready, until_idle=until_idle)
                if self._is_over(until_idle) or not self._find_again(until_idle):
                    return
        finally:
            self._server.disconnect()
            self._woken.close()
            self._waking.close()

    def _is_over(self, until_idle: bool) -> bool:
        return until_idle and time.monotonic() - self._used > IDLE_SECONDS

    def _find_again(self, until_idle: bool) -> bool:
        """Wait until there is a server again."""
        changed = True  # the bus starts one that is installed
        with self._selector() as selector:
            while not self._is_over(until_idle):
                self._wait(selector)
                changed = ServerChanged() in self._server.read() or changed
                if changed and self._server.find():
                    return True
                changed = False
        return False

    def _serve(self, ready: Callable[[], None], *, until_idle: bool) -> None:
        """Answer while there is a server."""
        notices = AskNotices(self._server, time.monotonic())
        with watching(self._paths.runtime), self._selector() as selector:
            self._watch.start()
            try:
                ready()
                while not self._is_over(until_idle):
                    if self._watch.gateways:
                        self._used = time.monotonic()
                    notices.update(self._watch.asks(), time.monotonic())
                    self._wait(selector)
                    if not self._take_signals(notices):
                        # Before anything is hidden: a new server counts from the start.
                        notices.forget()
                        return
            finally:
                self._watch.stop()
                with contextlib.suppress(ResourceUnusable):
                    notices.clear()

    def _take_signals(self, notices: AskNotices) -> bool:
        """Answer what was pressed. Returns False when the server has gone."""
        for signal in self._server.read():
            match signal:
                case Pressed(number, key):
                    self._answer(notices, number, key)
                case Dismissed(number):
                    notices.dismissed(number, time.monotonic())
                case ServerChanged():
                    return False
        return True

    def _answer(self, notices: AskNotices, number: int, key: str) -> None:
        given = notices.pressed(number, key, time.monotonic())
        if given is None:
            return
        try:
            self._watch.answer(given.ask.session, given.ask.id, given.answer)
        except KeyholeError as error:
            self._report(f"not done: {visible(str(error))}")

    def _selector(self) -> selectors.BaseSelector:
        selector = selectors.DefaultSelector()
        for each in (self._server, self._woken):
            selector.register(each, selectors.EVENT_READ)
        return selector

    def _wait(self, selector: selectors.BaseSelector) -> None:
        selector.select(TICK)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _wake(self) -> None:
        """A question has come or gone; called in the thread that follows gateways."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: it ends
            self._waking.send(b"!")
