"""The limits and the use of one service in a session; the caller passes the time (I9).

The values are made by `services.py`; the gateway keeps a `Meter` for each service that has some.
A request over a rate, or over the number of concurrent requests, may be sent again later. A budget
is for the whole session, or for a day or month of all sessions: a request over it is refused for
good. A response that crosses the line is passed on, since the provider has billed it by then; the
next request is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.inject.prices import PriceList
from keyhole.model.decision import Decision, Reason
from keyhole.model.rule import AccessRule
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE_WAIT = 1.0
"""Seconds after which a client may retry when too many requests run at once: an estimate."""


class Budget(Struct, frozen=True):
    """The amounts of a service that a session may use; None: only the session's limits apply."""

    requests: int | None = None
    upload: int | None = None
    download: int | None = None
    tokens: int | None = None
    session: int | None = None
    """Money in a session, in billionths of a US dollar; so are the next two."""
    day: int | None = None
    """Money in a day, of all sessions of the user together."""
    month: int | None = None
    ask: int | None = None
    """The share of each amount of money, in percent, from which on a person is asked."""

    @property
    def counts_tokens(self) -> bool:
        """Whether responses must be read."""
        return self.tokens is not None or self.is_money

    @property
    def is_money(self) -> bool:
        """Whether an amount of money bounds the service."""
        return any(getattr(self, name) is not None for name in MONEY)


MONEY = ("session", "day", "month")
"""The amounts of a budget that are money."""

PERIODS = ("day", "month")
"""Those that all sessions of a user share."""


class PeriodSpending(Struct, frozen=True):
    """What all sessions of a user have spent at a service, as the process knows that keeps the
    account."""

    day: int = 0
    month: int = 0
    counted: int = 0
    """The part of this session's own that is in both."""
    today: str = ""
    """The day that is meant, so that a question about it is asked anew on the next."""
    known: bool = True
    """Whether the account can be read and written."""


class ServiceLimits(Struct, frozen=True):
    """Limits of one service, beside the session's."""

    requests_per_second: int | None = None
    concurrent_requests: int | None = None
    bodies: tuple[tuple[AccessRule, int], ...] = ()
    budget: Budget = field(default_factory=Budget)

    def body(self, method: str, readings: Iterable[tuple[str, ...]]) -> int | None:
        """Bytes that a body may have at an endpoint; None: the session's limit. `readings` are the
        path's folded segments, in each way that a server may read them."""
        found = [size for path in readings if (size := self._body_at(method, path)) is not None]
        return min(found, default=None)

    def _body_at(self, method: str, path: tuple[str, ...]) -> int | None:
        matching = [
            (rule, size)
            for rule, size in self.bodies
            if rule.speaks_of(method) and rule.path.folded().matches(path)
        ]
        # The keys of a table have no order. So the most exact rule decides, and the smallest size
        # among rules of which none contains another.
        exact = [
            size
            for rule, size in matching
            if not any(rule.covers(other) and not other.covers(rule) for other, _ in matching)
        ]
        return min(exact, default=None)


class SoftLine(Struct, frozen=True):
    """A share of a budget that is used up, so that a person is asked whether to go on."""

    name: str
    rule: str
    line: int
    limit: int
    today: str


class BudgetUse(Struct, frozen=True):
    """The use of one budget, for a list."""

    name: str
    used: int
    limit: int


