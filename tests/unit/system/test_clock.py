"""The clock of sessions, grants and secrets."""

from __future__ import annotations

import time

from keyhole.system import clock


def test_the_clock_is_one_that_nobody_sets() -> None:
    """The kernel's own: it is as far as CLOCK_BOOTTIME, and no clock of the day."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 < before <= clock.now() <= time.clock_gettime(time.CLOCK_BOOTTIME)
