"""A session, and its state in the gateway while its door is open."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from keyhole.gateway import refusal_messages
from keyhole.gateway.body_judges import BodyJudges
from keyhole.gateway.body_memory import BodyMemory
from keyhole.gateway.budgets import change_meters, meters_for, uses
from keyhole.gateway.refusal_reports import RefusalReports
from keyhole.gateway.turn import UNBOUNDED, Turn
from keyhole.http.http2_stream import SpareWindow
from keyhole.inject.canary import CANARY
from keyhole.inject.quiet_refusals import QuietRefusals
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.text import visible
from keyhole.policy.grants import Grants
from keyhole.policy.limit import TokenBucket, decide_total
from keyhole.policy.schema import OnDecoy
from keyhole.policy.signing import SIGNATURE_BURST, SIGNATURES_PER_SECOND

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from keyhole.gateway.asking import AskNotice, SessionAsks
    from keyhole.gateway.budgets import UsageNote
    from keyhole.gateway.upstream.minting import Minting
    from keyhole.inject.credential import Credential
    from keyhole.model.host import Host
    from keyhole.policy.budget import BudgetUse, PeriodSpending
    from keyhole.policy.mcp_grant import SeenTool
    from keyhole.policy.push_trial import PushCase, PushFinding, UpstreamQuestion
    from keyhole.policy.rulebook import HostRules, Rulebook

RATE_NOTE_INTERVAL = 10.0
"""Seconds between two events about a door that is over a rate."""

MAX_PUSH_REPORTS = 50
"""Lines on refused pushes, which take nothing from the others: one push names up to 256 refs."""

MAX_REPORTS_OF_A_PUSH = 10
"""Refs of one push that are reported by name: as many as fit a screen."""

MAX_SPARE_WINDOW = 4 << 20
"""Bytes by which a session's clients may send more at once than the windows of their streams: four
bulk uploads. A slow origin makes them wait here (I9)."""

_DENY = Verdict.DENY

INDEX_BURST = 100
"""Seconds' worth of `limits.requests_per_second` that a package manager may ask for at once, of
hosts that a preset alone names: an install of a large project asks for thousands of packages as
fast as it can, and waits ten seconds for each that is refused."""

DECOY_RULE = "limits.on_decoy"
"""The rule of events about canary files and frozen sessions."""


def _cut_nothing() -> None:
    """The door does not serve yet."""


class Judge(Protocol):
    """Reads a pack in a process in which its content can do no harm."""

    def prepare(self) -> None:
        """Called when a push is announced."""

    async def judge(
        self,
        pack: int,
        offset: int,
        case: PushCase,
        ask: Callable[[UpstreamQuestion], AsyncIterator[bytes]],
    ) -> tuple[PushFinding, ...]:
        """The findings on a pack that begins at `offset` of the file. Raises Unjudged."""


class CredentialOf(Protocol):
    """The credential of requests to a service's hosts, or the minting that makes it."""

    def __call__(self, rules: HostRules, *, git: bool = False) -> Credential | Minting | None:
        """With `git`, the credential is in the form for git's own requests."""


class Interception(Struct, frozen=True):
    """The certificates and credentials with which a session's services are inspected."""

    leaf: Callable[[Host], ssl.SSLContext]
    """The server side of TLS for a name, by this session's CA."""
    trust: ssl.SSLContext
    """The client side of TLS: the roots by which an origin is verified."""
    credential: CredentialOf
    """Called once for each host."""
    stand_ins: Mapping[str, tuple[bytes, ...]]
    """The placeholders of each service."""
    judge: Judge | None = None
    """The judge of pushes; None when no push is possible."""
    quarantine: Path | None = None
    """The directory for pushes that are being judged; None: the host's directory for temporary
    files."""
    closed: frozenset[str] = frozenset()
    """Services whose secret could not be read: requests to them are refused."""


