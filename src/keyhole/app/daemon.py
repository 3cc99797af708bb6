"""The long-lived gateway: what `keyhole up` starts, from its first file to its last.

Puts the rooms together in an order that is the promise: the place is claimed before anything else,
the keeper is started while a process may still be started, memory is guarded before the first
secret, and the control socket listens only when the gateway has locked itself down. When it ends,
every sandbox of its is ended; when it dies, they are closed (I2), and the next one clears up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from typing import TYPE_CHECKING

import uvloop

from keyhole.app.doorway import Doorway
from keyhole.app.kept import Kept, Sources
from keyhole.app.leftovers import Register
from keyhole.app.live import House
from keyhole.app.metrics import Metrics
from keyhole.app.operations import GatewayOperations
from keyhole.app.policyfile import Unreadable, open_gateway_limits
from keyhole.app.session import session_event
from keyhole.audit.directory import AuditUnusable
from keyhole.audit.log import AuditLog, Bounds
from keyhole.control.place import Unusable, claim
from keyhole.control.server import Server
from keyhole.control.values import Protection
from keyhole.gateway.gateway import Gateway
from keyhole.gateway.resolver import SystemResolver
from keyhole.model.value import dataclass
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox import cgroup
from keyhole.sandbox.jail import Jail
from keyhole.sandbox.lockdown import NotAlone, lock_down
from keyhole.system.faults import describe
from keyhole.vault.memory import Guard, guard_memory, holds_memory
from keyhole.vault.store import Store
from keyhole.vault.stored import MAX_TRIES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from keyhole.app.doorway import Expected
    from keyhole.app.leftovers import Leftover
    from keyhole.app.places import Places
    from keyhole.control.place import Claim
    from keyhole.model.secret import Secret
    from keyhole.policy.budget import GatewayLimits
    from keyhole.vault.stored import Ask

DESCRIPTORS = 65_536
"""Two for each connection, six for each session."""


class DaemonFailed(Exception):
    """No gateway can be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What a gateway is started with."""

    places: Places
    env: Mapping[str, str]
    ready: Callable[[], None]
    report: Callable[[str], None]
    """A line for whoever started it, or its log."""
    ask: Ask | None
    """Asks for the store's passphrase, until it is ready."""
    expected: Expected | None = None
    """A sandbox that others make, and whose door is to be registered."""


def serve(serving: Serving) -> int:
    """Be the gateway until a signal or `keyhole down` ends it. Raises DaemonFailed."""
    try:
        place = claim(serving.places.runtime)
    except Unusable as error:
        raise DaemonFailed(str(error)) from None
    try:
        limits = open_gateway_limits(serving.places)
        _raise_descriptor_limit()
        guard = guard_memory()
        register = Register(serving.places.sessions)
        left_behind = register.clear()
        cgroup.sweep()
        for left in left_behind:
            ended = "was ended" if left.alive else "had ended"
            serving.report(
                f"session {left.session} ({left.label}) of a gateway that died {ended}: its"
                " sandbox could not be used again"
            )
        kept = Kept.start(Sources(serving.places, serving.env, _passphrase(serving)))
        doorway = None
        if serving.expected is not None:
            doorway = Doorway.start(serving.expected, serving.places, serving.env)
        listener = place.listen()
        # Before there is another thread, which would stay as it is.
        walls = _lock_down(serving.places)
        protections = (*_guarded(guard), *walls)
        bounds = Bounds(all_per_second=limits.audit_per_second)
        log = AuditLog(serving.places.audit, bounds=bounds)
    except PolicyFaults as error:
        place.release()
        raise DaemonFailed("; ".join(fault.render() for fault in error.faults)) from None
    except (OSError, AuditUnusable, Unreadable, Unusable, NotAlone) as error:
        place.release()
        raise DaemonFailed(str(error)) from None
    except BaseException:
        place.release()
        raise
    with log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            _write_down(log, left_behind)
            ground = _Ground(place, listener, kept, register, log, limits, protections, doorway)
            return runner.run(_serve(serving, ground))
        finally:
            kept.close()
            place.release()


def _write_down(log: AuditLog, left_behind: list[Leftover]) -> None:
    """The end of sessions whose gateway died before it could (I8). It is on disk when this returns:
    the register has forgotten them already."""
    for left in left_behind:
        event = session_event("left-behind", command=left.label, pid=left.pid, ended=left.alive)
        log.record(left.session, event)
        log.finish(left.session)
    log.flush()


def _passphrase(serving: Serving) -> Secret | None:
    """Asked for where something in the store is encrypted, and seen to be the right one."""
    file = Store(serving.places.store).key_file
    if file is None or serving.ask is None:
        return None
    from keyhole.vault.envelope import Damaged, open_key  # it brings a cipher library

    for attempt in range(MAX_TRIES):
        passphrase = serving.ask(attempt > 0)
        try:
            if passphrase is None or open_key(file, passphrase) is not None:
                return passphrase
        except Damaged:
            return None  # sessions that want something of it are told so
    raise DaemonFailed("that is not the store's passphrase")


def _raise_descriptor_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class _Ground:
    """What was opened before the lock-down, or can be opened after it."""

    place: Claim
    listener: socket.socket
    kept: Kept
    register: Register
    log: AuditLog
    limits: GatewayLimits
    protections: tuple[Protection, ...]
    doorway: Doorway | None


async def _serve(serving: Serving, ground: _Ground) -> int:
    kept, log = ground.kept, ground.log
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.set_exception_handler(lambda _, context: serving.report(_fault(context)))
    judge = Jail(start=kept.start_judge)
    metrics = Metrics(log)
    gateway = Gateway(loop, SystemResolver(loop), limits=ground.limits)
    house = House(loop, gateway, log, lambda: judge, serving.places.quarantine, metrics.observe)
    operations = GatewayOperations(
        house, kept, ground.register, metrics, stop.set, ground.limits.sessions
    )
    kept.attach(loop, operations.changed)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    operations.protections = ground.protections
    operations.doorway = doorway = ground.doorway
    server = Server(loop, ground.place, ground.listener, operations)
    log.record("", session_event("gateway-started", pid=os.getpid()))
    # What is here now stays: the collector need not look at it each time that a session ends.
    gc.collect()
    gc.freeze()
    serving.ready()
    if doorway is not None:
        doorway.open(loop, serving.report, stop.set)
    await stop.wait()
    count = await operations.close()
    gateway.close()
    judge.close()
    log.record("", session_event("gateway-ended", sessions=count))
    await server.close()
    return 1 if doorway is not None and doorway.lost else 0


def _guarded(guard: Guard) -> tuple[Protection, ...]:
    """Asked for when the walls stand: without a capability, memory may not stay locked."""
    locked = guard.locked and holds_memory()
    swap = "" if locked else "memory may be swapped out: RLIMIT_MEMLOCK does not allow more"
    return Protection("no-core", guard.hidden), Protection("no-swap", locked, swap)


def _lock_down(places: Places) -> tuple[Protection, ...]:
    """From here on: no process, no capability, and of the file system what the gateway needs."""
    # Imported when they are first used, which is too late to look for them.
    from keyhole.app import interception as interception
    from keyhole.inject import sieve as sieve

    write = (places.audit, places.quarantine, places.sessions, places.runtime)
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = lock_down((), write)
    return tuple(Protection(each.name, each.on, each.note) for each in found)


def _fault(context: dict[str, object]) -> str:
    """What broke, without its words: they may hold what a request held."""
    error = context.get("exception")
    what = describe(error) if isinstance(error, BaseException) else "unknown"
    return f"{context.get('message')}: {what}"
