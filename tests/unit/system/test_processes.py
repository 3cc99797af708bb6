"""Other processes, by what the kernel says of them."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys

import pytest

from keyhole.system.processes import has_ended, kill_process, reap_process, started_ticks

PATIENCE = 20.0
ABOVE = 1024
"""The first descriptor that select(2) cannot watch."""


def test_a_process_ends_when_it_is_killed_and_is_reaped_once() -> None:
    ours, theirs = os.pipe()
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=ours) as child:
        pidfd = os.pidfd_open(child.pid)
        assert not has_ended(pidfd)
        assert not has_ended(pidfd, 0.01)
        kill_process(pidfd)
        assert has_ended(pidfd, PATIENCE)
        assert has_ended(pidfd, None)
        reap_process(pidfd)
        kill_process(pidfd)
        reap_process(pidfd)
        os.close(pidfd)
    os.close(ours)
    os.close(theirs)


def test_a_descriptor_that_select_cannot_watch_is_watched() -> None:
    """A gateway has thousands."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard <= ABOVE:
        pytest.skip("this system allows no more descriptors")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, ABOVE + 16), hard))
    pidfd = os.pidfd_open(os.getpid())
    high = fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, ABOVE)
    try:
        assert not has_ended(high)
    finally:
        os.close(high)
        os.close(pidfd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_is_known_by_its_start() -> None:
    own = started_ticks(os.getpid())
    assert own is not None
    assert own == started_ticks(os.getpid())
    assert started_ticks(1 << 30) is None