class Session(Struct, frozen=True):
    """The values of a session that the application hands over with a door."""

    id: str
    book: Rulebook
    record: Callable[[Event], None]
    admitting: Callable[[], bool]
    report: Callable[[str], None]
    interception: Interception | None = None
    """None: hosts of services are refused."""
    quiet: tuple[str, ...] = ()
    """Refusals that the person is not told, as `inject/quiet_refusals.py` reads them."""
    sign: Callable[[bytes], Awaitable[bytes]] | None = None
    """Has a commit signed by a process that may use the key, which judges it again. Raises
    Refused."""
    announce: Callable[[AskNotice], None] | None = None
    """Told of questions that wait for a person; None: nobody is ever asked."""
    spend: Callable[[str, int], None] | None = None
    """Told what a service has cost in this session so far, in billionths of a dollar, by the name
    of the service."""
    tools: Callable[[str, SeenTool], None] | None = None
    """Told of tools of a service that are to be remembered; None: none is."""


class Figures(Struct, frozen=True):
    """The counters of a session."""

    connections: int
    """The number of open connections."""
    requests: int
    """Requests to inspected hosts, and judged ones in the clear."""
    denied: int
    """Denials: connections, requests, names, refs and limits."""
    up: int
    down: int
    credentialed: float
    """When, by the loop's clock, a request with a credential was last answered with success; when
    the door was opened, if none was. The start of `limits.idle`."""
    spent: int = 0
    """Billionths of a dollar that its tokens cost, where prices are known."""
    unpriced: int = 0
    """Tokens of models whose price is not known."""


