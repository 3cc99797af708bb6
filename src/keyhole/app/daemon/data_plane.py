"""A data plane of a long-lived gateway: a process that has doors, secrets and CAs.

A gateway has one or several, its workers; each knows its own sessions alone.

Started by the control process (`data_plane_process.py`), which owns the control socket and may kill
it at any time. It reads bytes of sandboxes and origins, so it is locked down before the first door
opens, and the control process trusts none of its messages. It beats while its loop turns
(`heartbeat.py`), and dies with the control process (I2).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from msgspec import Struct, convert

from keyhole.app.daemon.common_limits import CommonLimits
from keyhole.app.daemon.keeper_client import KeeperClient
from keyhole.app.daemon.metrics import Metrics
from keyhole.app.daemon.plane_messages import (
    ACKNOWLEDGED,
    ANSWERS,
    CLOSED,
    LOG_ENDED,
    MAX_CALL,
    MAX_DOOR,
    READY,
    SAID,
    DataPlaneReady,
    DoorClosed,
    LogEnded,
    SessionMessage,
)
from keyhole.app.daemon.served_sessions import ServedSessions
from keyhole.app.processes.child import inherit
from keyhole.app.processes.heartbeat import HeartbeatSender
from keyhole.app.processes.message_frames import frame_message
from keyhole.app.processes.outgoing import OutgoingBytes
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.session import interception as interception
from keyhole.app.session.control_views import ask_report
from keyhole.app.session.live_session import GatewayContext
from keyhole.app.setup.host_paths import HostPaths
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.control.interface import NoSuchSession
from keyhole.control.values import Protection
from keyhole.gateway.gateway import Gateway
from keyhole.inject import prefilter as prefilter
from keyhole.judge.judge_pool import JudgePool, share_of_judges
from keyhole.model.errors import KeyholeError, Refused
from keyhole.model.text import visible
from keyhole.policy.budget import GatewayLimits
from keyhole.policy.graphql.judge import prepare_graphql
from keyhole.system.faults import describe_loop_fault
from keyhole.system.resolver import SystemResolver, share_of_lookups
from keyhole.system.serving_memory import prepare_memory
from keyhole.vault.memory_guard import MemoryGuard, holds_memory

if TYPE_CHECKING:
    from keyhole.app.session.end_reason import EndReason
    from keyhole.gateway.asking import AskNotice

AUDIT_RESERVE = 32 << 20
"""Bytes of disk that the logs of all workers allocate ahead: a thousand lines and more for each of
64 sessions."""

MAX_UNSENT = 4 * 1024 * 1024
"""Bytes that may wait for the control process; beyond that, lines for people are dropped."""


LAST_SECONDS = 1.0
"""Seconds for the last message: less than the control process waits for the end."""


class ControlProcessLink:
    """The data plane's connection to the control process: calls come in, answers and events go
    out."""

    def __init__(self, calls: socket.socket, answers: socket.socket) -> None:
        self._calls, self._answers = calls, answers
        self.over = asyncio.Event()
        self._unsent = OutgoingBytes(answers, self.over.set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: ServedSessions | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, loop: asyncio.AbstractEventLoop, sessions: ServedSessions) -> None:
        """Answer calls from now on."""
        self._loop, self._sessions = loop, sessions
        self._calls.setblocking(False)
        self._unsent.attach(loop)
        loop.add_reader(self._calls, self._readable)

    # ── told ──────────────────────────────────────────────────────────────────────────────────────

    def ready(self, ready: DataPlaneReady) -> None:
        """Report that it serves."""
        self._send({"ready": READY.write(ready, "ready")})

    def failed(self, why: str) -> None:
        """Report why it does not serve."""
        with contextlib.suppress(OSError):
            self._answers.sendall(frame_message(json.dumps({"failed": why[:4000]}).encode()))

    def closed(self, session: str, why: EndReason) -> None:
        """Report that a door was closed."""
        self._send({"closed": CLOSED.write(DoorClosed(session, why), "closed")})

    def say(self, session: str, text: str, times: int = 0) -> None:
        """Send a line for the person at a session's terminal."""
        if len(self._unsent) < MAX_UNSENT:
            message = SessionMessage(session, visible(text)[:4000], times)
            self._send({"said": SAID.write(message, "said")})

    def asked(self, session: str, notice: AskNotice) -> None:
        """Report a question."""
        self._send({"asked": ask_report(session, notice)})

    def lack(self) -> None:
        """Report that a limit of all workers together refused."""
        self._send({"lacking": True})

    def log_ended(self, head: str) -> None:
        """Report the digest of the log's last line; after the loop, as the last message."""
        message = {"log_ended": LOG_ENDED.write(LogEnded(head), "log_ended")}
        self._unsent.finish(frame_message(json.dumps(message).encode()), LAST_SECONDS)

    def report(self, text: str) -> None:
        """Send a line for the gateway's log."""
        self.say("", text)

    def _send(self, message: dict[str, object]) -> None:
        self._unsent.send(frame_message(json.dumps(message).encode()))

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
                raise NoSuchSession
            value = await getattr(self._sessions, name)(words)
            answer = {"value": value}
        except NoSuchSession:
            answer = {"unknown": True}
        except Refused as refused:
            answer = {"refused": refused.message}
        except Exception as error:  # noqa: BLE001 - told where every fault of the loop is
            if self._loop is not None:
                context = {"message": "a control operation failed", "exception": error}
                self._loop.call_exception_handler(context)
            answer = {"fault": True}
        if number:
            self._send({"answer": number} | answer)


