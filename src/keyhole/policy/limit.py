"""Limits as pure state machines that are handed the time (I9)."""

from __future__ import annotations

import functools

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.value import dataclass


@dataclass(slots=True)
class Bucket:
    """A token bucket: `rate` a second, at most `burst` at once. Make it with `full`."""

    name: str
    rate: float
    burst: float
    tokens: float
    stamp: float

    @classmethod
    def full(cls, name: str, rate: float, now: float, burst: float | None = None) -> Bucket:
        """A bucket that has not been used; the burst is one second's worth unless given."""
        size = rate if burst is None else burst
        return cls(name, rate, size, size, now)

    def take(self, now: float, amount: float = 1.0) -> Decision:
        """Take tokens, or refuse and leave them; a clock that goes back earns nothing."""
        tokens, stamp = self.tokens, self.stamp
        if now > stamp:
            tokens = min(self.burst, tokens + (now - stamp) * self.rate)
            self.stamp = now
        allowed = 0 <= amount <= tokens
        self.tokens = tokens - amount if allowed else tokens
        return _decided(self.name, allowed)

    def adjust(self, rate: float, now: float) -> None:
        """Go on at another rate, with one second's worth at once; what was taken stays taken."""
        if now > self.stamp:
            self.tokens = min(self.burst, self.tokens + (now - self.stamp) * self.rate)
            self.stamp = now
        self.tokens = min(self.tokens, rate)
        self.rate = self.burst = rate

    def wait(self, now: float, amount: float = 1.0) -> float:
        """Seconds until `amount` can be taken, for a `Retry-After`."""
        earned = max(0.0, now - self.stamp) * self.rate
        missing = amount - min(self.burst, self.tokens + earned)
        return max(0.0, missing / self.rate)


@functools.cache
def _decided(name: str, allowed: bool) -> Decision:
    """The same value each time: one is needed for every request, and there are few limits."""
    if allowed:
        return Decision(Verdict.ALLOW, Reason.WITHIN_LIMIT, f"limits.{name}")
    return Decision(reason=Reason.OVER_LIMIT, rule=f"limits.{name}")


def decide_total(name: str, used: int, amount: int, limit: int) -> Decision:
    """Decide a further use of something that is counted over a whole session."""
    rule = f"limits.{name}"
    if amount < 0 or used + amount > limit:
        return Decision(reason=Reason.OVER_LIMIT, rule=rule)
    return Decision(Verdict.ALLOW, Reason.WITHIN_LIMIT, rule)
