"""The data plane of one run: the process that reads the bytes of the sandbox and the origins.

Started by `data_plane_process.py` beside the process that holds the sandbox, the terminal and the
control socket. It locks itself down before it is given a secret: it can start no process, and can
write only the audit log and the quarantine. It can be killed at any moment; no other process has
the door's sockets, so the sandbox is then cut off (I2, I12).

Messages of the other process are the structs of `messages.py`, with the door's sockets beside them:
this process trusts them. Its own messages are JSON on a `SandboxChannel`, and the other process
trusts little of them.

This module waits, and imports `data_plane_service.py`, which serves, when that is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from keyhole.app.processes.child import inherit
from keyhole.app.run.data_plane_link import MAX_SAID, MessageLink, PlaneSockets
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.system.faults import mention

if TYPE_CHECKING:
    from keyhole.app.run.data_plane_opening import OpenedPlane, PlanePaths

PATIENCE_SECONDS = 0.05
"""How long a door without a connection waits before the gateway's modules are imported. Most short
commands open no connection and have ended by then; the others need the processor more."""

SWITCH_SECONDS = 0.0005
"""Seconds until a message is read while modules are imported in a thread."""

_SERVING = ("keyhole.app.run.data_plane_service",)
_INSPECTING = ("keyhole.app.session.interception",)


class _BackgroundImport:
    """Imports the rest of the data plane in a thread, so that messages are read meanwhile."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules
        self.done = os.eventfd(0)
        self.error: BaseException | None = None
        sys.setswitchinterval(SWITCH_SECONDS)
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            for each in self._modules:
                importlib.import_module(each)
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is waited for
            self.error = raised
        os.eventfd_write(self.done, 1)

    def finish(self) -> None:
        """The import is done: raise its exception, if it had one."""
        os.close(self.done)
        sys.setswitchinterval(0.005)
        if self.error is not None:
            raise self.error


class DataPlaneStartup:
    """The start of the process, until it has its door and its modules. There is no loop yet.

    For a session that inspects nothing, the opening is parsed only when a client connects.
    """

    def __init__(self, link: MessageLink, line: socket.socket) -> None:
        self._link = link
        self._line = line
        self._places: tuple[str, str, str] | None = None
        self._paths: PlanePaths | None = None
        self._opening = b""
        self._opened: OpenedPlane | None = None
        self._door: list[socket.socket] = []
        self._inner_ports: dict[int, int] = {}
        self._pulse = -1
        self._later: list[bytes] = []
        self._load_at = 0.0
        self._loading: _BackgroundImport | None = None

    def wait(self) -> tuple[PlaneSockets, OpenedPlane, PlanePaths]:
        """Wait until the door can be served. Returns everything that is needed for that."""
        poll = select.poll()
        poll.register(self._link.sock, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while True:
            left = self._load_at - time.monotonic() if self._is_waiting else None
            found = {each for each, _ in poll.poll(None if left is None else max(0, left) * 1000)}
            if self._line.fileno() in found:
                os._exit(0)  # the sandbox has ended, or the other process has
            had_door = bool(self._door)
            if self._link.sock.fileno() in found:
                message = self._link.read_one()
                if self._door:
                    self._later.append(message)
                else:
                    self._take(json.loads(message))
            if self._door and not had_door:
                for each in self._knocked_on:
                    poll.register(each, select.POLLIN)
            knocks = self._is_waiting and not found.isdisjoint(
                each.fileno() for each in self._knocked_on
            )
            if knocks or (self._is_waiting and time.monotonic() >= self._load_at):
                for each in self._knocked_on:
                    poll.unregister(each)
                inspects = self._open().session.trust is not None
                self._loading = _BackgroundImport(_SERVING + (_INSPECTING if inspects else ()))
                poll.register(self._loading.done, select.POLLIN)
            elif self._loading is not None and self._loading.done in found:
                self._loading.finish()
                sockets = PlaneSockets(
                    self._link, self._line, self._door, self._pulse, self._inner_ports, self._later
                )
                return sockets, self._open(), self._confine()

    @property
    def _is_waiting(self) -> bool:
        """Whether there is a door, and no module is imported for it yet."""
        return bool(self._door) and self._loading is None

    @property
    def _knocked_on(self) -> list[socket.socket]:
        """The sockets on which a client shows up; a socket that will connect reports its state."""
        return [each for each in self._door if each.type != socket.SOCK_STREAM or _listens(each)]

    def _take(self, words: dict[str, Any]) -> None:
        match words:
            case {"do": "warm-up"}:
                # Before it is confined, which makes no difference: there is no secret yet, and no
                # thread.
                importlib.import_module("keyhole.app.run.data_plane_opening")
                importlib.import_module("keyhole.app.session.session_trust")
            case {
                "do": "confine",
                "audit": audit,
                "quarantine": quarantine,
                "ports": ports,
                "inspects": inspects,
            }:
                self._places = audit, quarantine, ports
                if inspects:  # the sandbox's files are written when its CA is made
                    self._confine()
                    importlib.import_module("keyhole.app.session.session_trust")
            case {"do": "open", "inspects": inspects}:
                self._opening = self._link.read_one()
                if inspects:
                    self._open()
            case {"do": "door", "ports": ports}:
                self._inner_ports = dict(ports)
                *door, self._pulse = self._link.taken()
                self._door = [socket.socket(fileno=each) for each in door]
                self._load_at = time.monotonic() + PATIENCE_SECONDS

    def _open(self) -> OpenedPlane:
        """Read the session's opening. A second call does nothing."""
        if self._opened is None:
            self._confine()
            from keyhole.app.run.data_plane_opening import open_session

            self._opened = open_session(self._opening)
            self._opening = b""
            trust = self._opened.session.trust
            if trust is not None:
                _say(self._line, ca=trust.authority.pem.decode("ascii"))
        return self._opened

    def _confine(self) -> PlanePaths:
        """Lock this process down. A second call does nothing."""
        if self._paths is None:
            from keyhole.app.run.data_plane_opening import confine

            if self._places is None:
                raise Refused("the data plane was not told what it may write")
            self._paths = confine(*self._places)
        return self._paths


def main() -> None:
    """The process: `LINK LINE` are its arguments, the numbers of two sockets."""
    numbers = inherit(2)
    if not numbers:
        return
    link, line = (socket.socket(fileno=number) for number in numbers)
    try:
        begun = DataPlaneStartup(MessageLink(link), line).wait()
        from keyhole.app.run.data_plane_service import serve

        serve(*begun)
    except Exception as error:  # noqa: BLE001 - told in one line where the person sees it
        _give_up(line, error)


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _say(line: socket.socket, **message: object) -> None:
    """Send a message before there is a loop."""
    line.setblocking(True)
    line.send(json.dumps(message).encode())


def _give_up(line: socket.socket, error: Exception) -> NoReturn:
    known = isinstance(error, Refused | OSError)
    words = str(error) if known else mention(error)
    with contextlib.suppress(OSError):
        _say(line, failed=visible(words)[:MAX_SAID])
    os._exit(1)
