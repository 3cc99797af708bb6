"""Limits as pure state machines; the caller passes the time (I9)."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from keyhole.model.decision import Decision, Reason, Verdict


class TokenBucket(Struct):
    """A token bucket: `rate` a second, at most `burst` at once. Make it with `full`."""

    rate: float
    burst: float
    tokens: float
    stamp: float
    granted: Decision
    refused: Decision
    """Both decisions are made in advance: one of them is needed for every request."""

    @classmethod
    def full(
        cls,
        name: str,
        rate: float,
        now: float,
        burst: float | None = None,
        *,
        table: str = "limits",
    ) -> Self:
        """A bucket that has not been used; the burst is one second's worth unless given."""
        size = rate if burst is None else burst
        rule = f"{table}.{name}"
        granted = Decision(Verdict.ALLOW, Reason.WITHIN_LIMIT, rule)
        return cls(rate, size, size, now, granted, Decision(reason=Reason.OVER_LIMIT, rule=rule))

    @property
    def rule(self) -> str:
        """The rule's id in its refusals."""
        return self.refused.rule

    def take(self, now: float, amount: float = 1.0) -> Decision:
        """Take tokens, or refuse and leave them; a clock that goes back earns nothing."""
        tokens, stamp = self.tokens, self.stamp
        if now > stamp:
            tokens += (now - stamp) * self.rate
            if tokens > self.burst:
                tokens = self.burst
            self.stamp = now
        if 0 <= amount <= tokens:
            self.tokens = tokens - amount
            return self.granted
        self.tokens = tokens
        return self.refused

    def earned(self, now: float) -> float:
        """Tokens that can be taken now."""
        return min(self.burst, self.tokens + max(0.0, now - self.stamp) * self.rate)

    def adjust(self, rate: float, now: float) -> None:
        """Continue at another rate, with a burst of as many seconds; taken tokens stay taken."""
        if now > self.stamp:
            self.tokens = min(self.burst, self.tokens + (now - self.stamp) * self.rate)
            self.stamp = now
        self.burst = rate * (self.burst / self.rate)
        self.tokens = min(self.tokens, self.burst)
        self.rate = rate

    def wait(self, now: float, amount: float = 1.0) -> float:
        """Seconds until `amount` can be taken, for a `Retry-After`."""
        return max(0.0, (amount - self.earned(now)) / self.rate)


LEAST_PROGRESS = 64 * 1024
"""Bytes that a body must move within `limits.body_time`. With five minutes that is 220 a second:
the slowest line can do that, and a request cannot keep its place by a byte now and then."""


class PaceCheck(Struct):
    """Whether the side that is waited for makes enough progress. Checked now and then, so that
    bytes cost nothing; a wait is measured from one check to the next."""

    whose: str = ""
    moved: int = 0
    since: float = 0.0

    def lags(self, whose: str, moved: int, now: float, allowed: float) -> bool:
        """Note which side is waited for (empty: none), and its progress. Returns whether it is too
        slow."""
        if not whose or whose != self.whose or moved - self.moved >= LEAST_PROGRESS:
            self.whose, self.moved, self.since = whose, moved, now
        return bool(whose) and now - self.since > allowed


def decide_total(name: str, used: int, amount: int, limit: int) -> Decision:
    """Decide a further use of something that is counted for the whole session."""
    rule = f"limits.{name}"
    if amount < 0 or used + amount > limit:
        return Decision(reason=Reason.OVER_LIMIT, rule=rule)
    return Decision(Verdict.ALLOW, Reason.WITHIN_LIMIT, rule)
