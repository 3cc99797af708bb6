"""The limits and the use of one service in a session; the caller passes the time (I9).

The values are made by `services.py`; the gateway keeps a `Meter` for each service that has some.
A request over a rate, or over the number of concurrent requests, may be sent again later. A budget
is for the whole session: a request over it is refused for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

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


class BudgetUse(Struct, frozen=True):
    """The use of one budget, for a list."""

    name: str
    used: int
    limit: int


class Meter:
    """The use of one service in a session, and its limits."""

    __slots__ = ("_bucket", "_limits", "_rule", "busy", "download", "requests", "tokens", "upload")

    def __init__(self, service: str, limits: ServiceLimits, now: float) -> None:
        self._rule = f"services.{service}"
        self._limits = limits
        self._bucket: TokenBucket | None = None
        self.busy = 0
        """Requests at this moment."""
        self.requests = 0
        self.upload = 0
        self.download = 0
        self.tokens = 0
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
            if limit is not None and getattr(self, name) >= limit:
                return self._over(name)
        return None

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
            BudgetUse(f"{self._rule}.budget.{name}", getattr(self, name), limit)
            for name in _BUDGETS
            if (limit := getattr(budget, name)) is not None
        )

    def _over(self, name: str) -> Decision:
        return Decision(reason=Reason.OVER_BUDGET, rule=f"{self._rule}.budget.{name}")


_BUDGETS = Budget.__struct_fields__


class GatewayLimits(Struct, frozen=True):
    """Limits of all sandboxes of one gateway together; None: only each sandbox's own rate
    applies."""

    sessions: int = 1000
    connections: int = 8192
    connections_per_second: int | None = None
    requests_per_second: int | None = None
    dns_per_second: int | None = None
    audit_per_second: int | None = None
