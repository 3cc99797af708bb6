"""Clocks that jump: a session lives as long as its policy says, neither shorter nor longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.live_session import TICK, GatewayContext, LiveSession
from keyhole.app.session.prepared_session import PreparedSession
from keyhole.app.setup.provision import Provision
from keyhole.gateway.session import Figures
from keyhole.system import clock
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from pathlib import Path

TTL = 600.0
IDLE = 120.0
POLICY = f"[limits]\nttl = '{TTL:.0f}s'\nidle = '{IDLE:.0f}s'\n"
YEARS = 10 * 365 * 86_400.0


@dataclass
class Clocks:
    """All that there are: one a person sets, one that stops while the host sleeps, one that does
    not. The loop's timers go by the second."""

    wall: float = 1_800_000_000.0
    steady: float = 1_000.0
    boot: float = 5_000.0
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def time(self) -> float:
        """As a loop has it."""
        return self.steady

    def call_later(self, seconds: float, call: Callable[[], None]) -> Clocks:
        """As a loop has it."""
        self.timers.append((self.steady + seconds, call))
        return self

    def cancel(self) -> None:
        """As a timer has it; there is one at a time."""
        self.timers.clear()

    def run(self, seconds: float) -> None:
        """Time passes while the host is awake."""
        until = self.steady + seconds
        while self.timers and self.timers[0][0] <= until:
            due, call = self.timers.pop(0)
            self._advance(due - self.steady)
            call()
        self._advance(until - self.steady)

    def _advance(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds
        self.boot += seconds

    def sleep(self, seconds: float) -> None:
        """The host is asleep: no timer fires."""
        self.wall += seconds
        self.boot += seconds


class FakeHandle:
    """A door that nothing happens at."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.credentialed = clocks.steady
        self.closed = False

    @property
    def figures(self) -> Figures:
        return Figures(0, 0, 0, 0, 0, self.credentialed)

    def know_spending(self, spending: object) -> None:
        assert spending == {}

    def close(self) -> None:
        self.closed = True


class FakeGateway:
    """Opens doors, and counts them."""

    def __init__(self, clocks: Clocks) -> None:
        self.handle = FakeHandle(clocks)

    def open_door(self, *_: object) -> FakeHandle:
        return self.handle


class FakeLog:
    """Takes everything."""

    admitting = True

    def record(self, *_: object) -> None:
        return


@dataclass
class Watched:
    """A session, its clocks, and how it ended."""

    clocks: Clocks
    handle: FakeHandle
    session: LiveSession
    endings: list[EndReason]

    def keep_busy(self, seconds: float) -> None:
        """Time passes, and the credential is used all the while."""
        for _ in range(int(seconds / 60)):
            self.handle.credentialed = self.clocks.steady
            self.clocks.run(60)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    clocks = Clocks()
    monkeypatch.setattr(clock, "now", lambda: clocks.boot)
    monkeypatch.setattr(time, "time", lambda: clocks.wall)
    gateway, endings = FakeGateway(clocks), list[EndReason]()
    context = GatewayContext(
        cast("Any", clocks), cast("Any", gateway), cast("Any", FakeLog()), _no_judge, tmp_path
    )
    prepared = PreparedSession("s1", Provision("sha256:0", loaded(POLICY).policy, None, {}))
    session = LiveSession(context, prepared, cast("Any", None), print, endings.append)
    return Watched(clocks, gateway.handle, session, endings)


def _no_judge(_: str) -> Any:  # noqa: ANN401 - never called
    raise AssertionError


@pytest.mark.parametrize("jump", [0.0, YEARS, -YEARS])
def test_a_clock_that_is_set_neither_shortens_nor_prolongs_a_session(
    watched: Watched, jump: float
) -> None:
    """I9: whoever may set the clock, by NTP or otherwise, sets no session's end."""
    watched.keep_busy(TTL / 2)
    watched.clocks.wall += jump
    assert watched.session.expires_in == pytest.approx(TTL / 2)
    watched.keep_busy(TTL / 2 - 60)
    assert watched.endings == []
    watched.handle.credentialed = watched.clocks.steady
    watched.clocks.run(60 + TICK)
    assert watched.endings == [EndReason.EXPIRED]
    assert watched.handle.closed


def test_a_session_ages_while_its_host_sleeps(watched: Watched) -> None:
    """I9: a laptop that was shut for the night does not wake with yesterday's sessions open."""
    watched.keep_busy(60)
    watched.handle.credentialed = watched.clocks.steady
    watched.clocks.run(TICK)
    watched.clocks.sleep(IDLE / 2)
    watched.clocks.run(TICK)
    assert watched.endings == []  # the positive control: it was not over yet
    watched.clocks.sleep(TTL)
    watched.clocks.run(TICK)
    assert watched.endings == [EndReason.EXPIRED]
    assert watched.handle.closed
    assert watched.clocks.timers == []


@pytest.mark.parametrize("jump", [0.0, YEARS, -YEARS])
def test_a_clock_that_is_set_does_not_make_a_session_idle(watched: Watched, jump: float) -> None:
    watched.clocks.run(IDLE - 10)
    watched.clocks.wall += jump
    watched.clocks.run(10)
    assert watched.endings == []
    watched.clocks.run(2 * TICK)
    assert watched.endings == [EndReason.IDLE]
