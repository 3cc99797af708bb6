"""A remote door that may connect: its certificates, its connection, and how often it may connect.

Used by `listener.py`.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from keyhole.certs.remote_authority import IssuedCertificate

CONNECTS_PER_SECOND = 1
CONNECTS_AT_ONCE = 10
"""Connections of one door. Each writes two events, and is work for four processes of the gateway. A
door that lost its connection tries again after 0.2 s at first, and later every five seconds."""

REPORT_SECONDS = 1.0
"""Refused uses of a certificate are counted for so long, and then recorded as one event."""

Visitor = TypeVar("Visitor")


class KnownDoor(Generic[Visitor]):
    """The door of one session."""

    def __init__(self, now: float) -> None:
        self.visitor: Visitor | None = None
        """Its connection."""
        self.ends = datetime.min.replace(tzinfo=UTC)
        """When its certificate ends."""
        self._serials: deque[int] = deque(maxlen=2)
        """The last certificate, and the one before: a renewed one may be lost on the way."""
        self._closed = False
        self._connects = TokenBucket.full("connects", CONNECTS_PER_SECOND, now, CONNECTS_AT_ONCE)
        self._refused = 0

    def note_issued(self, issued: IssuedCertificate) -> None:
        """It has another certificate."""
        self._serials.append(issued.serial)
        self.ends = issued.ends

    def takes(self, serial: int) -> bool:
        """Whether this certificate lets it in."""
        return not self._closed and serial in self._serials

    def may_connect(self, now: float) -> bool:
        """Whether it may connect now, which counts."""
        return self._connects.take(now).allowed

    def count_refused(self) -> bool:
        """Count a use of its certificate while that is in use. Returns whether it is the first
        since the last report."""
        self._refused += 1
        return self._refused == 1

    def take_refused(self) -> int:
        """The uses to report."""
        count, self._refused = self._refused, 0
        return count

    def close(self) -> None:
        """The session is closed for good: refuse its certificates from now on. A connection that
        exists stays, so that the door can report how the sandbox ended."""
        self._closed = True
