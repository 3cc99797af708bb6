"""A run's data plane while it serves: the gateway with one session, on a loop.

Imported by `data_plane.py` in a thread, when a client connects or a moment after the door came.
"""

from __future__ import annotations

import base64
import os
import re
import resource
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from keyhole.app.processes.awaited_judges import AwaitedJudges
from keyhole.app.processes.heartbeat import HeartbeatSender
from keyhole.app.processes.messages import (
    AnswerAsk,
    ChangeRefused,
    CloseDoor,
    CommandAnswered,
    CommitSigned,
    GrantHost,
    JudgeStarted,
    PolicyReloaded,
    ReportFigures,
    ResumeSession,
    SecretRotated,
    SpendingChanged,
    WatchSession,
    unpack_run_message,
    unpacked,
)
from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.run.data_plane_link import MAX_SAID
from keyhole.app.run.port_claims import is_claimed
from keyhole.app.session.command_answer import read_printed_answer
from keyhole.app.session.control_views import ask_report, budget_views, grant_view
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.lazy_audit_log import LazyAuditLog
from keyhole.app.session.live_session import GatewayContext, LiveSession
from keyhole.app.setup.provision import Provision
from keyhole.control.operation_table import ASK_VIEW
from keyhole.gateway.asking import AskAnswer
from keyhole.gateway.door.door import Door
from keyhole.gateway.gateway import Gateway
from keyhole.judge.judge_pool import JudgePool
from keyhole.model.errors import Refused
from keyhole.model.host import HostPattern
from keyhole.policy.asks import Answer
from keyhole.system.faults import describe_loop_fault
from keyhole.system.resolver import SystemResolver
from keyhole.system.serving_memory import prepare_memory

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Mapping

    from keyhole.app.run.data_plane_link import PlaneSockets
    from keyhole.app.run.data_plane_opening import OpenedPlane, PlanePaths
    from keyhole.control.values import AskView
    from keyhole.gateway.session import Judge
    from keyhole.policy.mcp_grant import SeenTool

DESCRIPTORS = 20_000
"""Two descriptors for each of the gateway's connections, and some for everything else."""

STUCK = "data-plane-stuck"
"""A fault for tests: a signal makes the data plane match a pattern that takes forever."""


def serve(sockets: PlaneSockets, opened: OpenedPlane, paths: PlanePaths) -> None:
    """Serve the session until the other process ends this one. Raises Refused or OSError."""
    _raise_descriptor_limit()
    prepare_memory()
    loop = uvloop.new_event_loop()
    kept = RunDataPlane(loop, sockets, opened, paths)
    if STUCK in opened.fault.split(","):
        _stand_still_on_signal(loop)
    loop.run_forever()
    del kept


