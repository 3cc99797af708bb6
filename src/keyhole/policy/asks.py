"""Questions of one session that wait for a person: held, joined, answered, lapsed.

A state machine without a clock: the gateway passes the time, keeps the connections and requests
that wait, and tells the person (`gateway/asking.py`). A waiter is any object of the gateway's; the
machine hands it back when its question is settled. Everything here has a bound, because the sandbox
chooses what is asked (I9).
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from keyhole.model.decision import Reason
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.glob import Glob
from keyhole.model.money import format_money
from keyhole.model.path import RequestPath
from keyhole.model.ref import short_ref
from keyhole.model.rule import AccessRule, rule_text
from keyhole.model.text import visible
from keyhole.policy.limit import TokenBucket
from keyhole.policy.schema import AskKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.policy.budget import SoftLine
    from keyhole.policy.policy import Approvals

W = TypeVar("W")

LATE_SECONDS = 600.0
"""How long a question that nobody answered in time can still be answered, and how long such a late
"once" waits for its retry: a person comes back from a coffee."""

QUIET_SECONDS = 60.0
"""After a "no", the same thing is refused without a question for so long: a client that retries
must not ask until the person gives in."""

NEW_PER_SECOND = 1.0
"""New questions of a session, once as many as may be pending were asked at once."""

MAX_WAITERS = 64
"""Connections or requests that wait for one answer; a client opens a handful in parallel."""

MAX_REMEMBERED = 256
"""Answers of each kind that a session remembers. Beyond it, the refusal that ends first is
forgotten, and asked again; a permission is refused, since it belongs into the policy."""

MAX_RULE = 1000
"""Characters of a rule that a person is asked about: as many as are shown, so that "always" writes
what the person saw, and that is the whole rule."""

DEFAULT_KINDS = frozenset({AskKind.HOSTS, AskKind.REQUESTS})

ASK_RULE = "approvals.ask"
"""The rule by which a name exists that a person may be asked about."""


class Answer(enum.StrEnum):
    """What a person says. The zero value refuses."""

    NO = "no"
    NEVER = "never"
    """No, for the rest of the session."""
    NO_TO_ALL = "no-to-all"
    """No to this and every further question of the session."""
    ONCE = "once"
    FOR = "for"
    """Yes, for a number of seconds."""
    SESSION = "session"
    ALWAYS = "always"
    """Yes, for this session; the policy has the rule from now on."""

    @property
    def allows(self) -> bool:
        """Whether it is a yes."""
        return self in (Answer.ONCE, Answer.FOR, Answer.SESSION, Answer.ALWAYS)


class AskSubject(Struct, frozen=True):
    """What is asked about: two that are equal are one question."""

    kind: AskKind
    host: str
    port: int
    service: str = ""
    word: str = ""
    """A request's method, as rules name it; a push's change: `create`, `update` or `delete`; the
    name of a budget."""
    path: str = ""
    """A request's path, decoded; a push's repository; how much of a budget is used."""
    ref: str = ""
    """A push's; the day of a budget, so that the next day is another question."""

    @property
    def rule(self) -> str:
        """The narrowest rule that covers it, as the policy writes it."""
        if self.kind is AskKind.REQUESTS:
            return rule_text(self.word, self.path)
        if self.kind is AskKind.PUSHES:
            return short_ref(self.ref)
        if self.kind is AskKind.BUDGETS:
            return f"services.{self.service}.budget.{self.word}"
        return self.host if self.port == 443 else f"{self.host}:{self.port}"


class AskState(enum.StrEnum):
    """Where a question stands."""

    LAPSED = "lapsed"
    """Nobody answered in time. What waited was refused; a yes serves the retry."""
    PENDING = "pending"


class Ask(Struct, frozen=True):
    """One question."""

    id: str
    subject: AskSubject
    asked: float
    """When, by the caller's clock."""
    expires: float
    state: AskState = AskState.PENDING


