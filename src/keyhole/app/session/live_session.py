"""A session with an open door: its policy and secrets can change, and it ends at its limits.

The same for a run's own gateway and for one that serves many. Lives on the gateway's loop. It opens
and reads nothing: `source_watcher.py` passes it new secrets and policies. Changes are recorded
(I8).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.session.command_answer import MAX_COMMANDS, read_command_answer
from keyhole.app.session.control_views import ask_view, subject_words, waiting_line
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_events import refused_event, session_event
from keyhole.gateway.asking import AskNotice
from keyhole.gateway.session import Session
from keyhole.gateway.tasks import Tasks
from keyhole.model.decision import Reason
from keyhole.model.errors import Refused
from keyhole.model.host import Host
from keyhole.model.text import visible
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.system import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from keyhole.app.session.lazy_audit_log import LazyAuditLog
    from keyhole.app.session.prepared_session import PreparedSession
    from keyhole.app.setup.provision import Provision
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import AskView
    from keyhole.gateway.asking import AskAnswer
    from keyhole.gateway.door.door import Door
    from keyhole.gateway.door.handle import DoorHandle
    from keyhole.gateway.gateway import Gateway
    from keyhole.gateway.session import Judge
    from keyhole.model.event import Event
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.asks import Ask
    from keyhole.policy.budget import PeriodSpending
    from keyhole.policy.grants import Grant
    from keyhole.policy.mcp_grant import SeenTool

TICK = 1.0
"""Seconds between two checks of a session's age."""

MAX_CHANGES = 64
"""Lines of one change that are recorded; a person does not judge more at once."""


NOT_FROZEN = "the session is not frozen"
NOT_ASKED = "no question of this session waits"


class GatewayContext(Struct, frozen=True):
    """Values that all sessions of one gateway share."""

    loop: asyncio.AbstractEventLoop
    gateway: Gateway
    log: AuditLog | LazyAuditLog
    judge: Callable[[str], Judge]
    """The judge of pushes; made when the first session needs it."""
    quarantine: Path
    observe: Callable[[Event], None] | None = None
    """Sees every event, for the metrics."""
    sign: Callable[[str, bytes], Awaitable[bytes]] | None = None
    """Has a session's commit signed outside the data plane. Raises Refused."""
    announce: Callable[[str, AskNotice], None] | None = None
    """Told of a session's questions; None: nobody is ever asked."""
    spend: Callable[[str, str, int], None] | None = None
    """Told what a session's service has cost so far."""
    consult: Callable[[str, AskView], Awaitable[dict[str, Any]]] | None = None
    """Runs `approvals.command` outside the data plane, and returns its answer. Raises Refused."""
    tools: Callable[[str, str, SeenTool], None] | None = None
    """Has a tool of a session's service remembered for later sessions."""


class IdleTimer:
    """The time since a session last used a credential, including time in which the host slept.

    The gateway notes uses by a clock that stops while the host sleeps.
    """

    def __init__(self) -> None:
        self._used = 0.0
        self._asleep = 0.0

    def seconds(self, used: float, steady: float, since_boot: float) -> float:
        """The seconds without use, to be called now and then; `used` and `steady` are by the
        gateway's clock."""
        asleep = since_boot - steady
        if used != self._used:
            self._used, self._asleep = used, asleep
        return steady - used + asleep - self._asleep


