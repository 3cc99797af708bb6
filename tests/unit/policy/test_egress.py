"""Connections and names: what no rule names does not exist (I3)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import DnsAnswer, Reason, Route
from keyhole.model.host import Host
from keyhole.policy.egress import decide_dns, decide_egress
from tests.rigs.policies import book

POLICY = """
[egress]
allow = ["example.org", "*.example.net", "db.corp.example:5432", "*.example.org:80"]
[services.model]
unsafe_passthrough = ["cdn.model.example"]
"""
BOOK = book(POLICY)
A, AAAA, HTTPS, TXT, ANY, AXFR = 1, 28, 65, 16, 255, 252


@pytest.mark.parametrize(
    ("name", "port", "reason", "rule", "route"),
    [
        ("example.org", 443, Reason.RULE, "egress.allow[0]", Route.TUNNEL),
        ("a.b.example.net", 443, Reason.RULE, "egress.allow[1]", Route.TUNNEL),
        ("db.corp.example", 5432, Reason.RULE, "egress.allow[2]", Route.TUNNEL),
        ("www.example.org", 80, Reason.RULE, "egress.allow[3]", Route.TUNNEL),
        ("api.model.example", 443, Reason.RULE, "services.model", Route.INSPECT),
        (
            "cdn.model.example",
            443,
            Reason.PASSTHROUGH,
            "services.model.unsafe_passthrough[0]",
            Route.TUNNEL,
        ),
        ("example.org", 80, Reason.PORT_NOT_GRANTED, "default", Route.NONE),
        ("db.corp.example", 443, Reason.PORT_NOT_GRANTED, "default", Route.NONE),
        ("example.net", 443, Reason.NO_RULE, "default", Route.NONE),
        ("notexample.org", 443, Reason.NO_RULE, "default", Route.NONE),
        ("example.org.evil.example", 443, Reason.NO_RULE, "default", Route.NONE),
        ("xexample.net", 443, Reason.NO_RULE, "default", Route.NONE),
        ("org", 443, Reason.NO_RULE, "default", Route.NONE),
    ],
)
def test_a_connection_is_decided_by_name_and_port(
    name: str, port: int, reason: Reason, rule: str, route: Route
) -> None:
    decision = decide_egress(BOOK, Host.parse(name), port)
    assert (decision.reason, decision.rule, decision.route) == (reason, rule, route)
    assert decision.allowed is (route is not Route.NONE)


@pytest.mark.parametrize(
    ("name", "kind", "answer", "reason"),
    [
        ("example.org", A, DnsAnswer.ADDRESS, Reason.RULE),
        ("EXAMPLE.org.", A, DnsAnswer.ADDRESS, Reason.RULE),
        ("db.corp.example", A, DnsAnswer.ADDRESS, Reason.RULE),
        ("api.model.example", A, DnsAnswer.ADDRESS, Reason.RULE),
        ("example.org", AAAA, DnsAnswer.NODATA, Reason.TYPE_NOT_ANSWERED),
        ("example.org", HTTPS, DnsAnswer.NODATA, Reason.TYPE_NOT_ANSWERED),
        ("example.org", TXT, DnsAnswer.NODATA, Reason.TYPE_NOT_ANSWERED),
        ("example.org", ANY, DnsAnswer.REFUSED, Reason.TYPE_NOT_ANSWERED),
        ("example.org", AXFR, DnsAnswer.REFUSED, Reason.TYPE_NOT_ANSWERED),
        ("evil.example", A, DnsAnswer.NXDOMAIN, Reason.NO_RULE),
        ("secret-data.evil.example", TXT, DnsAnswer.NXDOMAIN, Reason.NO_RULE),
        ("example.org.corp.local", A, DnsAnswer.NXDOMAIN, Reason.NO_RULE),
        ("evil\0.example.org", A, DnsAnswer.NXDOMAIN, Reason.NAME_MALFORMED),
        ("_dmarc.example.net", TXT, DnsAnswer.NXDOMAIN, Reason.NAME_MALFORMED),
        ("", A, DnsAnswer.NXDOMAIN, Reason.NAME_MALFORMED),
    ],
)
def test_only_allowed_names_exist_and_only_a_has_an_answer(
    name: str, kind: int, answer: DnsAnswer, reason: Reason
) -> None:
    decision = decide_dns(BOOK, name, kind, 1)
    assert (decision.answer, decision.reason) == (answer, reason)
    assert decision.allowed is (answer in (DnsAnswer.ADDRESS, DnsAnswer.NODATA))


def test_other_classes_are_refused() -> None:
    chaos = 3
    assert decide_dns(BOOK, "version.bind", TXT, chaos).answer is DnsAnswer.REFUSED
    assert decide_dns(BOOK, "example.org", A, 1).allowed


def test_every_host_of_a_service_is_listed_with_who_inspects_it() -> None:
    two = book('[services.model]\n[services.again]\nuse = "forge"\nrepos = ["a/b"]\n')
    listed = [(str(pattern), rules.service.name) for pattern, rules in two.inspected()]
    assert ("api.model.example", "model") in listed
    assert ("git.example", "again") in listed
    assert list(book("").inspected()) == []


def test_the_services_of_a_name_are_found_at_whatever_port() -> None:
    """What one port may be given, another port's answer is searched for (I7)."""
    found = book(
        """
[services.one]
hosts = ["api.corp.example"]
allow = ["GET /**"]
[services.two]
hosts = ["api.corp.example:8443"]
allow = ["GET /**"]
[services.other]
hosts = ["corp.example"]
allow = ["GET /**"]
"""
    )
    host = Host.parse("api.corp.example")
    assert [rules.service.name for rules in found.services(host, 443)] == ["one"]
    assert {rules.service.name for rules in found.rules_of_name(host)} == {"one", "two"}
    assert found.rules_of_name(Host.parse("deep.api.corp.example")) == []
