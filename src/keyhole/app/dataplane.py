"""The data plane of one run: the process that reads what the sandbox and the origins send.

Started by `plane.py` beside the process that holds the sandbox, the terminal and the control
socket. It locks itself down before it is given a secret: it starts no process, and of the file
system it writes the audit log and the quarantine alone. It can be ended at any moment; the door's
sockets are in no other process, so that nothing inside reaches anything then (I2, I12).

What the other process says comes as values (pickled), with the door's sockets beside them: this
process believes it. What this process says is JSON on a `Line`, and little of it is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from keyhole.app.companion import stay_with_parent
from keyhole.app.line import MAX_MESSAGE, Line
from keyhole.app.message import Frames, unpacked
from keyhole.model.text import visible
from keyhole.sandbox.lockdown import lock_down
from keyhole.system.faults import describe
from keyhole.vault.memory import guard_memory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

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

SWITCH_SECONDS = 0.0005
"""While modules are imported in a thread: how soon a message is heard beside it."""

STUCK = "data-plane-stuck"
"""For tests, a fault: a signal makes the data plane match a pattern that takes forever."""


class _Link:
    """The receiving end of what the other process says."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._frames = Frames()
        self._descriptors: list[int] = []

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
    """Imports the rest of the data plane in a thread, so that messages are heard meanwhile.

    While the command starts, and not before: until then others need the processor more.
    """

    def __init__(self) -> None:
        self.done = os.eventfd(0)
        self.error: BaseException | None = None
        sys.setswitchinterval(SWITCH_SECONDS)
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            import uvloop  # noqa: F401

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
    """From the start of the process to when it has its door and its modules. No loop yet."""

    def __init__(self, link: _Link, line: socket.socket) -> None:
        self.link = link
        self._line = line
        self.audit = self.quarantine = Path()
        self.limits: GatewayLimits | None = None
        self.fault = ""
        self.tenant: Tenant | None = None
        self.door: list[socket.socket] = []
        self.pulse = -1
        self.later: list[tuple[Any, ...]] = []
        """What came before there was a session to change."""
        self._loading: _Loading | None = None

    def wait(self) -> Tenant:
        """Until the door can be served; whose it is."""
        poll = select.poll()
        poll.register(self.link.sock, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        loaded = False
        while not (loaded and self.door and self.tenant):
            for descriptor, _ in poll.poll():
                if descriptor == self._line.fileno():
                    self._hear()
                elif descriptor == self.link.sock.fileno():
                    for message in self.link.read():
                        self._take(message)
                    if self._loading is not None and not loaded:
                        poll.register(self._loading.done, select.POLLIN)
                elif self._loading is not None:
                    poll.unregister(descriptor)
                    self._loading.finish()
                    loaded = True
        return self.tenant

    def _hear(self) -> None:
        """The sandbox has ended before anything was served, or the other process has."""
        if self._line.recv(MAX_MESSAGE):
            self._line.send(json.dumps({"head": ""}).encode())
        os._exit(0)

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("confine", audit, quarantine, inspects):
                self.audit, self.quarantine = audit, quarantine
                self._confine()
                if inspects:  # the sandbox's files are written when its CA is made
                    import keyhole.app.interception  # noqa: F401
            case ("open", session, provision, stand_ins, limits, fault):
                from keyhole.app.tenant import make_tenant

                self.limits, self.fault = limits, fault
                self.tenant = make_tenant(session, provision, stand_ins)
                if self.tenant.trust is not None:
                    pem = self.tenant.trust.authority.pem.decode("ascii")
                    self._line.send(json.dumps({"ca": pem}).encode())
            case ("door",):
                *door, self.pulse = self.link.taken()
                self.door = [socket.socket(fileno=each) for each in door]
                self._loading = _Loading()
            case other:
                self.later.append(other)

    def _confine(self) -> None:
        """Before there is another thread, which would stay as it is."""
        write = (self.audit, self.quarantine)
        for each in write:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_down(_libraries(), write)


def _libraries() -> list[Path]:
    """Where modules are imported from, links out of there included: some installers link packages
    that they keep elsewhere."""
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
        from keyhole.app.live import House, LiveSession
        from keyhole.gateway.door import Door
        from keyhole.gateway.gateway import Gateway
        from keyhole.system.resolver import SystemResolver

        self._loop = loop
        self._link = begun.link
        self._line = Line(loop, line, self._heard, lambda: os._exit(0))
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

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """What broke, without its words: they may hold what a request held."""
        error = context.get("exception")
        kind = describe(error) if isinstance(error, BaseException) else "unknown"
        self._say(f"an error in Keyhole itself, in the data plane ({kind})")

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
    guard_memory()
    _raise_descriptor_limit()
    link, line = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (link, line):
        os.set_inheritable(each.fileno(), False)
    try:
        begun = Beginning(_Link(link), line)
        tenant = begun.wait()
    except Exception as error:  # noqa: BLE001 - told in one line where the person sees it
        _give_up(line, error)
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        kept = DataPlane(loop, begun, tenant, line)
    except Exception as error:  # noqa: BLE001 - the same
        _give_up(line, error)
    if STUCK in begun.fault.split(","):
        _stand_still_on_signal(loop)
    loop.run_forever()
    del kept


def _give_up(line: socket.socket, error: Exception) -> NoReturn:
    from keyhole.sandbox.files.fileplan import Refused

    known = isinstance(error, Refused | OSError)
    words = str(error) if known else f"a fault of Keyhole's ({type(error).__name__})"
    line.setblocking(True)
    with contextlib.suppress(OSError):
        line.send(json.dumps({"failed": visible(words)[:MAX_SAID]}).encode())
    os._exit(1)


def _raise_descriptor_limit() -> None:
    """Each connection takes two descriptors; the soft limit of a shell is often 1,024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stand_still_on_signal(loop: asyncio.AbstractEventLoop) -> None:
    import re

    def stand_still() -> None:
        re.match(r"(a|a)*b", "a" * 1000)

    loop.add_signal_handler(signal.SIGUSR1, stand_still)


if __name__ == "__main__":
    main()
