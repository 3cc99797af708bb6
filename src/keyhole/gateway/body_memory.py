"""Memory for request bodies that are collected, with a bound for each session and for all.

Attack: many sandboxes, or one with many connections, send half of their bodies and wait, until the
gateway has no memory for the bodies of others (I9, I12).
"""

from __future__ import annotations

from keyhole.inject.sigv4 import MAX_HASHED_BODY
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import OverLimit
from keyhole.policy.limit import decide_total

MAX_GATHERED = 2 * MAX_HASHED_BODY
"""Bytes of such bodies that a session may have in memory at once."""

MAX_OF_ALL = 4 * MAX_GATHERED
"""Bytes that all sessions of a gateway may have in memory at once."""

OWN = 1 << 20
"""Bytes that a session may always have: one body that is kept in memory. With the largest number of
sessions of a gateway this is a GiB."""

RULE = "shares.body-memory"
WORDS = "bodies of this sandbox take half of the memory that the gateway has left for them"


class BodyMemory:
    """The memory of one gateway. A session may use at most as much as is left for the others, and
    always a little, so that every session gets some."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0
        """Bytes of all sessions."""

    def take(self, held: int, size: int) -> None:
        """Take more memory for a session that has `held`. Raises OverLimit."""
        if held + size > MAX_GATHERED:
            raise OverLimit(decide_total("body", held, size, MAX_GATHERED))
        if held + size > max(OWN, MAX_OF_ALL - self.held - size):
            raise OverLimit(Decision(reason=Reason.OVER_SHARE, rule=RULE), WORDS)
        self.held += size

    def free(self, size: int) -> None:
        """Give memory back."""
        self.held -= size
