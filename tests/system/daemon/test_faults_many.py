"""Sessions come and go by the hundred: the gateway and its keeper hold nothing of those that went.

Doors are real, each in a namespace of its own, and something is asked through each; only the
sandboxes are left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.daemon.served_sessions import SWEEP_SECONDS
from keyhole.control.client import RequestDeclined
from tests.rigs.daemon.doors import NAMES, Doors, Tenancy
from tests.rigs.daemon.estate import Estate, Holding
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

WARM_UP = 24
"""Sessions until what is loaded once, and what allocators keep, is there."""

GROWTH = 6 << 20
"""Bytes: what a few that came at once leave with the allocators. A session that is kept has some
100 KiB, so that two hundred would have 20 MiB."""

AT_ONCE = 8
NOT_ACCEPTED = "sha256:" + "0" * 64


@pytest.fixture
def estate() -> Iterator[Estate]:
    with Estate() as made:
        made.up()
        yield made
        made.assert_nothing_left()


def come_and_go(estate: Estate, doors: Doors, first: int, count: int) -> None:
    """Sessions, some of them at a time, that end in every way there is."""
    for start in range(first, first + count, AT_ONCE):
        held = [Tenancy(estate, doors, number) for number in range(start, start + AT_ONCE)]
        assert [each.get() for each in held] == [200] * AT_ONCE
        prepared = estate.client.open_session(estate.opened_as)
        estate.client.revoke_session(prepared.id)
        open_ones = [each.connect() for each in held[:4]]
        held[0].finish()
        held[1].hang_up()
        estate.client.revoke_session(held[2].id)
        held[2].hang_up()
        estate.client.grant(held[3].id, "other.example", 600, 3)
        estate.client.revoke_all()
        for each in held[3:]:
            each.finish()
        for sock in open_ones:
            sock.close()


def settled(estate: Estate) -> list[Holding]:
    """What data plane, control process and keeper hold when no session is left and all is done."""
    estate.until_sessions(0)
    until(lambda: not estate.service.busy)
    processes = (estate.data_plane, estate.gateway, estate.keeper)
    time.sleep(SWEEP_SECONDS + 0.5)  # what ended sessions had is swept together
    return [Holding.of(each) for each in processes]


def assert_held(estate: Estate, count: int) -> None:
    with Doors() as doors:
        come_and_go(estate, doors, 0, WARM_UP)
        before = settled(estate)
        # The positive control: while one is there, it is held.
        one = Tenancy(estate, doors, -1)
        assert one.get() == 200
        holding = (Holding.of(estate.data_plane), Holding.of(estate.gateway))
        for now, then, least in zip(holding, before, (3, 2), strict=False):
            assert len(now.descriptors) >= len(then.descriptors) + least
        one.finish()
        come_and_go(estate, doors, WARM_UP, count)
        after = settled(estate)
    for then, now in zip(before, after, strict=True):
        assert now.descriptors == then.descriptors
        assert now.threads <= then.threads
        assert now.memory - then.memory < GROWTH
    assert estate.registered() == []


def test_two_hundred_sessions_leave_nothing_in_gateway_or_keeper(estate: Estate) -> None:
    """I9: descriptors, threads and memory are as before, and with them the namespaces."""
    assert_held(estate, 200)


@pytest.mark.attack
def test_five_thousand_sessions_leave_nothing_in_gateway_or_keeper(estate: Estate) -> None:
    """I9: the same for as many as come in weeks."""
    assert_held(estate, 5000)


def test_a_session_that_cannot_be_opened_leaves_nothing_either(estate: Estate) -> None:
    """I3, I5, I9: no door, a door of a namespace that has one, a policy that was not accepted."""
    with Doors() as doors:
        come_and_go(estate, doors, 0, AT_ONCE)
        before = settled(estate)
        taken = Tenancy(estate, doors, AT_ONCE)
        for _ in range(20):
            with pytest.raises(RequestDeclined):
                estate.client.open_session(replace(estate.opened_as, trusted=NOT_ACCEPTED))
            opened = estate.client.open_session(estate.opened_as)
            door = doors.again(AT_ONCE)
            with pytest.raises(RequestDeclined, match="namespace"):
                estate.client.open_door(opened.id, NAMES[:2], [each.fileno() for each in door])
            for each in door:
                each.close()
            with pytest.raises(RequestDeclined):
                estate.client.session(opened.id)
        assert taken.get() == 200
        taken.finish()
        after = settled(estate)
    assert [h.descriptors for h in after] == [h.descriptors for h in before]
