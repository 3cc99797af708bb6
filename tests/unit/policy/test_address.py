"""Addresses: an allowed name does not lead to the host's own network (I4)."""

from __future__ import annotations

import ipaddress

import pytest

from keyhole.model.decision import Reason
from keyhole.model.host import Host
from keyhole.policy.address import decide_address, has_exception, public_alone
from tests.rigs.policies import book

BOOK = book(
    """
[egress]
allow = ["example.org", "db.corp.example:5432", "local.example:8443"]
[upstream]
private = ["*.corp.example"]
[upstream.connect]
"local.example:8443" = "127.0.0.1:9443"
"""
)
PUBLIC = Host.parse("example.org")
CORP = Host.parse("db.corp.example")
LOCAL = Host.parse("local.example")


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07::1", "1.1.1.1"])
def test_a_public_address_is_dialled(address: str) -> None:
    resolved = ipaddress.ip_address(address)
    decision = decide_address(BOOK, PUBLIC, 443, resolved)
    assert decision.allowed
    assert (decision.address, decision.port) == (resolved, 443)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", Reason.ADDRESS_LOOPBACK),
        ("127.8.8.8", Reason.ADDRESS_LOOPBACK),
        ("::1", Reason.ADDRESS_LOOPBACK),
        ("10.1.2.3", Reason.ADDRESS_PRIVATE),
        ("172.16.0.1", Reason.ADDRESS_PRIVATE),
        ("192.168.1.1", Reason.ADDRESS_PRIVATE),
        ("100.64.0.1", Reason.ADDRESS_PRIVATE),
        ("fc00::1", Reason.ADDRESS_PRIVATE),
        ("fd12:3456::1", Reason.ADDRESS_PRIVATE),
        ("169.254.0.1", Reason.ADDRESS_LINK_LOCAL),
        ("fe80::1", Reason.ADDRESS_LINK_LOCAL),
        ("224.0.0.1", Reason.ADDRESS_MULTICAST),
        ("ff02::1", Reason.ADDRESS_MULTICAST),
        ("169.254.169.254", Reason.ADDRESS_METADATA),
        ("169.254.170.2", Reason.ADDRESS_METADATA),
        ("168.63.129.16", Reason.ADDRESS_METADATA),
        ("100.100.100.200", Reason.ADDRESS_METADATA),
        ("fd00:ec2::254", Reason.ADDRESS_METADATA),
        ("::ffff:10.0.0.1", Reason.ADDRESS_EMBEDDED),
        ("::ffff:93.184.215.14", Reason.ADDRESS_EMBEDDED),
        ("64:ff9b::a00:1", Reason.ADDRESS_EMBEDDED),
        ("64:ff9b:1::a00:1", Reason.ADDRESS_EMBEDDED),
        ("2002:a00:1::", Reason.ADDRESS_EMBEDDED),
        ("2001:0:4136:e378::", Reason.ADDRESS_EMBEDDED),
        ("::10.0.0.1", Reason.ADDRESS_EMBEDDED),
        ("0.0.0.0", Reason.ADDRESS_RESERVED),  # noqa: S104 - an address to refuse
        ("0.1.2.3", Reason.ADDRESS_RESERVED),
        ("255.255.255.255", Reason.ADDRESS_RESERVED),
        ("240.0.0.1", Reason.ADDRESS_RESERVED),
        ("198.18.0.7", Reason.ADDRESS_RESERVED),
        ("192.0.2.1", Reason.ADDRESS_RESERVED),
        ("2001:db8::1", Reason.ADDRESS_RESERVED),
        ("fec0::1", Reason.ADDRESS_RESERVED),
    ],
)
def test_an_address_that_is_not_public_is_refused_and_none_is_given(
    address: str, reason: Reason
) -> None:
    decision = decide_address(BOOK, PUBLIC, 443, ipaddress.ip_address(address))
    assert (decision.allowed, decision.reason) == (False, reason)
    assert decision.address is None


def test_private_opens_private_addresses_and_nothing_beyond() -> None:
    def reason(address: str) -> Reason:
        return decide_address(BOOK, CORP, 5432, ipaddress.ip_address(address)).reason

    assert reason("10.0.3.7") is Reason.PRIVATE_GRANTED
    assert reason("fd12::7") is Reason.PRIVATE_GRANTED
    assert reason("127.0.0.1") is Reason.ADDRESS_LOOPBACK
    assert reason("169.254.169.254") is Reason.ADDRESS_METADATA
    assert reason("fd00:ec2::254") is Reason.ADDRESS_METADATA
    assert reason("::ffff:10.0.0.1") is Reason.ADDRESS_EMBEDDED
    granted = decide_address(BOOK, CORP, 5432, ipaddress.ip_address("10.0.3.7"))
    assert granted.rule == "upstream.private[0]"


def test_connect_names_the_address_whatever_it_is_for_that_host_and_port_only() -> None:
    resolved = ipaddress.ip_address("93.184.215.14")
    decision = decide_address(BOOK, LOCAL, 8443, resolved)
    assert decision.allowed
    assert (str(decision.address), decision.port) == ("127.0.0.1", 9443)
    assert decide_address(BOOK, LOCAL, 443, resolved).reason is Reason.PUBLIC_ADDRESS


def test_an_address_of_this_host_is_like_loopback() -> None:
    """I4: also a public or granted one; control: the same addresses when they are others'."""
    public, private = ipaddress.ip_address("93.184.215.14"), ipaddress.ip_address("10.0.3.7")
    for host, port, address in ((PUBLIC, 443, public), (CORP, 5432, private)):
        refused = decide_address(BOOK, host, port, address, own=True)
        assert (refused.allowed, refused.reason) == (False, Reason.ADDRESS_LOOPBACK)
        assert decide_address(BOOK, host, port, address).allowed
    assert decide_address(BOOK, LOCAL, 8443, public, own=True).reason is Reason.CONNECT_OVERRIDE


def test_hosts_that_another_server_names_have_none_of_the_policys_exceptions() -> None:
    """I4: a public service names an endpoint of the private network. Control: with them."""
    inside, public = ipaddress.ip_address("10.1.2.3"), public_alone(BOOK)
    assert decide_address(BOOK, CORP, 443, inside).allowed
    assert decide_address(public, CORP, 443, inside).reason == Reason.ADDRESS_PRIVATE
    assert not decide_address(public, LOCAL, 8443, ipaddress.ip_address("127.0.0.1")).allowed
    assert [has_exception(BOOK, host, 8443) for host in (CORP, LOCAL, PUBLIC)] == [
        True,
        True,
        False,
    ]
    assert not has_exception(BOOK, LOCAL, 443)
