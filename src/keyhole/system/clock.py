"""The clock for expiry times of sessions, grants and secrets."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since boot, including sleep.

    So a grant for ten minutes is over when a laptop is opened the next morning, a token ages while
    the laptop is shut, and setting the wall clock changes no age.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
