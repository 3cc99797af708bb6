"""The bounds of connections that have not shown who they are (I9, I12)."""

from __future__ import annotations

import pytest

from keyhole.app.remote.unknown_visitors import (
    MAX_GREETED_PER_SECOND,
    MAX_UNKNOWN,
    MAX_UNKNOWN_OF_ADDRESS,
    UnknownVisitors,
    share_of,
)


class Visitor:
    def __init__(self, share: str) -> None:
        self.share = share
        self.ended = False

    def abort(self) -> None:
        self.ended = True


def test_an_address_has_a_share_of_connections_and_gets_it_back() -> None:
    visitors = UnknownVisitors()
    made = [Visitor("a") for _ in range(MAX_UNKNOWN_OF_ADDRESS)]
    for each in made:
        assert visitors.admits("a", 0.0)
        visitors.add(each)
    assert not visitors.admits("a", 0.0)
    assert visitors.admits("b", 0.0)
    visitors.remove(made[0])
    visitors.remove(made[0])
    assert visitors.admits("a", 0.0)


def test_handshakes_of_an_address_have_a_rate() -> None:
    visitors = UnknownVisitors()
    assert all(visitors.admits("a", 5.0) for _ in range(MAX_GREETED_PER_SECOND))
    assert not visitors.admits("a", 5.9)
    assert visitors.admits("b", 5.9)
    assert visitors.admits("a", 6.0)


def test_the_oldest_makes_room() -> None:
    visitors = UnknownVisitors()
    made = [Visitor(str(number)) for number in range(MAX_UNKNOWN + 2)]
    for each in made:
        visitors.add(each)
    assert [each.ended for each in made[:3]] == [True, True, False]
    assert len(visitors) == MAX_UNKNOWN


@pytest.mark.parametrize(
    ("address", "share"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_that_one_machine_can_have_count_as_one(address: str, share: str) -> None:
    assert share_of(address) == share
