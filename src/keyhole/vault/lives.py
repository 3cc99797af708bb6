"""How long a secret that a command printed may be used, and when it is asked for again.

Used by the `exec:` source, which reads the declaration, and by the watch, which renews. Nothing
here raises: the characters are at hand.
"""

from __future__ import annotations

import json
import time

from keyhole.model.value import dataclass, replace
from keyhole.vault.custody import seal
from keyhole.vault.interface import Reading

FRESH = 300.0
"""Seconds before its end at which a secret is renewed; half of its life, if that is shorter."""

MIN_WAIT = 5.0
"""Seconds between two runs of one command, however short a life it declares (I9)."""

MAX_LIFE = 366 * 24 * 3600.0
"""Seconds that are believed: what lives longer may as well declare nothing."""

FORM = '{"secret": "…", "expires_in": SECONDS}'

_KEYS = {"secret", "expires_in"}


@dataclass(frozen=True, slots=True)
class Life:
    """From when to when, by the clock of `now`."""

    begins: float
    ends: float

    @property
    def renewal(self) -> float:
        """When a new one is asked for, while this one still serves."""
        length = self.ends - self.begins
        return self.begins + max(length - min(FRESH, length / 2), MIN_WAIT)


def now() -> float:
    """Seconds since boot, those of sleep included: a token ages while a laptop is shut."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_printed(data: bytes, asked: float) -> Reading:
    """The secret alone, or the one form that declares a life; its life counts from the asking.

    An object without `secret` is a secret itself, as a service account's key file is.
    """
    document = _document(data)
    if document is None or "secret" not in document:
        return seal(data)
    secret, seconds = document["secret"], document.get("expires_in")
    if set(document) != _KEYS or not isinstance(secret, str):
        return Reading(flaw=f"the command printed an object with 'secret' in it, but not {FORM}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        seconds = 0
    if not 0 < seconds <= MAX_LIFE:
        return Reading(flaw=f"'expires_in' is a number of seconds, {MAX_LIFE:.0f} at most")
    reading = seal(secret.encode("utf-8", "surrogatepass"))
    return replace(reading, life=Life(asked, asked + seconds)) if reading.secret else reading


def _document(data: bytes) -> dict[str, object] | None:
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
