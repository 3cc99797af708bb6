"""The data plane of one run: the process that reads what the sandbox and the origins send.

Started by `plane.py` beside the process that holds the sandbox, the terminal and the control
socket. It locks itself down before it is given a secret: it starts no process, and of the file
system it writes the audit log and the quarantine alone. It can be ended at any moment; the door's
sockets are in no other process, so that nothing inside reaches anything then (I2, I12).

What the other process says comes as values (pickled), with the door's sockets beside them: this
process believes it. What this process says is JSON on a `Line`, and little of it is believed.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from keyhole.app.companion import stay_with_parent
from keyhole.app.message import SIZE, Frames, unpacked

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from pathlib import Path

    from keyhole.app.line import Line
    from keyhole.app.live import LiveSession
    from keyhole.app.tenant import Tenant
    from keyhole.gateway.pushes import Judge
    from keyhole.policy.budget import GatewayLimits
    from keyhole.sandbox.jail import Jail

DESCRIPTORS = 20_000
"""Two for each of the gateway's connections, and some for everything else."""

MAX_FDS = 8
"""Descriptors beside one message: a door has three sockets, and the pulse comes with it."""

MAX_SAID = 1000
"""Characters of one line for the person."""

PATIENCE_SECONDS = 0.05
"""How long a door without a knock waits for the rest to be loaded: most short commands, which reach
for nothing, have ended by then, and others needed the processor more."""

SWITCH_SECONDS = 0.0005
"""While modules are imported in a thread: how soon a message is heard beside it."""

STUCK = "data-plane-stuck"
"""For tests, a fault: a signal makes the data plane match a pattern that takes forever."""

_MODULES = (
    "uvloop",
    "keyhole.app.heartbeat",
    "keyhole.app.latelog",
    "keyhole.app.line",
    "keyhole.app.live",
    "keyhole.gateway.gateway",
    "keyhole.system.resolver",
)
_INSPECTING = ("keyhole.app.interception",)


class _Link:
    """The receiving end of what the other process says."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._frames = Frames()
        self._descriptors: list[int] = []

    def read_one(self) -> tuple[Any, ...]:
        """One message and no byte more, before there is a loop: the next one may hold secrets, and
        what it asks for comes first. The process ends when the other one has."""
        first, self._descriptors, _, _ = socket.recv_fds(self.sock, 1, MAX_FDS)
        (length,) = SIZE.unpack(first + self._exactly(SIZE.size - 1))
        return tuple(unpacked(self._exactly(length)))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return bytes(data)

    def read(self) -> list[tuple[Any, ...]]:
        """What has come; the process ends when the other one has."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 20, MAX_FDS)
        except BlockingIOError:
            return []
        except OSError:
            data, descriptors = b"", []
        if not data:
            os._exit(0)
        self._descriptors += descriptors
        return [unpacked(frame) for frame in self._frames.feed(data)]

    def taken(self) -> list[int]:
        """The descriptors that came with what was read."""
        taken, self._descriptors = self._descriptors, []
        return taken


class _Loading:
    """Imports the rest of the data plane in a thread, so that messages are heard meanwhile."""

    def __init__(self, tenant: Tenant | None) -> None:
        import threading

        inspects = tenant is not None and tenant.trust is not None
        self._modules = (*_MODULES, *_INSPECTING) if inspects else _MODULES
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
        """It is done: raise what it raised."""
        os.close(self.done)
        sys.setswitchinterval(0.005)
        if self.error is not None:
            raise self.error


