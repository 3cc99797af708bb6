"""In a learning run unnamed hosts are open, and services have no credential."""

from __future__ import annotations

from msgspec.structs import replace

from keyhole.model.decision import Reason, Route
from keyhole.model.host import Host
from keyhole.model.secret import Secret
from keyhole.policy.egress import TYPE_A, decide_dns, decide_egress
from keyhole.policy.learning_mode import LEARNING_PORTS, LearningMode
from keyhole.policy.rulebook import Rulebook
from tests.rigs.policies import book

POLICY = """
[egress]
allow = ["example.org"]
[services.model]
secret = "store:model"
[services.plain]
hosts = ["plain.example"]
allow = ["GET /x"]
"""
BOOK = book(POLICY)
LEARNING = Rulebook(LearningMode().apply(BOOK.policy))


def test_an_unnamed_host_is_a_tunnel_at_the_ports_of_the_web_only() -> None:
    """I3: without the mode it is denied."""
    host = Host("new.example")
    for port in LEARNING_PORTS:
        assert decide_egress(BOOK, host, port).reason is Reason.NO_RULE
        opened = decide_egress(LEARNING, host, port)
        assert (opened.allowed, opened.reason, opened.route) == (
            True,
            Reason.LEARNING,
            Route.TUNNEL,
        )
    assert not decide_egress(LEARNING, host, 22).allowed


def test_a_host_of_the_policy_is_decided_as_ever() -> None:
    for name, port in (("example.org", 443), ("example.org", 80), ("plain.example", 443)):
        host = Host(name)
        assert decide_egress(LEARNING, host, port) == decide_egress(BOOK, host, port)


def test_an_unnamed_name_exists_by_the_mode_alone() -> None:
    assert not decide_dns(BOOK, "new.example", TYPE_A, 1).allowed
    answered = decide_dns(LEARNING, "new.example", TYPE_A, 1)
    assert (answered.allowed, answered.reason) == (True, Reason.LEARNING)
    assert decide_dns(LEARNING, "example.org", TYPE_A, 1).reason is Reason.RULE
    assert not decide_dns(LEARNING, "not a name", TYPE_A, 1).allowed


def test_services_have_no_credential_unless_that_was_said() -> None:
    """I1, I3: an open tunnel beside a credential could carry out what it reads."""
    preset = replace(
        BOOK.policy,
        services=tuple(
            replace(s, hosts=tuple(replace(h, credential=Secret("x")) for h in s.hosts))
            for s in BOOK.policy.services
        ),
    )
    bare = LearningMode().apply(preset)
    assert not any(s.secret for s in bare.services)
    assert not any(h.credential for s in bare.services for h in s.hosts)
    kept = LearningMode(with_credentials=True).apply(preset)
    assert kept.services == preset.services
    assert kept.learning
