"""The control process of a long-lived gateway: what `keyhole up` starts, from first file to last.

No byte of a sandbox or an origin reaches it. It owns the place, the control socket and the table of
sessions, and starts two processes: the keeper, which reads policies and secrets, and the data
plane, which has the doors. Both die with it. When the gateway ends, every sandbox of its is ended;
when it dies, they are closed (I2), and the next one clears up.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from typing import TYPE_CHECKING

from keyhole.app.doorway import Doorway
from keyhole.app.keeping import KeeperFailed, Keeping
from keyhole.app.leftovers import Register
from keyhole.app.operations import GatewayOperations
from keyhole.app.planes import PlaneFailed, Planes
from keyhole.app.session import session_event
from keyhole.audit.directory import AuditUnusable
from keyhole.audit.log import AuditLog
from keyhole.control.place import Unusable, claim
from keyhole.control.server import Server
from keyhole.control.values import Protection
from keyhole.model.value import dataclass
from keyhole.sandbox import cgroup
from keyhole.sandbox.lockdown import NotAlone, lock_down_control
from keyhole.system.faults import describe_loop_fault
from keyhole.vault.memory import guard_memory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from keyhole.app.doorway import Expected
    from keyhole.app.leftovers import Leftover
    from keyhole.app.places import Places
    from keyhole.control.place import Claim
    from keyhole.vault.stored import Ask


DESCRIPTORS = 65_536
"""In the data plane two for each connection, four for each session."""


class DaemonFailed(Exception):
    """No gateway can be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What a gateway is started with."""

    places: Places
    env: Mapping[str, str]
    ready: Callable[[], None]
    report: Callable[[str], None]
    """A line for the person that started it, or its log."""
    ask: Ask | None
    """Asks for the store's passphrase, until it is ready."""
    expected: Expected | None = None
    """A sandbox that others make, and whose door is to be registered."""
    turned: Callable[[], None] = lambda: None
    """Hears, every now and then, that the data plane turns: for a service manager's watchdog."""


def serve(serving: Serving) -> int:
    """Be the gateway until a signal or `keyhole down` ends it. Raises DaemonFailed."""
    try:
        place = claim(serving.places.runtime)
    except Unusable as error:
        raise DaemonFailed(str(error)) from None
    try:
        return _serve_at(place, serving)
    except (KeeperFailed, PlaneFailed, NotAlone, AuditUnusable, Unusable, OSError) as error:
        raise DaemonFailed(str(error)) from None
    finally:
        place.release()


def _serve_at(place: Claim, serving: Serving) -> int:
    places = serving.places
    _raise_descriptor_limit()
    guard_memory()  # the store's passphrase passes through
    register = Register(places.sessions)
    left_behind = register.clear()
    cgroup.sweep()
    for left in left_behind:
        ended = "was ended" if left.alive else "had ended"
        serving.report(
            f"session {left.session} ({left.label}) of a gateway that died {ended}: its"
            " sandbox could not be used again"
        )
    keeping = Keeping.start(places, serving.env)
    try:
        doorway = None
        if serving.expected is not None:
            doorway = Doorway.start(serving.expected, places, serving.env)
        keeping.greet(serving.ask)
        listener = place.listen()
        # Before there is another thread, which would stay as it is, and before the data plane: it
        # holds that, too.
        walls = _lock_down(places)
        with AuditLog(places.audit) as log:
            _write_down(log, left_behind)
            planes = Planes(_told(places), keeping, serving.env)
            ground = _Ground(place, listener, walls, planes, keeping, register, log, doorway)
            return asyncio.run(_serve(serving, ground))
    finally:
        keeping.close()


def _told(places: Places) -> dict[str, str]:
    """What a data plane is told first: where things are."""
    return {name: str(getattr(places, name)) for name in ("home", "config", "state", "runtime")}


def _write_down(log: AuditLog, left_behind: list[Leftover]) -> None:
    """The end of sessions whose gateway died before it could (I8). It is on disk when this returns:
    the register has forgotten them already."""
    for left in left_behind:
        event = session_event("left-behind", command=left.label, pid=left.pid, ended=left.alive)
        log.record(left.session, event)
        log.finish(left.session)
    log.flush()


def _raise_descriptor_limit() -> None:
    """For every session its line and its process; and a data plane has what this one has."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class _Ground:
    """What is there before the control socket listens."""

    place: Claim
    listener: socket.socket
    walls: tuple[Protection, ...]
    planes: Planes
    keeping: Keeping
    register: Register
    log: AuditLog
    doorway: Doorway | None


async def _serve(serving: Serving, ground: _Ground) -> int:
    planes = ground.planes
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.set_exception_handler(lambda _, context: serving.report(describe_loop_fault(context)))
    operations = GatewayOperations(
        loop, planes, ground.register, ground.log, stop.set, serving.report
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    operations.doorway = doorway = ground.doorway
    planes.attach(loop, operations.heard(serving.turned))
    ground.keeping.attach(loop, lambda: None)
    try:
        # Nobody is answered before the data plane is locked down.
        ready = await planes.first()
        operations.most = ready.sessions
        operations.protections = (*ready.protections, *ground.walls)
        server = Server(loop, ground.place, ground.listener, operations)
        ground.log.record("", session_event("gateway-started", pid=os.getpid()))
        serving.ready()
        if doorway is not None:
            doorway.open(loop, serving.report, stop.set)
        await stop.wait()
        count = await operations.close()
        ground.log.record("", session_event("gateway-ended", sessions=count))
        await planes.close()
        await server.close()
    finally:
        await planes.close()
    return 1 if operations.failed or (doorway is not None and doorway.lost) else 0


def _lock_down(places: Places) -> tuple[Protection, ...]:
    """From here on: no capability, no look into a process, and of the file system what the control
    process and a data plane need."""
    write = (places.audit, places.quarantine, places.sessions, places.runtime)
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = lock_down_control((places.config,), write)
    return tuple(Protection(each.name, each.on, each.note) for each in found)