class Settlement(Struct, Generic[W], frozen=True):
    """A question that was answered or lapsed, and what waited for it."""

    ask: Ask
    """Its state is LAPSED if it can still be answered, and only then."""
    reason: Reason
    waiters: tuple[W, ...] = ()
    next: Ask | None = None
    """What the rest of what waited asks from now on: a "once" is for one request."""
    forgotten: bool = False
    """Whether it had lapsed before, and can no longer be answered."""


class HeldAsk(Struct, frozen=True):
    """What asks must wait. `fresh` says that the person does not know of the question yet."""

    ask: Ask
    fresh: bool
    forgotten: Ask | None = None
    """A lapsed question that made room, and can no longer be answered."""


class _Entry(Struct, Generic[W]):
    ask: Ask
    waiters: list[W] = field(default_factory=list)


class _Leave(Struct):
    """A yes that is remembered: until when, and how often it may be used."""

    ask: str
    expires: float
    uses: float = math.inf


class Asks(Generic[W]):
    """The questions and answers of one session."""

    def __init__(self, approvals: Approvals, new_id: Callable[[], str], now: float) -> None:
        self._approvals = approvals
        self._new_id = new_id
        self._entries: dict[AskSubject, _Entry[W]] = {}
        self._by_id: dict[str, AskSubject] = {}
        self._allowed: dict[AskSubject, _Leave] = {}
        self._quiet: dict[AskSubject, float] = {}
        """Until when a refusal is remembered."""
        self._silenced = False
        self._rate = TokenBucket.full(
            "most_pending", NEW_PER_SECOND, now, approvals.most_pending, table="approvals"
        )

    @property
    def silenced(self) -> bool:
        """Whether the person wants no further question of this session."""
        return self._silenced

    @property
    def remembers(self) -> bool:
        """Whether a yes is remembered, which holds when nobody is asked any more."""
        return bool(self._allowed)

    def change(self, approvals: Approvals) -> None:
        """Another policy: its bounds hold for what is asked from now on."""
        self._approvals = approvals
        self._rate.burst = approvals.most_pending

    def views(self) -> tuple[Ask, ...]:
        """All questions that can be answered, the oldest first."""
        return tuple(entry.ask for entry in self._entries.values())

    def find(self, ask: str, now: float) -> Ask | None:
        """A question that can be answered."""
        subject = self._by_id.get(ask)
        found = self._entries[subject].ask if subject is not None else None
        return found if found is not None and now < found.expires + LATE_SECONDS else None

    def waiters(self, ask: str) -> tuple[W, ...]:
        """What waits for this answer."""
        subject = self._by_id.get(ask)
        return tuple(self._entries[subject].waiters) if subject is not None else ()

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def settled(self, subject: AskSubject, now: float) -> tuple[Reason, str] | None:
        """An answer that was given before, and the question that it was given to; a use is taken.

        None: the person must be asked.
        """
        allowed = self._allowed.get(subject)
        if allowed is not None and now < allowed.expires:
            allowed.uses -= 1
            if allowed.uses < 1:
                del self._allowed[subject]
            return Reason.APPROVED, allowed.ask
        if self._silenced or now < self._quiet.get(subject, -math.inf):
            return Reason.NOT_APPROVED, ""
        return None

    def is_allowed(self, subject: AskSubject, now: float) -> bool:
        """Whether a yes that was given before holds for this."""
        allowed = self._allowed.get(subject)
        return allowed is not None and now < allowed.expires

    def hold(self, subject: AskSubject, waiter: W, now: float) -> HeldAsk | Reason:
        """Ask, or join the question that waits already; the reason when there is no place."""
        entry = self._entries.get(subject)
        if entry is not None:
            if len(entry.waiters) >= MAX_WAITERS:
                return Reason.TOO_MANY_ASKED
            fresh = entry.ask.state is AskState.LAPSED
            if fresh:
                if self._pending() >= self._approvals.most_pending:
                    return Reason.TOO_MANY_ASKED
                expires = now + self._approvals.wait
                entry.ask = replace(entry.ask, state=AskState.PENDING, expires=expires)
            entry.waiters.append(waiter)
            return HeldAsk(entry.ask, fresh)
        full = self._pending() >= self._approvals.most_pending
        if full or not self._rate.take(now).allowed:
            return Reason.TOO_MANY_ASKED
        forgotten = self._make_room()
        ask = Ask(self._fresh_id(), subject, now, now + self._approvals.wait)
        self._add(ask, [waiter])
        return HeldAsk(ask, fresh=True, forgotten=forgotten)

    def leave(self, subject: AskSubject, waiter: W) -> None:
        """A client has gone. Its question stays: a yes serves the retry."""
        entry = self._entries.get(subject)
        if entry is not None and waiter in entry.waiters:
            entry.waiters.remove(waiter)

    # ── settled ───────────────────────────────────────────────────────────────────────────────────

    def answer(
        self, ask: str, answer: Answer, now: float, seconds: float = 0.0
    ) -> tuple[Settlement[W], ...]:
        """Answer a question; the first that is settled is the one that was answered.

        A yes to a host that lasts is a grant, which the gateway keeps. Raises Refused.
        """
        found = self.find(ask, now)
        if found is None:
            raise Refused(f"no question {ask} waits; `keyhole asks` lists those that do")
        subject = found.subject
        if answer.allows:
            self._remember_yes(subject, answer, now, seconds)
            if answer is Answer.ONCE and subject.kind is not AskKind.HOSTS:
                return (self._settle_one(subject, now),)
            return (self._settle(subject, Reason.APPROVED),)
        first = self._settle(subject, Reason.NOT_APPROVED)
        self._remember_no(subject, now + QUIET_SECONDS if answer is Answer.NO else math.inf)
        if answer is not Answer.NO_TO_ALL:
            return (first,)
        self._silenced = True
        return (first, *(self._settle(each, Reason.NOT_APPROVED) for each in list(self._entries)))

    def expire(self, now: float) -> tuple[Settlement[W], ...]:
        """Refuse what has waited long enough, and forget what nobody answered at all."""
        lapsed = []
        for subject, entry in list(self._entries.items()):
            ask = entry.ask
            if ask.state is AskState.PENDING and now >= ask.expires:
                entry.ask = replace(ask, state=AskState.LAPSED)
                waiters, entry.waiters = tuple(entry.waiters), []
                lapsed.append(Settlement(entry.ask, Reason.UNANSWERED, waiters))
            elif ask.state is AskState.LAPSED and now >= ask.expires + LATE_SECONDS:
                lapsed.append(Settlement(self._drop(subject), Reason.UNANSWERED, forgotten=True))
        for subject, allowed in list(self._allowed.items()):
            if now >= allowed.expires:
                del self._allowed[subject]
        for subject, until in list(self._quiet.items()):
            if now >= until:
                del self._quiet[subject]
        return tuple(lapsed)

    def next_expiry(self) -> float | None:
        """When the first question lapses, or can no longer be answered."""
        times = (
            e.ask.expires + (LATE_SECONDS if e.ask.state is AskState.LAPSED else 0.0)
            for e in self._entries.values()
        )
        return min(times, default=None)

    def close(self) -> tuple[Settlement[W], ...]:
        """The session is over: nothing can be answered any more."""
        return tuple(self._settle(each, Reason.UNANSWERED) for each in list(self._entries))

    # ── kept ──────────────────────────────────────────────────────────────────────────────────────

    def _pending(self) -> int:
        return sum(e.ask.state is AskState.PENDING for e in self._entries.values())

    def _make_room(self) -> Ask | None:
        """As many lapsed questions are kept as may be pending. Returns one that was forgotten."""
        lapsed = [s for s, e in self._entries.items() if e.ask.state is AskState.LAPSED]
        return self._drop(lapsed[0]) if len(lapsed) >= self._approvals.most_pending else None

    def _fresh_id(self) -> str:
        while (made := self._new_id()) in self._by_id:
            pass
        return made

    def _settle(self, subject: AskSubject, reason: Reason) -> Settlement[W]:
        waiters = tuple(self._entries[subject].waiters)
        return Settlement(self._drop(subject), reason, waiters)

    def _settle_one(self, subject: AskSubject, now: float) -> Settlement[W]:
        """Approve what has waited longest. The rest is a question of its own, until the same time.

        Attack: 64 equal requests behind one question, of which the person approves "one".
        """
        first, rest = self._entries[subject].waiters[:1], self._entries[subject].waiters[1:]
        again = self._fresh_id()
        ask = self._drop(subject)
        following = replace(ask, id=again, asked=now) if rest else None
        if following is not None:
            self._add(following, rest)
        return Settlement(ask, Reason.APPROVED, tuple(first), following)

    def _add(self, ask: Ask, waiters: list[W]) -> None:
        self._entries[ask.subject] = _Entry(ask, waiters)
        self._by_id[ask.id] = ask.subject

    def _drop(self, subject: AskSubject) -> Ask:
        """A question that can no longer be answered."""
        ask = self._entries.pop(subject).ask
        del self._by_id[ask.id]
        return replace(ask, state=AskState.PENDING)

    def _remember_yes(
        self, subject: AskSubject, answer: Answer, now: float, seconds: float
    ) -> None:
        entry = self._entries[subject]
        if answer is Answer.ONCE:
            if not entry.waiters:
                self._allow(subject, _Leave(entry.ask.id, now + LATE_SECONDS, 1))
        elif subject.kind is not AskKind.HOSTS:
            ends = now + seconds if answer is Answer.FOR else math.inf
            self._allow(subject, _Leave(entry.ask.id, ends))

    def _allow(self, subject: AskSubject, leave: _Leave) -> None:
        if subject not in self._allowed and len(self._allowed) >= MAX_REMEMBERED:
            raise Refused(f"a session remembers {MAX_REMEMBERED} permissions; change the policy")
        self._allowed[subject] = leave
        self._quiet.pop(subject, None)

    def _remember_no(self, subject: AskSubject, until: float) -> None:
        self._allowed.pop(subject, None)
        self._quiet.pop(subject, None)
        if len(self._quiet) >= MAX_REMEMBERED:
            # Attack: things that are refused for a minute, so many that a "never" is forgotten.
            del self._quiet[min(self._quiet, key=self._quiet.__getitem__)]
        self._quiet[subject] = until


