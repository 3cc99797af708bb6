"""The data plane of a long-lived gateway: the process that has the doors, the secrets and the CAs.

Started by the control process (`planes.py`), which owns the control socket and may kill it at any
time. It reads bytes of sandboxes and origins, so it is locked down before the first door opens, and
the control process takes its word for nothing. It beats while its loop turns (`heartbeat.py`), and
dies with the control process (I2).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from keyhole.app.calls import (
    ACKNOWLEDGED,
    ANSWERS,
    CLOSED,
    MAX_CALL,
    MAX_DOOR,
    READY,
    SAID,
    Closed,
    Ready,
    Said,
)
from keyhole.app.companion import stay_with_parent
from keyhole.app.heartbeat import Pulse
from keyhole.app.kept import Kept
from keyhole.app.live import House
from keyhole.app.message import framed
from keyhole.app.metrics import Metrics
from keyhole.app.places import Places
from keyhole.app.policyfile import Unreadable, open_gateway_limits
from keyhole.app.served import ServedSessions
from keyhole.audit.directory import AuditUnusable
from keyhole.audit.log import AuditLog, Bounds
from keyhole.control.interface import NoSuch, Refused
from keyhole.control.values import Protection
from keyhole.gateway.gateway import Gateway
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.jail import Jail
from keyhole.sandbox.lockdown import NotAlone, lock_down
from keyhole.system.faults import describe_loop_fault
from keyhole.system.resolver import SystemResolver
from keyhole.vault.memory import Guard, guard_memory, holds_memory

if TYPE_CHECKING:
    from keyhole.app.ending import Ending
    from keyhole.policy.budget import GatewayLimits

AUDIT_RESERVE = 32 << 20
"""Bytes of the disk that the log has ahead: a thousand lines and more for each of 64 sessions."""

MAX_UNSENT = 4 * 1024 * 1024
"""Bytes that wait for the control process; beyond it, lines for people are dropped."""


class Controlled:
    """The control process, as the data plane sees it: calls come in, answers and events go out."""

    def __init__(self, calls: socket.socket, answers: socket.socket) -> None:
        self._calls, self._answers = calls, answers
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: ServedSessions | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.over = asyncio.Event()

    def attach(self, loop: asyncio.AbstractEventLoop, sessions: ServedSessions) -> None:
        """Do what is asked from now on."""
        self._loop, self._sessions = loop, sessions
        self._calls.setblocking(False)
        self._answers.setblocking(False)
        loop.add_reader(self._calls, self._readable)

    # ── told ──────────────────────────────────────────────────────────────────────────────────────

    def ready(self, ready: Ready) -> None:
        """It serves."""
        self._send({"ready": READY.write(ready, "ready")})

    def failed(self, why: str) -> None:
        """It does not, and why."""
        with contextlib.suppress(OSError):
            self._answers.sendall(framed(json.dumps({"failed": why[:4000]}).encode()))

    def closed(self, session: str, why: Ending) -> None:
        """A door was closed."""
        self._send({"closed": CLOSED.write(Closed(session, why), "closed")})

    def say(self, session: str, text: str) -> None:
        """A line for the person in front of a session."""
        if len(self._unsent) < MAX_UNSENT:
            self._send({"said": SAID.write(Said(session, visible(text)[:4000]), "said")})

    def report(self, text: str) -> None:
        """A line for the gateway's log."""
        self.say("", text)

    def _send(self, message: dict[str, object]) -> None:
        self._unsent += framed(json.dumps(message).encode())
        self._writable()

    def _writable(self) -> None:
        if self._loop is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._answers.send(self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._answers, self._writable)
            return
        except OSError:
            self.over.set()
            return
        self._loop.remove_writer(self._answers)

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._calls, MAX_CALL, MAX_DOOR)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.over.set()
            if self._loop is not None:
                self._loop.remove_reader(self._calls)
            return
        words: dict[str, Any] = json.loads(data)
        words["sockets"] = [socket.socket(fileno=each) for each in descriptors]
        name, number = words["do"], words["number"]
        if number and name in ACKNOWLEDGED:
            self._send({"received": number})
        if name == "end":
            self.over.set()
            return
        if self._loop is not None:
            task = self._loop.create_task(self._do(name, number, words))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, name: str, number: int, words: dict[str, Any]) -> None:
        answer: dict[str, object]
        try:
            if name not in ANSWERS:
                raise NoSuch
            value = await getattr(self._sessions, name)(words)
            answer = {"value": value}
        except NoSuch:
            answer = {"unknown": True}
        except Refused as refused:
            answer = {"refused": refused.why}
        except Exception as error:  # noqa: BLE001 - told where every fault of the loop is
            if self._loop is not None:
                context = {"message": "a control operation failed", "exception": error}
                self._loop.call_exception_handler(context)
            answer = {"fault": True}
        if number:
            self._send({"answer": number} | answer)


