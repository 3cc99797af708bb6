"""A session's age and idleness, by clocks that are handed in."""

from __future__ import annotations

from keyhole.app.session.live_session import IdleTimer


def test_a_session_idles_while_its_host_sleeps() -> None:
    """I9: a laptop that is shut for a night does not prolong a session."""
    idleness = IdleTimer()
    assert idleness.seconds(used=100.0, steady=101.0, since_boot=5101.0) == 1.0
    assert idleness.seconds(used=100.0, steady=110.0, since_boot=5110.0) == 10.0
    # An hour of sleep: the steady clock has hardly moved.
    assert idleness.seconds(used=100.0, steady=111.0, since_boot=8711.0) == 3611.0
    # A credential is used: all begins anew, the sleep before it included.
    assert idleness.seconds(used=112.0, steady=112.5, since_boot=8712.5) == 0.5
    assert idleness.seconds(used=112.0, steady=120.0, since_boot=8720.0) == 8.0
