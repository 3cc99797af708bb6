"""Whose door it is: a session, and what the gateway remembers of it while its door is open."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway import refusal
from keyhole.gateway.budgets import change_meters, meters_for, uses
from keyhole.gateway.lfs import LargeFiles
from keyhole.gateway.searched import Searched
from keyhole.gateway.synthetic import SyntheticNames
from keyhole.gateway.turn import UNBOUNDED, Turn
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass
from keyhole.policy.grants import Grants
from keyhole.policy.limit import Bucket, decide_total

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.gateway.minting import Minting
    from keyhole.gateway.pushes import Judge
    from keyhole.inject.credential import Credential
    from keyhole.model.host import Host
    from keyhole.policy.budget import BudgetUse
    from keyhole.policy.rulebook import HostRules, Rulebook

RATE_NOTE_INTERVAL = 10.0
"""Seconds between two events that say that a door is over a rate."""

MAX_REPORTS = 200
"""Lines that a session may put before a person; the rest is in the log (I9)."""

MAX_PUSH_REPORTS = 50
"""Lines on refused pushes, which take nothing from the others: one push names up to 256 refs."""

MAX_REPORTS_OF_A_PUSH = 10
"""Refs of one push that a person is told by name: what a screen shows beside other things."""

_DENY = Verdict.DENY


class OverLimit(Exception):
    """A limit on bytes is reached."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.rule)
        self.decision = decision


class CredentialOf(Protocol):
    """What requests to a service's hosts get, or whence it is minted."""

    def __call__(self, rules: HostRules, *, git: bool = False) -> Credential | Minting | None:
        """Requests of git's own get it written in git's way."""


@dataclass(frozen=True, slots=True)
class Interception:
    """What is needed to inspect a session's services: its certificates and its credentials."""

    leaf: Callable[[Host], ssl.SSLContext]
    """TLS as the server of a name, by this session's CA."""
    trust: ssl.SSLContext
    """TLS as a client: the roots that an origin is verified against."""
    credential: CredentialOf
    """Asked once for each host."""
    stand_ins: Mapping[str, tuple[bytes, ...]]
    """What stands for each service's secret inside."""
    judge: Judge | None = None
    """Who looks into pushes; None: there is no push."""
    quarantine: Path | None = None
    """Where they wait meanwhile; None: where this host keeps what is temporary."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the composition root hands over with a door."""

    id: str
    book: Rulebook
    record: Callable[[Event], None]
    admitting: Callable[[], bool]
    report: Callable[[str], None]
    interception: Interception | None = None
    """None: hosts of services are refused."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a session has done so far."""

    connections: int
    """Open now."""
    requests: int
    """Of inspected hosts, and those in the clear that are judged."""
    denied: int
    """Events that say no: connections, requests, names, refs and limits."""
    up: int
    down: int
    credentialed: float
    """When, by the loop's clock, a request with a credential was last answered with success; when
    the door was opened, if none was. What `limits.idle` counts from."""