class Beginning:
    """From the start of the process to when it has its door and its modules. No loop yet.

    Of a session that inspects nothing, what it was told is not even read before somebody knocks.
    """

    def __init__(self, link: _Link, line: socket.socket) -> None:
        self.link = link
        self._line = line
        self._places: tuple[str, str] | None = None
        self._confined = False
        self._session = b""
        self.limits: GatewayLimits | None = None
        self.fault = ""
        self.tenant: Tenant | None = None
        self.door: list[socket.socket] = []
        self.pulse = -1
        self.later: list[tuple[Any, ...]] = []
        """What came before there was a session to change."""
        self._load_at = 0.0
        self._loading: _Loading | None = None

    @property
    def audit(self) -> Path:
        """The log's directory."""
        return self._paths()[0]

    @property
    def quarantine(self) -> Path:
        """Where pushes wait for their judge."""
        return self._paths()[1]

    def _paths(self) -> tuple[Path, Path]:
        from pathlib import Path

        audit, quarantine = self._places or ("", "")
        return Path(audit), Path(quarantine)

    def wait(self) -> Tenant:
        """Until the door can be served; whose it is."""
        poll = select.poll()
        poll.register(self.link.sock, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while True:
            left = self._load_at - time.monotonic() if self._is_waiting else None
            found = {each for each, _ in poll.poll(None if left is None else max(0, left) * 1000)}
            if self._line.fileno() in found:
                os._exit(0)  # the sandbox has ended, or the other process has
            had_door = bool(self.door)
            if self.link.sock.fileno() in found:
                self._take(self.link.read_one())
            if self.door and not had_door:
                for each in self.door:
                    poll.register(each, select.POLLIN)
            knocks = self._is_waiting and not found.isdisjoint(e.fileno() for e in self.door)
            if knocks or (self._is_waiting and time.monotonic() >= self._load_at):
                for each in self.door:
                    poll.unregister(each)
                self._open()
                self._loading = _Loading(self.tenant)
                poll.register(self._loading.done, select.POLLIN)
            elif self._loading is not None and self._loading.done in found:
                self._loading.finish()
                if self.tenant is not None:
                    return self.tenant

    @property
    def _is_waiting(self) -> bool:
        """Whether there is a door, and nothing is loaded for it yet."""
        return bool(self.door) and self._loading is None

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("confine", str(audit), str(quarantine), inspects):
                self._places = audit, quarantine
                if inspects:  # the sandbox's files are written when its CA is made
                    self._confine()
                    importlib.import_module("keyhole.app.sessionca")
            case ("open", bytes(session), inspects):
                self._session = session
                if inspects:
                    self._open()
            case ("door",):
                *door, self.pulse = self.link.taken()
                self.door = [socket.socket(fileno=each) for each in door]
                self._load_at = time.monotonic() + PATIENCE_SECONDS
            case other:
                self.later.append(other)

    def _open(self) -> None:
        """Read what session it is; a second time does nothing."""
        if self.tenant is not None:
            return
        self._confine()
        from keyhole.app.tenant import make_tenant

        session, provision, stand_ins, self.limits, self.fault = unpacked(self._session)
        self._session = b""
        self.tenant = make_tenant(session, provision, stand_ins)
        if self.tenant.trust is not None:
            _say(self._line, ca=self.tenant.trust.authority.pem.decode("ascii"))

    def _confine(self) -> None:
        """Before the first secret, and before there is another thread, which would stay as it is. A
        second time does nothing."""
        if self._places is None or self._confined:
            return
        self._confined = True
        from keyhole.sandbox.lockdown import lock_down
        from keyhole.vault.memory import guard_memory

        guard_memory()
        write = self._paths()
        for each in write:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_down(_libraries(), write)


def _libraries() -> list[Path]:
    """Where modules are imported from, links out of there included: some installers link packages
    that they keep elsewhere."""
    from pathlib import Path

    directories = [each for each in sys.path if os.path.isdir(each)]
    linked = [e.path for each in directories for e in os.scandir(each) if e.is_symlink()]
    return [Path(each) for each in (*directories, *map(os.path.realpath, linked))]


class DataPlane:
    """Serves one session on a loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, begun: Beginning, tenant: Tenant, line: socket.socket
    ) -> None:
        """Raises Refused, SameNamespace, GatewayFull or OSError."""
        from keyhole.app.heartbeat import Pulse
        from keyhole.app.latelog import LateLog
        from keyhole.app.line import Line
        from keyhole.app.live import House, LiveSession
        from keyhole.gateway.door import Door
        from keyhole.gateway.gateway import Gateway
        from keyhole.system.resolver import SystemResolver

        self._loop = loop
        self._link = begun.link
        self._line: Line = Line(loop, line, self._heard, lambda: os._exit(0))
        self._judge: Jail | None = None
        self._judges: list[asyncio.Future[tuple[socket.socket, int]]] = []
        self._id = tenant.id
        self._log = LateLog(begun.audit)
        self._log.begin(self._id, tenant.provision.policy.limits.audit_per_second)
        self._gateway = Gateway(loop, SystemResolver(loop), limits=begun.limits)
        house = House(loop, self._gateway, self._log, self._make_judge, begun.quarantine)
        door = Door(*begun.door)
        self._live: LiveSession = LiveSession(house, tenant, door, self._say, self._closed)
        loop.set_exception_handler(self._failed)
        self._link.sock.setblocking(False)
        loop.add_reader(self._link.sock, self._readable)
        self._pulse = Pulse(loop, begun.pulse)
        for message in begun.later:
            self._take(message)
        self._line.say(opened=True)

    # ── what is heard ─────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        for message in self._link.read():
            self._take(message)

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("rotated", *values):
                self._live.rotate(*values)
            case ("reloaded", provision):
                self._live.reload(provision)
            case ("kept", why):
                self._live.keep(why)
            case ("grant", number, pattern, seconds, uses, by):
                self._grant(number, pattern, seconds, uses, by)
            case ("look", number):
                self._line.say(looked=number, **self._figures())
            case ("close", ending, by):
                self._live.close(ending, by)
            case ("judge", why):
                self._judge_came(why, self._link.taken())

    def _heard(self, message: dict[str, Any]) -> None:
        if "ended" not in message:
            return
        self._live.close(_done())
        self._gateway.close()
        if self._judge is not None:
            self._judge.close()
        self._log.finish(self._id)
        self._log.close()
        self._line.say(head=self._log.head())
        os._exit(0)

    # ── what is said ──────────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        self._line.say(say=text[:MAX_SAID])

    def _closed(self, ending: str) -> None:
        self._line.say(closed=str(ending), **self._figures())

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        from keyhole.system.faults import describe_loop_fault

        self._say(describe_loop_fault(context))

    def _grant(self, number: int, pattern: Any, seconds: int, uses: int, by: int) -> None:  # noqa: ANN401
        from keyhole.app.views import shown
        from keyhole.policy.grants import Ungrantable

        try:
            given = shown(self._live.grant(pattern, seconds, uses, by))
        except Ungrantable as error:
            self._line.say(ungranted=number, why=str(error))
            return
        self._line.say(granted=number, host=given.host, expires=given.expires, uses=given.uses)

    def _figures(self) -> dict[str, object]:
        from keyhole.app.views import budgets, shown

        live, figures = self._live, self._live.handle.figures
        used = budgets(live.handle.budgets)
        grants = () if live.ending else map(shown, live.handle.grants)
        return {
            "figures": [
                figures.connections, figures.requests, figures.denied, figures.up, figures.down
            ],
            "grants": [[each.host, each.expires, each.uses] for each in grants],
            "budgets": [[each.name, each.used, each.limit] for each in used],
        }  # fmt: skip

    # ── judges, which another process starts ──────────────────────────────────────────────────────

    def _make_judge(self, session: str) -> Judge:
        if self._judge is None:
            from keyhole.sandbox.jail import Jail

            self._judge = Jail(start=self._start_judge)
        return self._judge.for_session(session)

    async def _start_judge(self) -> tuple[socket.socket, int]:
        coming: asyncio.Future[tuple[socket.socket, int]] = self._loop.create_future()
        self._judges.append(coming)
        self._line.say(judge=True)
        return await coming

    def _judge_came(self, why: str, descriptors: Sequence[int]) -> None:
        coming = self._judges.pop(0)
        if len(descriptors) != 2:
            if not coming.done():
                coming.set_exception(OSError(why))
            return
        control, pidfd = socket.socket(fileno=descriptors[0]), descriptors[1]
        if coming.done():  # nobody waits any more
            control.close()
            os.close(pidfd)
        else:
            coming.set_result((control, pidfd))


def _done() -> Any:  # noqa: ANN401 - Ending, whose module is loaded with the rest
    from keyhole.app.ending import Ending

    return Ending.DONE


def main() -> None:
    """The process: `LINK LINE` are its arguments, the numbers of two sockets."""
    if not stay_with_parent():
        return
    link, line = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (link, line):
        os.set_inheritable(each.fileno(), False)
    try:
        begun = Beginning(_Link(link), line)
        tenant = begun.wait()
        _raise_descriptor_limit()
        import uvloop

        loop = uvloop.new_event_loop()
        kept = DataPlane(loop, begun, tenant, line)
    except Exception as error:  # noqa: BLE001 - told in one line where the person sees it
        _give_up(line, error)
    if STUCK in begun.fault.split(","):
        _stand_still_on_signal(loop)
    loop.run_forever()
    del kept


def _say(line: socket.socket, **message: object) -> None:
    """Say something before there is a loop."""
    import json

    line.setblocking(True)
    line.send(json.dumps(message).encode())


def _give_up(line: socket.socket, error: Exception) -> NoReturn:
    from contextlib import suppress

    from keyhole.model.text import visible
    from keyhole.sandbox.files.fileplan import Refused
    from keyhole.system.faults import mention

    known = isinstance(error, Refused | OSError)
    words = str(error) if known else mention(error)
    with suppress(OSError):
        _say(line, failed=visible(words)[:MAX_SAID])
    os._exit(1)


def _raise_descriptor_limit() -> None:
    """Each connection takes two descriptors; the soft limit of a shell is often 1,024."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stand_still_on_signal(loop: asyncio.AbstractEventLoop) -> None:
    import re
    import signal

    def stand_still() -> None:
        re.match(r"(a|a)*b", "a" * 1000)

    loop.add_signal_handler(signal.SIGUSR1, stand_still)


if __name__ == "__main__":
    main()