class LiveSession:
    """One session from the opening of its door to its closing."""

    def __init__(
        self,
        context: GatewayContext,
        prepared: PreparedSession,
        door: Door,
        report: Callable[[str], None],
        ended: Callable[[EndReason], None],
    ) -> None:
        """`report` shows the user a line; `ended` is called with the reason when the door was
        closed."""
        self._context = context
        self._prepared = prepared
        self._report = report
        self._ended = ended
        self._born = clock.now()
        self._idleness = IdleTimer()
        self._book: Rulebook | None = None
        self.ending: EndReason | None = None
        self._watched = False
        self._tasks = Tasks(context.loop)
        self._commands = asyncio.Semaphore(MAX_COMMANDS)
        # Before the first credential is rendered: a secret that cannot be stops it here.
        session = self._session(prepared)
        try:
            self._handle: DoorHandle = context.gateway.open_door(door, session)
        except BaseException:
            door.close()
            raise
        self._handle.know_spending(prepared.provision.spending)
        policy = prepared.provision.policy
        if policy.learning:
            credentials = any(service.secret for service in policy.services)
            self.record(session_event("learning", credentials=str(credentials).lower()))
        self._timer = context.loop.call_later(self._next(), self._tick)

    @property
    def provision(self) -> Provision:
        """The policy, roots and secrets now in force."""
        return self._prepared.provision

    @property
    def trusted(self) -> bool:
        """Whether its CA is made, if it needs one."""
        return self._prepared.trust is not None or self.provision.roots is None

    async def try_upstream(self, host: Host, port: int) -> str:
        """Why this cannot be reached now, by the session's own rules; empty when it can."""
        book = self._book or Rulebook(self.provision.policy)
        return await self._context.gateway.try_upstream(book, host, port)

    @property
    def handle(self) -> DoorHandle:
        """The handle of its door."""
        return self._handle

    @property
    def expires_in(self) -> float:
        """Seconds until it ends at the latest."""
        return self._born + self.provision.policy.limits.ttl - clock.now()

    # ── what it may do ────────────────────────────────────────────────────────────────────────────

    def rotate(self, ref: SecretRef, secret: Secret, hidden: tuple[Secret, ...] = ()) -> None:
        """Inject this secret from now on; responses are still searched for the old one (I7)."""
        services = self.provision.services_of(ref)
        if self.ending or not services:
            return
        try:
            self._change(self._prepared.with_secret(ref, secret, hidden))
        except Refused as refused:
            self.keep(f"the new secret of {', '.join(services)} is not used: {refused}")
            return
        for name in services:
            self.record(session_event("secret-changed", service=name))

    def reload(self, provision: Provision) -> None:
        """Continue under another policy."""
        if self.ending:
            return
        before, after = _lines(self.provision), _lines(provision)
        try:
            self._change(self._prepared.with_provision(provision))
        except Refused as refused:
            self.keep(f"the changed policy is not used: {refused}")
            return
        self.record(session_event("policy-changed", digest=provision.digest))
        for what, lines in (("granted", after - before), ("withdrawn", before - after)):
            for line in sorted(lines)[:MAX_CHANGES]:
                self.record(session_event(what, grant=line))
        self._report("the policy has changed and holds from now on")

    def know_spending(self, spending: Mapping[str, PeriodSpending]) -> None:
        """What all sessions of the user have spent, by service."""
        if self.ending is None:
            self._handle.know_spending(spending)

    def keep(self, why: str) -> None:
        """Continue as before, although something changed that cannot be used."""
        if self.ending is None:
            self.record(refused_event("change-refused", why=why))
            self._report(why)

    def grant(self, pattern: HostPattern, seconds: int, uses: int, by: int) -> Grant:
        """Allow one more host for a while, as a person asked. Raises Refused if it cannot be
        granted."""
        given = self._handle.grant(Host.parse(pattern.name), pattern.port, seconds, uses)
        self.record(session_event("granted", grant=str(pattern), seconds=seconds, uses=uses, by=by))
        self._report(f"{pattern} is granted for {seconds} s and {uses} uses")
        return given

    @property
    def frozen(self) -> bool:
        """Whether nothing passes until a person resumes it."""
        return self.ending is None and self._handle.frozen

    def resume(self, by: int) -> None:
        """Let a frozen session go on, as a person asked. Raises Refused if it is not frozen."""
        if self.ending is not None or not self._handle.thaw():
            raise Refused(NOT_FROZEN)
        self.record(session_event("resumed", by=by))
        self._report("this session goes on")

    def _change(self, prepared: PreparedSession) -> None:
        session = self._session(prepared)
        self._prepared = prepared
        try:
            self._handle.change(session)
        except BaseException:
            self.close(EndReason.REVOKED)  # its door is already closed: inform everyone
            raise

    def _session(self, prepared: PreparedSession) -> Session:
        context, policy = self._context, prepared.provision.policy
        # A new secret under the same policy is decided by the same book.
        book = self._book if self._book and self._book.policy is policy else Rulebook(policy)
        self._book = book
        judge = None
        if any(s.git and (s.git.push or s.git.tags) for s in policy.services):
            context.quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            judge = context.judge(prepared.id)
        interception = prepared.interception(book, judge, context.quarantine)
        log = context.log
        return Session(
            prepared.id,
            book,
            self.record,
            lambda: log.admits(prepared.id),
            self._report,
            interception,
            prepared.quiet,
            partial(context.sign, prepared.id) if context.sign and policy.sandbox.sign else None,
            self._announce if context.announce is not None else None,
            partial(context.spend, prepared.id) if context.spend is not None else None,
            partial(context.tools, prepared.id) if context.tools is not None else None,
        )

    # ── asked of a person ─────────────────────────────────────────────────────────────────────────

    def watch(self, *, answers: bool) -> None:
        """A person is there to answer questions, or no longer."""
        self._watched = answers
        asking = self._handle.asking
        if asking is not None and self.ending is None:
            asking.watch(watched=answers)

    def answer(self, given: AskAnswer) -> AskView:
        """Answer a question. Raises Refused."""
        asking = self._handle.asking
        if asking is None or self.ending is not None:
            raise Refused(NOT_ASKED)
        ask = asking.answer(given)
        if given.answer.allows:
            said = "approvals.command" if given.via == "command" else "you"
            what = subject_words(ask.subject)
            self._report(f"{what} is allowed, as {said} said ({given.answer})")
        return ask_view(self._prepared.id, AskNotice(ask, Reason.APPROVED, 0))

    def _announce(self, notice: AskNotice) -> None:
        context, session = self._context, self._prepared.id
        if context.announce is not None:
            context.announce(session, notice)
        if notice.reason is not Reason.HELD:
            return
        if self.provision.policy.approvals.command and context.consult is not None:
            self._tasks.start(self._consult(ask_view(session, notice), notice.ask), lambda: None)
        else:
            self._tell_person(notice.ask)

    def _tell_person(self, ask: Ask) -> None:
        """Say in the run's terminal how to answer, unless something else shows the question."""
        if not self._watched:
            self._report(waiting_line(ask))

    async def _consult(self, ask: AskView, asked: Ask) -> None:
        """Have the policy's command answer; when it does not, a person still can."""
        asking = self._handle.asking
        try:
            async with self._commands:
                if self._context.consult is None or asking is None or not asking.is_asked(ask.id):
                    return
                said = await self._context.consult(self._prepared.id, ask)
            given = read_command_answer(ask.id, said)
            if given is not None:
                self.answer(given)
        except Refused as refused:
            self.record(refused_event("command-failed", ask=ask.id, why=str(refused)))
            self._report(f"approvals.command gave no answer: {visible(str(refused))}")
        if asking is not None and asking.is_asked(ask.id) and clock.now() < asked.expires:
            self._tell_person(asked)

    def record(self, event: Event) -> None:
        """Record an event."""
        self._context.log.record(self._prepared.id, event)
        if self._context.observe is not None:
            self._context.observe(event)

    # ── its end ───────────────────────────────────────────────────────────────────────────────────

    def close(self, ending: EndReason, by: int | None = None) -> None:
        """Close the door for good and cut open connections. The first reason stays.

        `by` is the process that asked for it.
        """
        if self.ending is not None:
            return
        self.ending = ending
        self._timer.cancel()
        self._tasks.cancel()
        self._handle.close()
        if ending is not EndReason.DONE:
            asked = {"by": by} if by else {}
            self.record(session_event("closed", why=ending.value, **asked))
        self._ended(ending)

    def _tick(self) -> None:
        """Close it when it is too old or idle. Attack: requests without a credential, or refused
        ones, to keep a session from idling."""
        used = self._handle.figures.credentialed
        idle = self._idleness.seconds(used, self._context.loop.time(), clock.now())
        if self.expires_in <= 0:
            self.close(EndReason.EXPIRED)
        elif idle > self.provision.policy.limits.idle:
            self.close(EndReason.IDLE)
        else:
            self._timer = self._context.loop.call_later(self._next(), self._tick)

    def _next(self) -> float:
        return min(TICK, max(0.0, self.expires_in))


def _lines(provision: Provision) -> set[str]:
    return {f"{line.subject}: {line.text}" for line in summarise(provision.policy)}
