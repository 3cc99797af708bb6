"""What a service manager is told: that the gateway is ready, and that its data plane turns."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def heard(manager: socket.socket) -> list[bytes]:
    found = []
    try:
        while True:
            found.append(manager.recv(4096))
    except BlockingIOError:
        return found


def env(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin"} | more


def test_a_sign_of_life_is_given_thrice_within_the_watchdogs_time(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    given = env(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid()))
    notifier = Notifier(given)
    assert given == {"PATH": "/bin"}  # what is started by it is not the service
    notifier.ready()
    for _ in range(61):
        notifier.turned()
        now[0] += 0.5
    assert heard(manager) == [b"READY=1", *[b"WATCHDOG=1"] * 4]
    notifier.close()


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "many"}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}]
)
def test_nobody_is_told_who_does_not_wait_for_it(
    manager: socket.socket, more: dict[str, str]
) -> None:
    notifier = Notifier(env(manager, **more))
    notifier.ready()
    notifier.turned()
    assert heard(manager) == [b"READY=1"]


@pytest.mark.parametrize("name", ["", "relative", "/nonexistent/socket", "@nobody-is-here"])
def test_without_a_manager_nothing_is_said(name: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"})
    notifier.ready()
    notifier.turned()


def test_a_manager_that_does_not_read_does_not_hold_up_the_gateway(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier(env(manager, WATCHDOG_USEC="1"))
    for _ in range(10_000):
        notifier.turned()
    assert heard(manager)
    notifier.close()