def asked_kinds(approvals: Approvals, *, watched: bool) -> frozenset[AskKind]:
    """The kinds that are asked about. `watched` says whether someone is there to answer."""
    if approvals.ask is not None:
        return frozenset(approvals.ask)
    return DEFAULT_KINDS if watched or approvals.command else frozenset()


def may_ask_about(host: str) -> bool:
    """Whether a name is one that a person may be asked about.

    A name without a dot is no host of the internet, and those below these suffixes are of this host
    or of the resolver's own making.
    """
    last = host.rpartition(".")[2]
    return "." in host and last not in ("arpa", "local", "localhost", "invalid", "onion")


def budget_subject(host: str, port: int, service: str, line: SoftLine) -> AskSubject:
    """The question whether to go on after a share of a budget."""
    used = f"{format_money(line.line)} of {format_money(line.limit)}"
    return AskSubject(AskKind.BUDGETS, host, port, service, line.name, used, line.today)


def request_subject(host: str, port: int, service: str, word: str, raw: str) -> AskSubject | None:
    """The question about a request; None where no rule could name exactly this one."""
    try:
        segments = RequestPath.parse(raw).segments
        path = "/" + "/".join(segments)
        text = rule_text(word, path)
        rule = AccessRule.parse(text)
    except Unparsable:
        return None
    exact = rule.path == Glob(segments) and "*" not in path and text.split(" ")[0] == word
    if not exact or len(text) > MAX_RULE or visible(text) != text:
        return None
    return AskSubject(AskKind.REQUESTS, host, port, service, word, path)