class Meter:
    """The use of one service in a session, and its limits."""

    __slots__ = (
        "_bucket", "_limits", "_periods", "_rule", "busy", "download", "prices", "requests",
        "session", "tokens", "unpriced", "upload",
    )  # fmt: skip

    def __init__(
        self, service: str, limits: ServiceLimits, now: float, prices: PriceList | None = None
    ) -> None:
        self._rule = f"services.{service}"
        self._limits = limits
        self._periods: PeriodSpending | None = None
        self.prices = prices or PriceList()
        self._bucket: TokenBucket | None = None
        self.busy = 0
        """Requests at this moment."""
        self.requests = 0
        self.upload = 0
        self.download = 0
        self.tokens = 0
        self.session = 0
        """Money, in billionths of a US dollar."""
        self.unpriced = 0
        """Tokens of models whose price is not known."""
        self.change(limits, now)

    @property
    def limits(self) -> ServiceLimits:
        """The limits in force."""
        return self._limits

    def change(self, limits: ServiceLimits, now: float) -> None:
        """Apply another budget from now on; the counters stay."""
        rate, bucket = limits.requests_per_second, self._bucket
        self._limits = limits
        if rate is None:
            self._bucket = None
        elif bucket is None:
            self._bucket = TokenBucket.full("requests_per_second", rate, now, table=self._rule)
        else:
            bucket.adjust(rate, now)

    def admit(self, now: float, size: int) -> tuple[Decision, float] | None:
        """Count a request of so many bytes. If it is refused, returns the decision and the seconds
        after which it may be sent again (0: never)."""
        budget, limits = self._limits.budget, self._limits
        spent = self.spent()
        if spent is not None:
            return spent, 0.0
        if budget.upload is not None and self.upload + size > budget.upload:
            return self._over("upload"), 0.0
        most = limits.concurrent_requests
        if most is not None and self.busy >= most:
            rule = f"{self._rule}.concurrent_requests"
            return Decision(reason=Reason.OVER_LIMIT, rule=rule), PLACE_WAIT
        bucket = self._bucket
        if bucket is not None:
            decision = bucket.take(now)
            if not decision.allowed:
                return decision, bucket.wait(now)
        self.requests += 1
        self.busy += 1
        return None

    def pass_by(self, now: float) -> Decision | None:
        """Count a plain HTTP request; the gateway sees neither its bytes nor its end."""
        refused = self.admit(now, 0)
        if refused is None:
            self.busy -= 1
            return None
        return refused[0]

    def join(self) -> None:
        """Count a request that began before its service had limits."""
        self.busy += 1

    def leave(self) -> None:
        """A request has ended."""
        self.busy -= 1

    def spent(self) -> Decision | None:
        """The budget that is used up, if one is."""
        budget = self._limits.budget
        for name in _BUDGETS:
            limit = getattr(budget, name)
            if limit is not None and self._used(name) >= limit:
                return self._over(name)
        if self._periods is None or not self._periods.known:
            # Nobody knows what other sessions have spent. Attack: fill the disk that the account is
            # on, and spend as if nothing had been (I9).
            for name in PERIODS:
                if getattr(budget, name) is not None:
                    return Decision(reason=Reason.SPENDING_UNKNOWN, rule=self._budget_rule(name))
        return None

    def soft_line(self) -> SoftLine | None:
        """The share of an amount of money that is used up, after which a person is asked."""
        budget = self._limits.budget
        if budget.ask is None:
            return None
        for name in MONEY:
            limit = getattr(budget, name)
            line = 0 if limit is None else limit * budget.ask // 100
            if limit is not None and self._used(name) >= line:
                today = self._periods.today if self._periods and name in PERIODS else ""
                return SoftLine(name, self._budget_rule(name), line, limit, today)
        return None

    def know_periods(self, spending: PeriodSpending) -> None:
        """What all sessions have spent, as far as it was counted."""
        self._periods = spending

    def _used(self, name: str) -> int:
        """The use of one amount. Of money in a period: what was counted of all sessions, and what
        this one has spent since."""
        if name not in PERIODS:
            used: int = getattr(self, name)
            return used
        spending = self._periods or PeriodSpending()
        return int(getattr(spending, name)) + max(0, self.session - spending.counted)

    def count_up(self, amount: int) -> Decision | None:
        """Count bytes sent; a decision when they are over the budget."""
        limit = self._limits.budget.upload
        if limit is not None and self.upload + amount > limit:
            return self._over("upload")
        self.upload += amount
        return None

    def count_down(self, amount: int) -> Decision | None:
        """Count bytes received; a decision when they are over the budget."""
        limit = self._limits.budget.download
        if limit is not None and self.download + amount > limit:
            return self._over("download")
        self.download += amount
        return None

    def uses(self) -> tuple[BudgetUse, ...]:
        """Use against budget."""
        budget = self._limits.budget
        return tuple(
            BudgetUse(self._budget_rule(name), self._used(name), limit)
            for name in _BUDGETS
            if (limit := getattr(budget, name)) is not None
        )

    def _over(self, name: str) -> Decision:
        return Decision(reason=Reason.OVER_BUDGET, rule=self._budget_rule(name))

    def _budget_rule(self, name: str) -> str:
        return f"{self._rule}.budget.{name}"


_BUDGETS = ("requests", "upload", "download", "tokens", *MONEY)
"""The amounts; `ask` is none."""


class GatewayLimits(Struct, frozen=True):
    """Limits of all sandboxes of one gateway together; None: only each sandbox's own rate
    applies."""

    sessions: int = 1000
    connections: int = 8192
    connections_per_second: int | None = None
    requests_per_second: int | None = None
    dns_per_second: int | None = None
    audit_per_second: int | None = None
