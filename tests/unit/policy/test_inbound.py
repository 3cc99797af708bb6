"""Peers that may connect to a pod (I2, I3)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Unparsable
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.inbound import MAX_INBOUND, InboundRule, read_inbound
from tests.rigs.policies import loaded


@pytest.mark.parametrize(
    "text",
    [
        "8080 from 192.0.2.0/24",
        "80 from 2001:db8::/32",
        "8080 from role=web",
        "1 from app.example/part=a.b-c",
    ],
)
def test_an_entry_is_written_as_it_was_read(text: str) -> None:
    assert str(InboundRule.parse(text)) == text


def test_an_address_is_a_network_of_one() -> None:
    assert str(InboundRule.parse("8080 from 192.0.2.7")) == "8080 from 192.0.2.7/32"


@pytest.mark.parametrize(
    "value",
    [
        8080, "8080", "0 from role=web", "65536 from role=web", "15001 from role=web",
        "8080 from 0.0.0.0/0", "8080 from ::/0", "8080 from 192.0.2.1/24", "8080 from everyone",
        "8080 from role=", "8080  from role=web", "8080 from role=web now",
    ],
)  # fmt: skip
def test_an_entry_for_everyone_or_of_another_form_is_refused_i3(value: object) -> None:
    with pytest.raises(Unparsable):
        read_inbound(value)


def test_a_network_names_its_own_addresses_alone() -> None:
    rule = InboundRule.parse("8080 from 192.0.2.0/24")
    assert rule.names_address("192.0.2.9")
    assert not rule.names_address("198.51.100.9")
    assert not rule.names_address("2001:db8::1")
    assert not InboundRule.parse("8080 from role=web").names_address("192.0.2.9")


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        ("8080 from 192.0.2.0/24", "8080 from 192.0.2.128/25", True),
        ("8080 from 192.0.2.0/24", "8080 from 192.0.2.0/23", False),
        ("8080 from 192.0.2.0/24", "8081 from 192.0.2.0/24", False),
        ("8080 from 2001:db8::/32", "8080 from 2001:db8:1::/48", True),
        ("8080 from 192.0.2.0/24", "8080 from 2001:db8::/32", False),
        ("8080 from role=web", "8080 from role=web", True),
        ("8080 from role=web", "8080 from role=db", False),
        ("8080 from 192.0.2.0/24", "8080 from role=web", False),
    ],
)
def test_a_rule_covers_another_if_it_lets_in_all_of_its_peers(
    outer: str, inner: str, covered: bool
) -> None:
    assert InboundRule.parse(outer).covers(InboundRule.parse(inner)) is covered


def test_a_policy_has_a_bounded_number_of_entries_i9() -> None:
    def text(count: int) -> str:
        entries = ", ".join(f'"{1024 + port} from role=web"' for port in range(count))
        return f"[sandbox]\ninbound = [{entries}]\n"

    assert len(loaded(text(MAX_INBOUND)).policy.sandbox.inbound) == MAX_INBOUND
    with pytest.raises(PolicyFaults, match="at most"):
        loaded(text(MAX_INBOUND + 1))