def main() -> None:
    """Run as `python -c … CALLS ANSWERS PULSE LINK JUDGES`; the first message has its directories
    and its part of the limits."""
    numbers = inherit(5)
    if not numbers:
        return
    calls, answers, link, judges = (socket.socket(fileno=numbers[index]) for index in (0, 1, 3, 4))
    controlled = ControlProcessLink(calls, answers)
    told = json.loads(calls.recv(MAX_CALL) or b"{}")
    if not told:
        return
    places = HostPaths(*(Path(told[name]) for name in ("home", "config", "state", "runtime")))
    limits, workers = convert(told["limits"], GatewayLimits), int(told["workers"])
    common = CommonLimits(controlled.lack if workers > 1 else None)
    prepare_graphql()
    try:
        # Before there is another thread, which would stay unconfined.
        protections = _lock_down(places)
        reserve = AUDIT_RESERVE // workers
        bounds = LogBounds(all_per_second=limits.audit_per_second, reserve=reserve)
        log = AuditLog(places.audit, bounds=bounds, lack=common.lack)
    except (OSError, KeyholeError) as error:
        controlled.failed(str(error))
        return
    with log, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        keeper = KeeperClient(link, judges)
        share = WorkerShare(limits, workers, common, told["shares"])
        runner.run(_serve(places, share, log, keeper, controlled, numbers[2], protections))
        keeper.close()
    controlled.log_ended(log.head())


class WorkerShare(Struct, frozen=True):
    """This worker's part of what all workers of the gateway have together."""

    limits: GatewayLimits
    """Those of all together."""
    workers: int
    common: CommonLimits
    shares: dict[str, float]
    """Its first shares of the limits."""


async def _serve(
    places: HostPaths,
    part: WorkerShare,
    log: AuditLog,
    keeper: KeeperClient,
    controlled: ControlProcessLink,
    pulse: int,
    protections: tuple[Protection, ...],
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: controlled.report(describe_loop_fault(context)))
    judge = JudgePool(start=keeper.start_judge, places=share_of_judges(part.workers))
    metrics = Metrics(log)
    resolver = SystemResolver(loop, share_of_lookups(part.workers))
    gateway = Gateway(loop, resolver, limits=part.limits, lack=part.common.lack)
    part.common.attach(loop, gateway, log)
    part.common.share(part.shares)
    context = GatewayContext(
        loop,
        gateway,
        log,
        judge.for_session,
        places.quarantine,
        metrics.observe,
        keeper.sign,
        controlled.asked,
        keeper.spent,
        keeper.consult,
        keeper.remember_tool,
    )
    sessions = ServedSessions(
        context, keeper, metrics, part.common, controlled.closed, controlled.say
    )
    keeper.attach(loop, sessions.changed)
    controlled.attach(loop, sessions)
    # Objects made until now stay, so the collector need not look at them when a session ends.
    gc.collect()
    gc.freeze()
    prepare_memory()
    beating = HeartbeatSender(loop, pulse)
    controlled.ready(DataPlaneReady(protections))
    await controlled.over.wait()
    sessions.shut()
    gateway.close()
    judge.close()
    beating.close()


def _guarded(guard: MemoryGuard) -> tuple[Protection, ...]:
    """The protections of this process's memory. Called after the lock-down: without a capability,
    memory may not stay locked."""
    locked = guard.locked and holds_memory()
    swap = "" if locked else "memory may be swapped out: RLIMIT_MEMLOCK does not allow more"
    return Protection("no-core", guard.hidden), Protection("no-swap", locked, swap)


def _lock_down(places: HostPaths) -> tuple[Protection, ...]:
    """Lock down: no process, no capability, and of the file system only the paths that the data
    plane needs."""
    # Modules that are imported at their first use: after the lock-down they could not be found.
    guard, found = lock_down_plane((places.audit, places.quarantine))
    return (*_guarded(guard), *(Protection(each.name, each.on, each.note) for each in found))


if __name__ == "__main__":
    main()