class SessionState:
    """The mutable state of a session. One per door, used by the loop's thread alone."""

    __slots__ = (
        "_noted",
        "_push_lines",
        "asking",
        "busy",
        "connects",
        "credentialed",
        "denied",
        "down",
        "fetches",
        "freeze",
        "frozen",
        "gathered",
        "grants",
        "judges",
        "limits",
        "memory",
        "meters",
        "open",
        "quarantined",
        "questions",
        "reports",
        "requested",
        "requests",
        "session",
        "signatures",
        "signed",
        "signing",
        "spare_window",
        "spools",
        "turn",
        "up",
    )

    def __init__(self, session: Session, now: float) -> None:
        limits = self.limits = session.book.policy.limits
        self.session = session
        self.grants = Grants()
        self.connects = TokenBucket.full(
            "connections_per_second", limits.connections_per_second, now
        )
        self.questions = TokenBucket.full("dns_per_second", limits.dns_per_second, now)
        self.requests = TokenBucket.full("requests_per_second", limits.requests_per_second, now)
        self.fetches = TokenBucket.full(
            "requests_per_second",
            limits.requests_per_second,
            now,
            limits.requests_per_second * INDEX_BURST,
        )
        """Requests to package indexes."""
        self.signatures = TokenBucket.full(
            "sign", SIGNATURES_PER_SECOND, now, SIGNATURE_BURST, table="sandbox"
        )
        self.signing = 0
        """Signatures under way."""
        self.signed = 0
        """Signatures that were asked for outside."""
        self.meters = meters_for(session.book.policy, now)
        """Meters of services with limits of their own."""
        self.judges = BodyJudges()
        self.turn: Turn = UNBOUNDED
        """Its share of the loop's time; set by the door."""
        self.spare_window = SpareWindow(MAX_SPARE_WINDOW)
        """Bytes that windows of its clients' streams of HTTP/2 may still grow by."""
        self.open = 0
        self.busy = 0
        """Requests to services under way."""
        self.memory = BodyMemory()
        """The gateway's memory for bodies; set by the door."""
        self.gathered = 0
        """Bytes of request bodies in memory."""
        self.spools = 0
        """Files in which bodies wait."""
        self.quarantined = 0
        """Bytes of pushes and judged bodies on disk."""
        self.up = 0
        self.down = 0
        self.requested = 0
        self.denied = 0
        self.credentialed = now
        self.frozen = False
        """Whether nothing passes until a person resumes the session."""
        self.freeze: Callable[[], None] = _cut_nothing
        """Cuts what is open; set by the door."""
        self.asking: SessionAsks | None = None
        """Asks a person about what no rule names; set by the door, if anyone can be asked."""
        self._noted: dict[str, float] = {}
        self.reports = RefusalReports(self._report, QuietRefusals(session.quiet))
        self._push_lines: list[str] = []

    def gather(self, size: int) -> None:
        """Count bytes of a body in memory; fewer, if negative. Raises OverLimit."""
        if size > 0:
            self.memory.take(self.gathered, size)
        else:
            self.memory.free(-size)
        self.gathered += size

    def record(self, event: Event) -> None:
        """Record an event, and count it when it is a denial."""
        if event.verdict is _DENY:
            self.denied += 1
        self.session.record(event)

    def change(self, session: Session, now: float) -> None:
        """Apply another policy and other credentials; the counters stay."""
        limits = self.limits = session.book.policy.limits
        self.session = session
        self.connects.adjust(limits.connections_per_second, now)
        self.questions.adjust(limits.dns_per_second, now)
        self.requests.adjust(limits.requests_per_second, now)
        self.fetches.adjust(limits.requests_per_second, now)
        change_meters(self.meters, session.book.policy, now)
        self.judges.change(session.book.policy)
        if self.asking is not None:
            self.asking.change()

    @property
    def figures(self) -> Figures:
        """The session's counters so far."""
        meters = self.meters.values()
        return Figures(
            self.open,
            self.requested,
            self.denied,
            self.up,
            self.down,
            self.credentialed,
            sum(each.session for each in meters),
            sum(each.unpriced for each in meters),
        )

    def budgets(self) -> tuple[BudgetUse, ...]:
        """The use of each budget."""
        return uses(self.meters)

    def know_spending(self, spending: Mapping[str, PeriodSpending]) -> None:
        """What all sessions of the user have spent, by service."""
        for name, spent in spending.items():
            meter = self.meters.get(name)
            if meter is not None:
                meter.know_periods(spent)

    def note_usage(self, host: str, service: str, note: UsageNote) -> None:
        """Record the tokens of a response and what they cost (I8), and tell the keeper of the
        account."""
        tokens, charge = note.tokens, note.charge
        details: dict[str, str | int] = {
            "service": service,
            "model": visible(charge.model),
            "tokens": note.total,
            "input": tokens.input + tokens.written + tokens.written_long,
            "cached": tokens.cached,
            "output": tokens.output,
        }
        if charge.cost:
            details["nano_usd"] = charge.cost
        if not charge.known:
            details["price"] = "unknown"
        if note.estimated:
            details["estimated"] = "yes"
        rule = f"services.{service}"
        event = Event(EventKind.USAGE, Verdict.ALLOW, Reason.USED, rule, host)
        self.record(replace(event, details=tuple(details.items())))
        meter = self.meters[service]
        if not charge.known and meter.limits.budget.is_money:
            self.reports.unpriced(service, charge.model)
        if charge.cost and self.session.spend is not None:
            self.session.spend(service, meter.session)

    def barred(self) -> Decision | None:
        """Why nothing passes now, also of what a person has just approved; None: it may pass.

        Attack: fill the disk that the log is on while a question waits, and then act without a
        trace (I8).
        """
        if self.frozen:
            return Decision(reason=Reason.FROZEN, rule=DECOY_RULE)
        return None if self.session.admitting() else Decision(reason=Reason.NOT_ADMITTING)

    def may_open(self) -> bool:
        """Whether one more connection fits under the limit."""
        return self.open < self.limits.connections

    def count_up(self, amount: int) -> Decision | None:
        """Count bytes sent; a decision when they are over the session's limit."""
        limit = self.limits.upload
        if self.up + amount > limit:
            return decide_total("upload", self.up, amount, limit)
        self.up += amount
        return None

    def count_down(self, amount: int) -> Decision | None:
        """Count bytes received; a decision when they are over the session's limit."""
        limit = self.limits.download
        if self.down + amount > limit:
            return decide_total("download", self.down, amount, limit)
        self.down += amount
        return None

    def refused(self, decision: Decision, host: str, port: int, **details: str | int) -> None:
        """Record a refused connection, and show it to the person once."""
        self.record(Event.of(EventKind.CONNECT, decision, host, port=port, **details))
        self.tell(host, port, decision.reason)

    def refused_as(self, reason: str, rule: str, host: str, port: int) -> None:
        """The same for a reason that is the gateway's own."""
        details = (("port", port),)
        self.record(Event(EventKind.CONNECT, Verdict.DENY, reason, rule, host, details))
        self.tell(host, port, reason)

    def tell(self, host: str, port: int, reason: str, why: str = "") -> None:
        """One line for the person, once per host and reason; the log has every refusal."""
        self.reports.connection(host, port, reason, why)

    def note_decoy(self, owner: str, host: str) -> None:
        """Record that a decoy was sent: some code tries where it works (I1). Freeze the session if
        the policy says so."""
        rule = DECOY_RULE if owner == CANARY else f"services.{owner}"
        self.record(Event(EventKind.DECOY, Verdict.DENY, Reason.DECOY_USED, rule, host))
        if self.limits.on_decoy is not OnDecoy.FREEZE or self.frozen:
            return
        # The flag at once: nothing is admitted from here on. What is open is cut in the loop's next
        # turn, because one of its connections is being read right now.
        self.frozen = True
        details = (("decoy", rule),)
        frozen = Event(EventKind.SESSION, Verdict.DENY, Reason.FROZEN, DECOY_RULE, host, details)
        self.record(frozen)
        self.session.report(refusal_messages.frozen_line(self.session.id, owner, host))
        self.freeze()

    def decoys_in(self, head: bytes) -> list[str]:
        """The owners of placeholders in a head that is sent in the clear, where none has a
        meaning."""
        interception = self.session.interception
        stand_ins = interception.stand_ins if interception is not None else {}
        return [
            owner
            for owner, values in stand_ins.items()
            if any(head.find(value) >= 0 for value in values)
        ]

    def _report(self, line: str) -> None:
        self.session.report(line)

    def tell_refused_push(self, host: str, repository: str, words: Mapping[str, str]) -> None:
        """A few lines for the person, by the words for each ref; none for a push tried again."""
        named = islice(words.items(), MAX_REPORTS_OF_A_PUSH)
        lines = [refusal_messages.push_line(host, repository, ref, why) for ref, why in named]
        fresh = [line for line in lines if line not in self._push_lines]
        if fresh and len(words) > len(lines):
            fresh.append(refusal_messages.more_refs_line(len(words) - len(lines)))
        # One more than are reported: the line that says so.
        for line in fresh[: MAX_PUSH_REPORTS + 1 - len(self._push_lines)]:
            self._push_lines.append(line)
            over = len(self._push_lines) > MAX_PUSH_REPORTS
            self.session.report("further refused pushes are in the log alone" if over else line)

    def over_limit(self, decision: Decision, host: str) -> None:
        """Record that a limit on bytes was reached."""
        self.record(Event.of(EventKind.LIMIT, decision, host))
        self.tell(decision.rule, 0, decision.reason)

    def over_rate(self, bucket: TokenBucket, now: float) -> None:
        """Record, now and then, that connections wait because of a rate. None of them is
        refused."""
        self._note(bucket.rule, now)

    def over_count(self, now: float) -> None:
        """The same for the number of open connections."""
        self._note("limits.connections", now)

    def _note(self, rule: str, now: float) -> None:
        if now < self._noted.get(rule, now):
            return
        self._noted[rule] = now + RATE_NOTE_INTERVAL
        self.over_limit(Decision(reason=Reason.OVER_LIMIT, rule=rule), "")