def main() -> None:
    """The process: `python -c … CALLS ANSWERS PULSE LINK JUDGES`; its places come first."""
    if not stay_with_parent():
        return
    numbers = [int(word) for word in sys.argv[1:6]]
    for each in numbers:
        os.set_inheritable(each, False)
    calls, answers, link, judges = (socket.socket(fileno=numbers[index]) for index in (0, 1, 3, 4))
    controlled = Controlled(calls, answers)
    told = json.loads(calls.recv(MAX_CALL) or b"{}")
    if not told:
        return
    places = Places(*(Path(told[name]) for name in ("home", "config", "state", "runtime")))
    try:
        limits = open_gateway_limits(places)
        guard = guard_memory()
        # Before there is another thread, which would stay as it is.
        walls = _lock_down(places)
        protections = (*_guarded(guard), *walls)
        bounds = Bounds(all_per_second=limits.audit_per_second, reserve=AUDIT_RESERVE)
        log = AuditLog(places.audit, bounds=bounds)
    except PolicyFaults as error:
        controlled.failed("; ".join(fault.render() for fault in error.faults))
        return
    except (OSError, AuditUnusable, Unreadable, NotAlone) as error:
        controlled.failed(str(error))
        return
    with log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        kept = Kept(link, judges)
        served = _serve(places, limits, log, kept, controlled, numbers[2], protections)
        runner.run(served)
        kept.close()


async def _serve(
    places: Places,
    limits: GatewayLimits,
    log: AuditLog,
    kept: Kept,
    controlled: Controlled,
    pulse: int,
    protections: tuple[Protection, ...],
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: controlled.report(describe_loop_fault(context)))
    judge = Jail(start=kept.start_judge)
    metrics = Metrics(log)
    gateway = Gateway(loop, SystemResolver(loop), limits=limits)
    house = House(loop, gateway, log, judge.for_session, places.quarantine, metrics.observe)
    sessions = ServedSessions(house, kept, metrics, controlled.closed, controlled.say)
    kept.attach(loop, sessions.changed)
    controlled.attach(loop, sessions)
    # What is here now stays: the collector need not look at it each time that a session ends.
    gc.collect()
    gc.freeze()
    beating = Pulse(loop, pulse)
    controlled.ready(Ready(limits.sessions, protections))
    await controlled.over.wait()
    sessions.shut()
    gateway.close()
    judge.close()
    beating.close()


def _guarded(guard: Guard) -> tuple[Protection, ...]:
    """Asked for when the walls stand: without a capability, memory may not stay locked."""
    locked = guard.locked and holds_memory()
    swap = "" if locked else "memory may be swapped out: RLIMIT_MEMLOCK does not allow more"
    return Protection("no-core", guard.hidden), Protection("no-swap", locked, swap)


def _lock_down(places: Places) -> tuple[Protection, ...]:
    """From here on: no process, no capability, and of the file system what the data plane needs."""
    # Imported when they are first used, which is too late to look for them.
    from keyhole.app import interception as interception
    from keyhole.inject import sieve as sieve

    write = (places.audit, places.quarantine)
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = lock_down((), write)
    return tuple(Protection(each.name, each.on, each.note) for each in found)


if __name__ == "__main__":
    main()
