"""Asks a person about what no rule names, while its connection, request or push waits.

One for each door, used by the loop's thread alone. The pure machine is `policy/asks.py`; here are
the clock, the waiting tasks, the audit events and the grants that answers make. A held client costs
its connection and at most one read of its bytes; nothing of it is resolved, dialled or sent.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Refused
from keyhole.model.event import Event, EventKind
from keyhole.model.host import Host
from keyhole.policy.asks import (
    ASK_RULE,
    Answer,
    Asks,
    AskSubject,
    HeldAsk,
    Settlement,
    asked_kinds,
    may_ask_about,
    request_subject,
)
from keyhole.policy.grants import MAX_USES, grantable
from keyhole.policy.lookalikes import host_marks, text_marks
from keyhole.policy.schema import AskKind
from keyhole.system import clock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.gateway.refusal_reports import RefusalReports
    from keyhole.policy.asks import Ask
    from keyhole.policy.grants import Grant
    from keyhole.policy.rulebook import Rulebook

MAX_NAMES = 1000
"""Names of one session that have an address because a person may be asked about them; the sandbox
chooses them (I9)."""

MAX_MARKED = 2048
"""Subjects whose marks are kept: the most questions that wait, and as many that lapsed."""

TICK = 1.0
"""Seconds between two checks for questions that nobody answered: the loop's timers stop while the
host sleeps."""

_UNDECIDED = (Reason.NO_RULE, Reason.PORT_NOT_GRANTED, Reason.GRANT_SPENT)


class AskNotice(Struct, frozen=True):
    """News of a question, for whoever shows it."""

    ask: Ask
    reason: Reason
    """HELD for a new one; otherwise how it was settled."""
    waiting: int
    marks: tuple[str, ...] = ()
    answer: str = ""
    by: int = 0
    via: str = ""


class AskAnswer(Struct, frozen=True):
    """An answer, and where it comes from."""

    ask: str
    answer: Answer
    seconds: int = 0
    by: int = 0
    """The process that gave it."""
    via: str = ""
    """The way by which it came: `approve`, `watch`, `command` and the like."""


class AskWaiter(Struct, eq=False):
    """What waits for an answer."""

    settled: asyncio.Future[Decision]
    alive: Callable[[], bool]
    """Whether its client is still there."""


class AskContext(Struct, frozen=True):
    """The parts of a session that questions need."""

    book: Callable[[], Rulebook]
    """The policy in force."""
    record: Callable[[Event], None]
    reports: RefusalReports
    grant: Callable[[Host, int, float, int], Grant]
    """Lets the session connect to a host."""
    announce: Callable[[AskNotice], None]
    """Tells whoever shows questions."""


class SessionAsks:
    """The questions of one door."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: AskContext) -> None:
        self._loop = loop
        self._context = context
        self.watched = False
        """Whether a person is there to answer."""
        approvals = context.book().policy.approvals
        self._asks: Asks[AskWaiter] = Asks(approvals, _new_id, clock.now())
        self._kinds = asked_kinds(approvals, watched=False)
        self._names: set[Host] = set()
        self._marks: dict[AskSubject, tuple[str, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, *, watched: bool) -> None:
        """A person is there to answer, or no longer."""
        self.watched = watched
        self.change()

    def change(self) -> None:
        """The policy, or the presence of a person, has changed."""
        approvals = self._context.book().policy.approvals
        self._asks.change(approvals)
        self._kinds = asked_kinds(approvals, watched=self.watched)

    def views(self) -> tuple[AskNotice, ...]:
        """All questions that can be answered."""
        return tuple(self._notice(each, Reason.HELD) for each in self._asks.views())

    def is_asked(self, ask: str) -> bool:
        """Whether a question can still be answered."""
        return self._asks.find(ask, clock.now()) is not None

    # ── what may be asked ─────────────────────────────────────────────────────────────────────────

    def rule_for_name(self, host: Host) -> str | None:
        """The rule by which a name exists that a person may be asked about."""
        if not self._may_ask(host):
            return None
        if host not in self._names:
            if len(self._names) >= MAX_NAMES:
                return None
            self._names.add(host)
        return ASK_RULE

    def host_subject(self, host: Host, port: int, decision: Decision) -> AskSubject | None:
        """The question about a connection; None if a person is not asked about it."""
        if decision.reason not in _UNDECIDED or not self._may_ask(host):
            return None
        try:
            grantable(self._context.book(), host, port, 1.0, 1)
        except Refused:
            return None
        return AskSubject(AskKind.HOSTS, host.name, port)

    def _may_ask(self, host: Host) -> bool:
        return (
            AskKind.HOSTS in self._kinds
            and not self._asks.silenced
            and may_ask_about(host.name)
            and not self._context.reports.is_quiet_host(host.name)
        )

    def request_subject(
        self, host: str, port: int, word: str, path: str, decision: Decision, service: str
    ) -> AskSubject | None:
        """The question about a request; None if a person is not asked about it, nor was before.
        What the policy denies by name, guards or protects has another reason."""
        if decision.reason is not Reason.NO_RULE or not service:
            return None
        asked = AskKind.REQUESTS in self._kinds and not self._asks.silenced
        if asked and self._context.reports.is_quiet_request(word, host, path):
            asked = False
        if not asked and not self._asks.remembers:
            return None
        subject = request_subject(host, port, service, word, path)
        if subject is None or asked:
            return subject
        return subject if self._asks.is_allowed(subject, clock.now()) else None

    @property
    def silenced(self) -> bool:
        """Whether the person wants no further question of this session."""
        return self._asks.silenced

    @property
    def asks_pushes(self) -> bool:
        """Whether a person is asked about pushes."""
        return AskKind.PUSHES in self._kinds and not self._asks.silenced

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def settled(self, subject: AskSubject) -> Decision | None:
        """The decision by an earlier answer; None if the person must be asked."""
        found = self._asks.settled(subject, clock.now())
        return None if found is None else _decision(*found)

    async def wait(self, subject: AskSubject, alive: Callable[[], bool]) -> Decision:
        """Ask, and wait for the answer; a refusal when none comes or there is no place (I9)."""
        known = self.settled(subject)
        if known is not None:
            return known
        waiter = AskWaiter(self._loop.create_future(), alive)
        held = self._asks.hold(subject, waiter, clock.now())
        if not isinstance(held, HeldAsk):
            return _decision(held)
        if held.forgotten is not None:
            self._context.announce(self._notice(held.forgotten, Reason.UNANSWERED))
        if held.fresh:
            self._tell(held.ask, Reason.HELD)
            self._watch_clock()
        try:
            return await waiter.settled
        finally:
            self._asks.leave(subject, waiter)

    # ── settled ───────────────────────────────────────────────────────────────────────────────────

    def answer(self, given: AskAnswer) -> Ask:
        """Answer a question. Raises Refused."""
        now = clock.now()
        ask = self._asks.find(given.ask, now)
        for waiter in self._asks.waiters(given.ask):
            if ask is not None and not waiter.alive():
                # A "once" is for the retry of a client that has given up, not for the dead one.
                self._asks.leave(ask.subject, waiter)
                self._release(waiter, Decision(reason=Reason.CLIENT_LEFT, rule=ASK_RULE))
        if ask is not None and given.answer.allows and given.answer is not Answer.ONCE:
            self._grant_host(ask.subject, given)
        settled = self._asks.answer(given.ask, given.answer, now, given.seconds)
        for each in settled:
            self._settle(each, given)
        return settled[0].ask

    def _grant_host(self, subject: AskSubject, given: AskAnswer) -> None:
        if subject.kind is AskKind.HOSTS:
            ttl = self._context.book().policy.limits.ttl
            seconds = given.seconds if given.answer is Answer.FOR else ttl
            self._context.grant(Host.parse(subject.host), subject.port, seconds, MAX_USES)

    def close(self) -> None:
        """The door is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in self._asks.close():
            self._settle(each)

    def _settle(self, settled: Settlement[AskWaiter], given: AskAnswer | None = None) -> None:
        ask = settled.ask
        if settled.forgotten:
            # The log has it since it lapsed.
            self._context.announce(self._notice(ask, settled.reason))
            return
        for waiter in settled.waiters:
            self._release(waiter, _decision(settled.reason, ask.id))
        self._tell(ask, settled.reason, given)
        if settled.next is not None:
            self._tell(settled.next, Reason.HELD)

    def _release(self, waiter: AskWaiter, decision: Decision) -> None:
        if not waiter.settled.done():
            waiter.settled.set_result(decision)

    def _watch_clock(self) -> None:
        next_expiry = self._asks.next_expiry()
        if self._timer is None and next_expiry is not None:
            left = max(0.0, min(TICK, next_expiry - clock.now()))
            self._timer = self._loop.call_later(left, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for each in self._asks.expire(clock.now()):
            self._settle(each)
        self._watch_clock()

    # ── told ──────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, ask: Ask, reason: Reason, given: AskAnswer | None = None) -> None:
        """Record it and announce it (I8)."""
        subject = ask.subject
        details: dict[str, str | int] = {"ask": ask.id, "what": subject.kind, "grant": subject.rule}
        if subject.kind is AskKind.PUSHES:
            details["repository"] = subject.path
        if subject.service:
            details["service"] = subject.service
        else:
            details["port"] = subject.port
        if given is not None:
            details |= {"answer": given.answer, "by": given.by, "via": given.via}
            if given.answer is Answer.FOR:
                details["seconds"] = given.seconds
        verdict = Verdict.ALLOW if reason is Reason.APPROVED else Verdict.DENY
        event = Event(
            EventKind.ASK, verdict, reason, ASK_RULE, subject.host, tuple(details.items())
        )
        # Not counted as a denial: what was refused is an event of its own.
        self._context.record(event)
        self._context.announce(self._notice(ask, reason, given))

    def _notice(self, ask: Ask, reason: Reason, given: AskAnswer | None = None) -> AskNotice:
        waiting = len(self._asks.waiters(ask.id))
        marks = self._marks_of(ask.subject)
        if given is None:
            return AskNotice(ask, reason, waiting, marks)
        return AskNotice(ask, reason, waiting, marks, given.answer, given.by, given.via)

    def _marks_of(self, subject: AskSubject) -> tuple[str, ...]:
        """Compared once for each question. A name is compared with every one of the policy, and a
        thousand questions may end at once, beside other sessions (I12)."""
        found = self._marks.get(subject)
        if found is None:
            if len(self._marks) >= MAX_MARKED:
                self._marks.clear()
            found = text_marks(subject.path, subject.ref)
            if subject.kind is AskKind.HOSTS:
                found = host_marks(subject.host, self._context.book().policy)
            self._marks[subject] = found
        return found


def _decision(reason: Reason, ask: str = "") -> Decision:
    if reason is Reason.APPROVED:
        return Decision(Verdict.ALLOW, reason, f"asks.{ask}")
    return Decision(reason=reason, rule=ASK_RULE)


def _new_id() -> str:
    """Six digits: short to type, and told apart from a session's twelve."""
    return secrets.token_hex(3)
