"""The control process of a long-lived gateway, which `keyhole up` starts.

No byte of a sandbox or an origin reaches it. It owns the socket directory, the control socket and
the table of sessions, and starts the keeper, which reads policies and secrets, and the workers'
data planes, which have the doors. All die with it. When the gateway ends, it ends all its
sandboxes. When it dies, their doors are closed (I2), and the next gateway ends them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from keyhole.app.containers.door_receiver_client import DoorReceiverClient
from keyhole.app.daemon.gateway_operations import GatewayOperations
from keyhole.app.daemon.keeper_process import KeeperProcess
from keyhole.app.daemon.workers import Workers, combine_protections
from keyhole.app.remote.receiver_client import RemoteReceiverClient
from keyhole.app.session.session_events import session_event
from keyhole.app.session.session_register import SessionRegister
from keyhole.app.setup.policy_file import open_gateway_limits
from keyhole.audit.log import AuditLog
from keyhole.confine import cgroup
from keyhole.confine.lockdown import lock_down_control
from keyhole.control.server import ControlServer
from keyhole.control.socket_directory import claim_socket
from keyhole.control.values import Protection
from keyhole.model.errors import SetupFailed
from keyhole.system.event_loop import run_on_loop
from keyhole.system.faults import describe_loop_fault
from keyhole.vault.memory_guard import guard_memory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from keyhole.app.containers.door_receiver_client import Expected
    from keyhole.app.remote.receiver_client import ListenAddress
    from keyhole.app.session.session_register import OrphanedSession
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.socket_directory import SocketClaim
    from keyhole.policy.budget import GatewayLimits
    from keyhole.vault.store_source import PassphrasePrompt


DESCRIPTORS = 65_536
"""Descriptors: in the data plane two for each connection, four for each session."""


class DaemonSettings(Struct, frozen=True):
    """The settings of a gateway."""

    places: HostPaths
    env: Mapping[str, str]
    ready: Callable[[], None]
    report: Callable[[str], None]
    """Prints a line for the person who started it, or for its log."""
    ask: PassphrasePrompt | None
    """Asks for the store's passphrase, until it is ready."""
    expected: Expected | None = None
    """A sandbox that another tool makes and that will register its door."""
    turned: Callable[[], None] = lambda: None
    """Called regularly while a data plane responds: for a service manager's watchdog."""
    listen: ListenAddress | None = None
    """Where it listens for doors of other machines."""
    workers: int = 1
    """Data planes over which the sessions are spread."""


def serve_daemon(serving: DaemonSettings) -> int:
    """Be the gateway until a signal or `keyhole down` ends it. Raises a KeyholeError."""
    place = claim_socket(serving.places.runtime)
    try:
        return _serve_at(place, serving)
    except OSError as error:
        raise SetupFailed(str(error)) from None
    finally:
        place.release()


def _serve_at(place: SocketClaim, serving: DaemonSettings) -> int:
    places = serving.places
    _raise_descriptor_limit()
    guard_memory()  # the store's passphrase passes through
    register = SessionRegister(places.sessions)
    left_behind = register.clear()
    cgroup.remove_stale_cgroups()
    for left in left_behind:
        ended = "was ended" if left.alive else "had ended"
        serving.report(
            f"session {left.session} ({left.label}) of a gateway that died {ended}: its"
            " sandbox could not be used again"
        )
    limits = open_gateway_limits(places)
    keeping = KeeperProcess.start(places, serving.env)
    try:
        door_receiver = None
        if serving.expected is not None:
            door_receiver = DoorReceiverClient.start(serving.expected, places, serving.env)
        remote = None
        if serving.listen is not None:
            remote = RemoteReceiverClient.start(serving.listen, places, serving.env)
        keeping.greet(serving.ask)
        listener = place.listen()
        # Before there is another thread, which would stay unconfined, and before the data plane,
        # which inherits it.
        walls = _lock_down(places)
        with AuditLog(places.audit) as log:
            _write_down(log, left_behind)
            told = _told(places, limits, serving.workers)
            workers = Workers(serving.workers, limits, told, keeping, serving.env)
            ground = _DaemonResources(
                place,
                listener,
                walls,
                workers,
                limits,
                keeping,
                register,
                log,
                door_receiver,
                remote,
            )
            return run_on_loop(lambda: _serve(serving, ground))
    finally:
        keeping.close()


def _told(places: HostPaths, limits: GatewayLimits, workers: int) -> dict[str, Any]:
    """The first message to a data plane: its directories, and the limits of all together."""
    names = ("home", "config", "state", "runtime")
    paths = {name: str(getattr(places, name)) for name in names}
    return {**paths, "limits": asdict(limits), "workers": workers}


def _write_down(log: AuditLog, left_behind: list[OrphanedSession]) -> None:
    """Record the end of sessions of a dead gateway (I8). The events are on disk when this returns:
    the register has already forgotten the sessions."""
    for left in left_behind:
        event = session_event("left-behind", command=left.label, pid=left.pid, ended=left.alive)
        log.record(left.session, event)
        log.finish(left.session)
    log.flush()


def _raise_descriptor_limit() -> None:
    """Every session needs a channel and a pidfd; the data plane inherits the limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _DaemonResources(Struct, frozen=True):
    """The resources that are acquired before the control socket listens."""

    place: SocketClaim
    listener: socket.socket
    walls: tuple[Protection, ...]
    workers: Workers
    limits: GatewayLimits
    keeping: KeeperProcess
    register: SessionRegister
    log: AuditLog
    door_receiver: DoorReceiverClient | None
    remote: RemoteReceiverClient | None


async def _serve(serving: DaemonSettings, ground: _DaemonResources) -> int:
    workers = ground.workers
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.set_exception_handler(lambda _, context: serving.report(describe_loop_fault(context)))
    operations = GatewayOperations(
        loop, workers, ground.register, ground.log, stop.set, serving.report
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    operations.door_receiver = door_receiver = ground.door_receiver
    operations.remote = ground.remote
    sessions = operations.sessions
    workers.attach(loop, sessions.heard(serving.turned), sessions.loads)
    ground.keeping.attach(loop, lambda: None)
    try:
        # No client is answered before every data plane is locked down.
        ready = await workers.first()
        sessions.most = ground.limits.sessions
        operations.protections = (*combine_protections(ready), *ground.walls)
        server = ControlServer(loop, ground.place, ground.listener, operations)
        ground.log.record("", session_event("gateway-started", pid=os.getpid()))
        serving.ready()
        if door_receiver is not None:
            door_receiver.open(loop, serving.report, stop.set)
        if ground.remote is not None:
            record = functools.partial(ground.log.record, "")
            ground.remote.open(loop, serving.report, record)
        await stop.wait()
        count = await sessions.close()
        ground.log.record("", session_event("gateway-ended", sessions=count))
        await workers.close()
        await server.close()
    finally:
        await workers.close()
    return 1 if sessions.failed or (door_receiver is not None and door_receiver.lost) else 0


def _lock_down(places: HostPaths) -> tuple[Protection, ...]:
    """Lock down: no capability, no access to other processes, and of the file system only the paths
    that the control process and a data plane need."""
    write = (places.audit, places.quarantine, places.sessions, places.runtime)
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = lock_down_control((places.config,), write)
    return tuple(Protection(each.name, each.on, each.note) for each in found)