class RunDataPlane:
    """Serves one session on a loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: PlaneSockets,
        opened: OpenedPlane,
        paths: PlanePaths,
    ) -> None:
        """Raises Refused or OSError."""
        self._loop = loop
        self._link = sockets.link
        self._line: SandboxChannel = SandboxChannel(
            loop, sockets.line, self._heard, lambda: os._exit(0)
        )
        self._judge: JudgePool | None = None
        self._judges = AwaitedJudges(loop)
        self._number = 0
        self._signatures: dict[int, asyncio.Future[bytes]] = {}
        self._consulted: dict[int, asyncio.Future[bytes]] = {}
        prepared = opened.session
        self._id = prepared.id
        self._log = LazyAuditLog(paths.audit)
        self._log.begin(self._id, prepared.provision.policy.limits.audit_per_second)
        self._gateway = Gateway(
            loop,
            SystemResolver(loop),
            limits=opened.limits,
            is_own_port=partial(is_claimed, paths.ports),
        )
        context = GatewayContext(
            loop,
            self._gateway,
            self._log,
            self._make_judge,
            paths.quarantine,
            sign=self._sign,
            announce=lambda session, notice: self._line.say(asked=ask_report(session, notice)),
            spend=lambda _, service, spent: self._line.say(spent={service: spent}),
            consult=self._consult,
            tools=self._tell_tool,
        )
        door = Door.of(sockets.door, sockets.inner_ports)
        self._live: LiveSession = LiveSession(context, prepared, door, self._say, self._closed)
        if opened.watched:
            self._live.watch(answers=True)
        loop.set_exception_handler(self._failed)
        self._link.sock.setblocking(False)
        loop.add_reader(self._link.sock, self._readable)
        self._pulse = HeartbeatSender(loop, sockets.pulse)
        for message in sockets.later:
            self._take(message)
        self._line.say(opened=True)

    # ── what is heard ─────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        for message in self._link.read():
            self._take(message)

    def _take(self, message: bytes) -> None:
        match unpack_run_message(message):
            case SecretRotated(reference, secret, hidden):
                self._live.rotate(reference, secret, hidden)
            case PolicyReloaded(provision):
                self._live.reload(unpacked(provision, Provision))
            case SpendingChanged(spending):
                self._live.know_spending(spending)
            case ChangeRefused(why):
                self._live.keep(why)
            case GrantHost(number, host, seconds, uses, by):
                self._grant(number, host, seconds, uses, by)
            case ResumeSession(number, by):
                self._resume(number, by)
            case ReportFigures(number):
                self._line.say(looked=number, **self._figures())
            case AnswerAsk(number, ask, answer, seconds, by, via):
                self._answer(number, AskAnswer(ask, Answer(answer), seconds, by, via))
            case WatchSession(answers):
                self._live.watch(answers=answers)
            case CommandAnswered(number, printed, why):
                settle(self._consulted, number, printed, why)
            case CloseDoor(ending, by):
                self._live.close(EndReason(ending), by)
            case CommitSigned(number, signature, why):
                settle(self._signatures, number, signature, why)
            case JudgeStarted(why):
                self._judges.arrived(why, self._link.taken())

    def _heard(self, message: dict[str, Any]) -> None:
        if "ended" not in message:
            return
        self._live.close(EndReason.DONE)
        self._gateway.close()
        if self._judge is not None:
            self._judge.close()
        self._log.finish(self._id)
        self._log.close()
        for line, times in self._live.handle.repeated_refusals():
            self._line.say(say=line[:MAX_SAID], times=times)
        self._line.say(head=self._log.head())
        os._exit(0)

    # ── what is said ──────────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        self._line.say(say=text[:MAX_SAID])

    def _closed(self, ending: str) -> None:
        self._line.say(closed=str(ending), **self._figures())

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._say(describe_loop_fault(context))

    def _grant(self, number: int, host: str, seconds: int, uses: int, by: int) -> None:
        try:
            pattern = HostPattern.parse(host)
            given = grant_view(self._live.grant(pattern, seconds, uses, by))
        except Refused as error:
            self._line.say(ungranted=number, why=str(error))
            return
        self._line.say(granted=number, host=given.host, expires=given.expires, uses=given.uses)

    def _resume(self, number: int, by: int) -> None:
        try:
            self._live.resume(by)
        except Refused as error:
            self._line.say(ungranted=number, why=str(error))
            return
        self._line.say(granted=number)

    def _answer(self, number: int, given: AskAnswer) -> None:
        try:
            answered = self._live.answer(given)
        except Refused as error:
            self._line.say(ungranted=number, why=str(error))
            return
        self._line.say(granted=number, ask=ASK_VIEW.write(answered, "ask"))

    def _figures(self) -> dict[str, object]:
        live, figures = self._live, self._live.handle.figures
        used = budget_views(live.handle.budgets)
        grants = () if live.ending else map(grant_view, live.handle.grants)
        return {
            "figures": [
                figures.connections, figures.requests, figures.denied, figures.up, figures.down,
                figures.spent, figures.unpriced,
            ],
            "grants": [[each.host, each.expires, each.uses] for each in grants],
            "frozen": live.frozen,
            "budgets": [[each.name, each.used, each.limit] for each in used],
        }  # fmt: skip

    # ── signatures, which another process makes ──────────────────────────────────────────────────

    async def _sign(self, _: str, commit: bytes) -> bytes:
        self._number += 1
        number = self._number
        coming: asyncio.Future[bytes] = self._loop.create_future()
        self._signatures[number] = coming
        self._line.say(sign=number, commit=base64.b64encode(commit).decode("ascii"))
        try:
            return await coming
        finally:
            del self._signatures[number]

    async def _consult(self, _: str, ask: AskView) -> dict[str, Any]:
        """Have the policy's command answer a question. Raises Refused."""
        self._number += 1
        number = self._number
        coming: asyncio.Future[bytes] = self._loop.create_future()
        self._consulted[number] = coming
        self._line.say(consult=number, ask=ASK_VIEW.write(ask, "ask"))
        try:
            return read_printed_answer(await coming)
        finally:
            del self._consulted[number]

    def _tell_tool(self, _: str, service: str, seen: SeenTool) -> None:
        """Have a tool remembered by the process that may write files."""
        self._line.say(tools=service, seen=[[seen.name, seen.digest, seen.accepted]])

    # ── judges, which another process starts ──────────────────────────────────────────────────────

    def _make_judge(self, session: str) -> Judge:
        if self._judge is None:
            self._judge = JudgePool(start=self._start_judge)
        return self._judge.for_session(session)

    async def _start_judge(self) -> tuple[socket.socket, int]:
        coming = self._judges.expect()
        self._line.say(judge=True)
        return await coming


def settle(
    waiting: Mapping[int, asyncio.Future[bytes]], number: int, value: bytes, why: str
) -> None:
    """Hand an answer to the code that waits for it."""
    coming = waiting.get(number)
    if coming is None or coming.done():
        return
    if why:
        coming.set_exception(Refused(why))
    else:
        coming.set_result(value)


def _raise_descriptor_limit() -> None:
    """Each connection takes two descriptors; the soft limit of a shell is often 1,024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stand_still_on_signal(loop: asyncio.AbstractEventLoop) -> None:
    def stand_still() -> None:
        re.match(r"(a|a)*b", "a" * 1000)

    loop.add_signal_handler(signal.SIGUSR1, stand_still)
