"""A gateway under everything at once, for as long as SOAK says: its memory stays flat.

`make attack SOAK=30m`; by itself a minute. Sessions come and go, requests pass or are refused,
secrets rotate, policies change or are kept as they were, hosts are granted, figures are asked for.
"""

from __future__ import annotations

import os
import random
import ssl
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from keyhole.app.daemon.served_sessions import SWEEP_SECONDS
from keyhole.control.client import RequestDeclined
from tests.rigs.daemon.doors import Doors, Tenancy, ask
from tests.rigs.daemon.estate import HOST, Estate, Holding
from tests.rigs.durations import seconds_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.attack

DEFAULT = "1m"

AT_ONCE = 12
"""Sessions that are held at a time."""

SAMPLES = 12
"""Looks at what the processes hold, each when no session is left; the first half warms up."""

GROWTH = 6 << 20
"""Bytes between the halves, whatever the time: allocators' noise, and less than one session of a
hundred that is kept."""


@dataclass
class Soak:
    """What is under way, and what is done to it next."""

    estate: Estate
    doors: Doors
    chance: random.Random
    held: list[Tenancy] = field(default_factory=list)
    open: dict[str, ssl.SSLSocket] = field(default_factory=dict)
    number: int = 0
    requests: int = 0

    def step(self) -> None:
        deeds = (
            (12, self.come), (40, self.request), (10, self.keep_open), (12, self.go),
            (4, self.rotate), (3, self.reload), (2, self.break_policy), (3, self.grant),
            (1, self.look), (2, self.be_refused),
        )  # fmt: skip
        weights, functions = zip(*deeds, strict=True)
        self.chance.choices(functions, weights)[0]()

    def come(self) -> None:
        if len(self.held) < AT_ONCE:
            self.number += 1
            self.held.append(Tenancy(self.estate, self.doors, self.number))

    def go(self) -> None:
        if not self.held:
            return
        one = self.held.pop(self.chance.randrange(len(self.held)))
        ways = (one.finish, one.hang_up, lambda: self._revoked(one))
        self.chance.choice(ways)()
        if one.id in self.open:
            self.open.pop(one.id).close()

    def _revoked(self, one: Tenancy) -> None:
        self.estate.client.revoke_session(one.id)
        one.finish()

    def request(self) -> None:
        if self.held:
            one = self.chance.choice(self.held)
            kept = self.open.get(one.id)
            assert (ask(kept) if kept else one.get()) == 200
            self.requests += 1

    def keep_open(self) -> None:
        if self.held:
            one = self.chance.choice(self.held)
            if one.id not in self.open:
                self.open[one.id] = one.connect()

    def rotate(self) -> None:
        self.estate.secret(f"rotated-{self.number}-{self.chance.randrange(1 << 40):x}")

    def reload(self) -> None:
        """A policy that is accepted; what is open goes on."""
        self.estate.policy(more=f"[limits]\nrequests_per_second = {self.chance.randint(500, 900)}")
        self.estate.opened_as = self.estate.opening()
        self.estate.client.reload()

    def break_policy(self) -> None:
        """One that nobody accepted: the old one holds."""
        path = self.estate.project.directory / "keyhole.toml"
        good = path.read_text()
        path.write_text(good + "[egress]\nallow = ['more.example']\n")
        self.estate.client.reload()
        path.write_text(good)
        self.estate.client.reload()

    def grant(self) -> None:
        if self.held:
            one = self.chance.choice(self.held)
            with pytest.raises(RequestDeclined):
                self.estate.client.grant(one.id, HOST, 60, 1)
            self.estate.client.grant(one.id, f"g{self.number}.example", 1, 1)

    def be_refused(self) -> None:
        if self.held:
            assert self.chance.choice(self.held).get("/elsewhere") == 403

    def look(self) -> None:
        assert self.estate.client.status().admitting
        self.estate.client.sessions()
        self.estate.client.metrics()

    def clear(self) -> None:
        """Let all of them go."""
        while self.held:
            self.go()
        self.estate.until_sessions(0)
        until(lambda: not self.estate.service.busy)


@pytest.fixture
def estate() -> Iterator[Estate]:
    with Estate() as made:
        made.up()
        yield made
        made.assert_nothing_left()


def test_a_gateway_that_is_used_all_day_holds_as_much_at_night(
    estate: Estate, capsys: pytest.CaptureFixture[str]
) -> None:
    """I9: descriptors and threads to the last one, memory within noise."""
    length = seconds_of("SOAK", DEFAULT)
    seed = int.from_bytes(os.urandom(4))
    processes = {
        "data plane": estate.data_plane, "control": estate.gateway, "keeper": estate.keeper
    }  # fmt: skip
    samples: list[tuple[Holding, ...]] = []
    begun = time.monotonic()
    with Doors() as doors:
        soak = Soak(estate, doors, random.Random(seed))  # noqa: S311 - of deeds, no secret
        for number in range(1, SAMPLES + 1):
            while time.monotonic() < begun + length * number / SAMPLES:
                soak.step()
            soak.clear()
            time.sleep(SWEEP_SECONDS + 0.5)
            samples.append(tuple(map(Holding.of, processes.values())))
    told = f"\n  seed {seed}: {soak.number} sessions, {soak.requests} requests; MiB\n" + "".join(
        f"  of {name} {[sample[place].memory >> 20 for sample in samples]}\n"
        for place, name in enumerate(processes)
    )
    with capsys.disabled():
        sys.stdout.write(told)
    assert soak.requests > 10 * SAMPLES
    for process in zip(*samples, strict=True):
        warm, late = process[: SAMPLES // 2], process[SAMPLES // 2 :]
        assert late[-1].descriptors == warm[-1].descriptors
        assert max(h.threads for h in late) <= max(h.threads for h in warm)
        assert min(h.memory for h in late) - min(h.memory for h in warm[-3:]) < GROWTH