class SessionState:
    """What changes while a session lives. One per door, touched by the loop's thread alone."""

    __slots__ = (
        "_limits",
        "_noted",
        "_push_lines",
        "_reported",
        "busy",
        "connects",
        "credentialed",
        "denied",
        "down",
        "gathered",
        "grants",
        "large_files",
        "meters",
        "names",
        "open",
        "quarantined",
        "questions",
        "requested",
        "requests",
        "searched",
        "session",
        "turn",
        "up",
    )

    def __init__(self, session: Session, now: float) -> None:
        limits = self._limits = session.book.policy.limits
        self.session = session
        self.searched = Searched(session.book, session.interception)
        self.names = SyntheticNames()
        self.grants = Grants()
        self.connects = Bucket.full("connections_per_second", limits.connections_per_second, now)
        self.questions = Bucket.full("dns_per_second", limits.dns_per_second, now)
        self.requests = Bucket.full("requests_per_second", limits.requests_per_second, now)
        self.meters = meters_for(session.book.policy, now)
        """Of services with bounds of their own."""
        self.turn: Turn = UNBOUNDED
        """Its share of the loop's time; set by the door."""
        self.open = 0
        self.busy = 0
        """Requests to services at this moment."""
        self.gathered = 0
        """Bytes of request bodies in memory."""
        self.large_files = LargeFiles()
        self.quarantined = 0
        """Bytes of pushes on disk."""
        self.up = 0
        self.down = 0
        self.requested = 0
        self.denied = 0
        self.credentialed = now
        self._noted: dict[str, float] = {}
        self._reported: set[str] = set()
        self._push_lines: list[str] = []

    def record(self, event: Event) -> None:
        """Write an event down, and count it where it says no."""
        if event.verdict is _DENY:
            self.denied += 1
        self.session.record(event)

    def change(self, session: Session, now: float) -> None:
        """Go on by another policy and other credentials; what was counted stays counted."""
        limits = self._limits = session.book.policy.limits
        self.session = session
        self.connects.adjust(limits.connections_per_second, now)
        self.questions.adjust(limits.dns_per_second, now)
        self.requests.adjust(limits.requests_per_second, now)
        change_meters(self.meters, session.book.policy, now)
        self.searched.change(session.book, session.interception)

    @property
    def figures(self) -> Figures:
        """What it has done so far."""
        return Figures(
            self.open, self.requested, self.denied, self.up, self.down, self.credentialed
        )

    def budgets(self) -> tuple[BudgetUse, ...]:
        """What was used of each budget."""
        return uses(self.meters)

    def may_open(self) -> bool:
        """Whether one more connection fits under the limit."""
        return self.open < self._limits.connections

    def count_up(self, amount: int) -> Decision | None:
        """Count bytes sent; a decision when they are over the session's limit."""
        limit = self._limits.upload
        if self.up + amount > limit:
            return decide_total("upload", self.up, amount, limit)
        self.up += amount
        return None

    def count_down(self, amount: int) -> Decision | None:
        """Count bytes received; a decision when they are over the session's limit."""
        limit = self._limits.download
        if self.down + amount > limit:
            return decide_total("download", self.down, amount, limit)
        self.down += amount
        return None

    def refused(self, decision: Decision, host: str, port: int, **details: str | int) -> None:
        """Write down a refused connection and tell the person once."""
        self.record(Event.of(EventKind.CONNECT, decision, host, port=port, **details))
        self.tell(host, port, decision.reason)

    def refused_as(self, reason: str, rule: str, host: str, port: int) -> None:
        """The same for a reason that is the gateway's own."""
        details = (("port", port),)
        self.record(Event(EventKind.CONNECT, Verdict.DENY, reason, rule, host, details))
        self.tell(host, port, reason)

    def tell(self, host: str, port: int, reason: str, why: str = "") -> None:
        """One line for the person, at most once per host; the log has every refusal."""
        if host in self._reported or len(self._reported) > MAX_REPORTS:
            return
        self._reported.add(host)
        if len(self._reported) > MAX_REPORTS:
            self.session.report("further refusals are in the log alone")
            return
        self.session.report(refusal.line(host, port, reason, why))

    def tell_again(self, host: str) -> None:
        """What a person just granted was told as refused before; the next refusal is news."""
        self._reported.discard(host)

    def tell_request(self, method: str, host: str, path: str, reason: str) -> None:
        """The same for a request: once per host and reason."""
        key = f"{host} {reason}"
        if key not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add(key)
            self.session.report(refusal.request_line(method, host, path, reason))

    def tell_refused_push(self, host: str, repository: str, words: Mapping[str, str]) -> None:
        """A few lines for the person, by the words for each ref; none for a push tried again."""
        named = islice(words.items(), MAX_REPORTS_OF_A_PUSH)
        lines = [refusal.push_line(host, repository, ref, why) for ref, why in named]
        fresh = [line for line in lines if line not in self._push_lines]
        if fresh and len(words) > len(lines):
            fresh.append(refusal.more_refs_line(len(words) - len(lines)))
        # One more than are told: the line that says so.
        for line in fresh[: MAX_PUSH_REPORTS + 1 - len(self._push_lines)]:
            self._push_lines.append(line)
            over = len(self._push_lines) > MAX_PUSH_REPORTS
            self.session.report("further refused pushes are in the log alone" if over else line)

    def over_limit(self, decision: Decision, host: str) -> None:
        """Write down that a limit on bytes was reached."""
        self.record(Event.of(EventKind.LIMIT, decision, host))
        self.tell(decision.rule, 0, decision.reason)

    def over_rate(self, bucket: Bucket, now: float) -> None:
        """Write down, now and then, that a door waits. What waits was not refused."""
        self._note(bucket.rule, now)

    def over_count(self, now: float) -> None:
        """The same for the number of open connections."""
        self._note("limits.connections", now)

    def _note(self, rule: str, now: float) -> None:
        if now < self._noted.get(rule, now):
            return
        self._noted[rule] = now + RATE_NOTE_INTERVAL
        self.over_limit(Decision(reason=Reason.OVER_LIMIT, rule=rule), "")
