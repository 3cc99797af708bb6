"""A limit that several processes have together: how it is divided, and one process's share of it.

The workers of a gateway share its limits "for all sandboxes together". Each has a share that the
control process gives out (`app/daemon/limit_shares.py`), so that none has to ask for a request. The
shares never sum to more than the limit; a process that lacks some says so, and all is divided anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyhole.model.decision import Decision

LEAST_RATE = 0.001
"""Tokens a second of a share that is nothing now: a rate of 0 has no time to wait for."""

LEAST_BURST = 1.0
"""Tokens at once of the smallest share: below it, nothing could ever be taken. So all processes
together may take one each at once beyond the limit's own burst."""


class ShareWish(Struct, frozen=True):
    """The need of one process."""

    used: float
    """Its use now, or a second."""
    lacking: bool
    """Whether it had to refuse: then it takes as much as is fair."""
    weight: int
    """The number of sessions that it serves."""


def divide_limit(limit: float, wishes: Sequence[ShareWish]) -> list[float]:
    """A share for each; together they are the limit.

    By turns: a process that lacks nothing keeps its use, if that is below its fair share; the
    others divide the rest by their sessions. So sessions that flood one process take nothing that
    those of another one use (I12). What no process wants is divided by sessions, too.
    """
    shares = [0.0] * len(wishes)
    left = limit
    open_ = list(range(len(wishes)))
    while open_:
        total = sum(max(1, wishes[each].weight) for each in open_)
        fair = {each: left * max(1, wishes[each].weight) / total for each in open_}
        content = [
            each
            for each in open_
            if not wishes[each].lacking and 0 <= wishes[each].used < fair[each]
        ]
        if not content:
            break
        for each in content:
            shares[each] = wishes[each].used
            left -= wishes[each].used
        open_ = [each for each in open_ if each not in content]
    # Those that lack, or use more than is fair; without any, all of them.
    takers = open_ or list(range(len(wishes)))
    total = sum(max(1, wishes[each].weight) for each in takers)
    for each in takers:
        shares[each] += left * max(1, wishes[each].weight) / total
    return shares


class SharedBucket(TokenBucket):
    """One process's share of a rate."""

    used: int = 0
    """Tokens that were taken since the share was last looked at."""
    lacking: bool = False
    """Whether it refused since then."""
    lack: Callable[[], None] | None = None
    """Called at each refusal."""

    def take(self, now: float, amount: float = 1.0) -> Decision:
        """As `TokenBucket.take`."""
        decision = TokenBucket.take(self, now, amount)
        if decision is self.granted:
            self.used += 1
        else:
            self._refuse()
        return decision

    def wait(self, now: float, amount: float = 1.0) -> float:
        """As `TokenBucket.wait`."""
        seconds = TokenBucket.wait(self, now, amount)
        if seconds:
            self._refuse()
        return seconds

    def resize(self, share: float, now: float) -> None:
        """Continue with another share. Tokens beyond its burst are given up, and none are earned at
        once: another process may have had them."""
        self.tokens = self.earned(now)
        self.stamp = max(self.stamp, now)
        self.rate, self.burst = max(LEAST_RATE, share), max(LEAST_BURST, share)
        self.tokens = min(self.tokens, self.burst)

    def look(self) -> tuple[int, bool]:
        """Its use since the last look, and whether it refused."""
        found = self.used, self.lacking
        self.used, self.lacking = 0, False
        return found

    def _refuse(self) -> None:
        self.lacking = True
        if self.lack is not None:
            self.lack()
