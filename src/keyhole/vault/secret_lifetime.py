"""The lifetime of a secret, and when it is renewed.

Used by the sources whose secrets expire, and by the watcher, which renews them.
"""

from __future__ import annotations

from msgspec import Struct

FRESH = 300.0
"""Seconds before its end at which a secret is renewed; half of its life, if that is shorter."""

MIN_WAIT = 5.0
"""Seconds between two runs of one command, however short a life it declares (I9)."""

MAX_LIFE = 366 * 24 * 3600.0
"""The longest lifetime that is accepted, in seconds."""


class SecretLifetime(Struct, frozen=True):
    """When a secret was obtained and when it ends, by the clock of `now`."""

    begins: float
    ends: float

    @property
    def renewal(self) -> float:
        """When a new one is fetched, while this one is still used."""
        length = self.ends - self.begins
        return self.begins + max(length - min(FRESH, length / 2), MIN_WAIT)
