"""Grants at run time: one host, timed and counted, and never one that the policy judges (I3)."""

from __future__ import annotations

import math

import pytest

from keyhole.model.decision import DnsAnswer, Reason, Route
from keyhole.model.errors import Refused
from keyhole.model.host import Host
from keyhole.policy.egress import decide_dns, decide_egress
from keyhole.policy.grants import MAX_GRANTS, MAX_USES, Grant, Grants, grantable
from tests.rigs.policies import book

POLICY = """
[egress]
allow = ["known.example", "db.example:5432"]
[services.own]
hosts = ["*.ok.example", "api.example:8443"]
allow = ["GET /**"]
[services.model]
unsafe_passthrough = ["cdn.model.example"]
"""
BOOK = book(POLICY)
HOST = Host("billing.example")
A = 1


def test_a_grant_lasts_for_its_time_and_its_uses() -> None:
    grants = Grants()
    grants.add(Grant(HOST, 443, 10.0, 2))
    for left in (2, 1, 0):
        found = grants.find(HOST, 443, 9.9)
        assert found is not None
        assert found.uses == left
        assert grants.rule_for_name(HOST, 9.9) == "grants.billing.example"
        decision = decide_egress(BOOK, HOST, 443, found)
        assert decision.allowed is bool(left)
        if left:
            grants.take(found)
    assert (decision.reason, decision.rule) == (Reason.GRANT_SPENT, "grants.billing.example")
    assert grants.find(HOST, 443, 10.0) is None
    assert grants.find(HOST, 80, 1.0) is None
    assert grants.expire(9.9) == ()
    assert [grant.host for grant in grants.expire(10.0)] == [HOST]
    assert grants.views() == ()


def test_the_name_of_a_grant_exists_for_its_time() -> None:
    grants = Grants()
    grants.add(Grant(HOST, 9000, 10.0, 1))

    def ask(name: str, now: float, kind: int = A) -> DnsAnswer:
        rule = lambda host: grants.rule_for_name(host, now)  # noqa: E731
        return decide_dns(BOOK, name, kind, 1, rule).answer

    assert ask("billing.example", 9.9) is DnsAnswer.ADDRESS
    assert ask("billing.example", 9.9, kind=28) is DnsAnswer.NODATA
    assert ask("billing.example", 10.0) is DnsAnswer.NXDOMAIN
    assert ask("a.billing.example", 1.0) is DnsAnswer.NXDOMAIN
    assert ask("known.example", 99.0) is DnsAnswer.ADDRESS


def test_a_grant_is_a_tunnel_and_the_policy_speaks_first() -> None:
    decision = decide_egress(BOOK, HOST, 443, Grant(HOST, 443, 1.0, 1))
    assert (decision.route, decision.reason) == (Route.TUNNEL, Reason.GRANTED)
    served = Host("a.ok.example")
    decision = decide_egress(BOOK, served, 443, Grant(served, 443, 1.0, 1))
    assert (decision.route, decision.rule) == (Route.INSPECT, "services.own")


@pytest.mark.parametrize(
    ("name", "port", "words"),
    [
        ("a.ok.example", 443, "a host of services.own"),
        ("a.b.ok.example", 9000, "a host of services.own"),  # under its wildcard, at another port
        ("api.example", 443, "a host of services.own"),
        ("known.example", 443, "allowed already, by egress.allow[0]"),
        ("db.example", 5432, "db.example:5432 is allowed already"),
        ("cdn.model.example", 443, "a host of services.model"),
        ("billing.example", 53, "port 53"),
        ("billing.example", 0, "port 0"),
        ("billing.example", 65536, "port 65536"),
    ],
)
def test_what_cannot_be_granted_is_said_in_words(name: str, port: int, words: str) -> None:
    """I3: of a service's host, paths and methods are the policy's to open."""
    with pytest.raises(Refused, match=words.replace("[", r"\[")):
        grantable(BOOK, Host(name), port, 60.0, 1)


@pytest.mark.parametrize(
    ("seconds", "uses"),
    [(0, 1), (-1, 1), (60, 0), (60, -1), (60, MAX_USES + 1), (math.inf, 1), (math.nan, 1)],
)
def test_a_grant_without_an_end_is_none(seconds: float, uses: int) -> None:
    """I9; the control is what follows."""
    with pytest.raises(Refused, match="a time"):
        grantable(BOOK, HOST, 443, seconds, uses)
    for host, port in ((HOST, 443), (Host("db.example"), 443), (Host("ok.example"), 443)):
        grantable(BOOK, host, port, 60.0, 1)


def test_grants_are_few_and_one_of_the_same_replaces_the_last() -> None:
    """I9."""
    grants = Grants()
    for number in range(MAX_GRANTS):
        grants.add(Grant(Host(f"n{number}.example"), 443, 10.0, 1))
    with pytest.raises(Refused, match="at most"):
        grants.add(Grant(HOST, 443, 10.0, 1))
    grants.add(Grant(Host("n0.example"), 443, 20.0, 5))
    assert len(grants.views()) == MAX_GRANTS
    assert grants.find(Host("n0.example"), 443, 15.0) is not None


def test_a_policy_that_takes_a_host_into_a_service_ends_its_grant() -> None:
    grants = Grants()
    grants.add(Grant(HOST, 9000, 10.0, 1))
    grants.add(Grant(Host("a.ok.example"), 9000, 10.0, 1))
    assert [grant.host.name for grant in grants.reconcile(BOOK)] == ["a.ok.example"]
    assert [grant.host for grant in grants.views()] == [HOST]
