"""Decides whether a connection may be made, and whether a name exists (I3, I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import DnsAnswer, DnsDecision, EgressDecision, Reason, Route, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host
from keyhole.policy import learning_mode
from keyhole.policy.learning_mode import LEARNING_PORTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.policy.grants import Grant
    from keyhole.policy.rulebook import Rulebook

CLASS_INTERNET = 1
TYPE_A = 1
TYPE_ANY = 255
# Requests that are not questions about a name (RFC 5936, 1995): refused, not answered empty.
_TRANSFERS = frozenset({251, 252})


def decide_egress(
    book: Rulebook, host: Host, port: int, granted: Grant | None = None
) -> EgressDecision:
    """Decide a TCP connection to a name and port; grants made at run time come last."""
    grant = book.grant(host, port)
    if grant:
        reason = Reason.PASSTHROUGH if grant.passthrough else Reason.RULE
        return EgressDecision(Verdict.ALLOW, reason, grant.rule, grant.route)
    if granted is not None:
        if granted.uses < 1:
            return EgressDecision(reason=Reason.GRANT_SPENT, rule=granted.rule)
        return EgressDecision(Verdict.ALLOW, Reason.GRANTED, granted.rule, Route.TUNNEL)
    if book.rule_for_name(host):
        return EgressDecision(reason=Reason.PORT_NOT_GRANTED)
    if book.policy.learning and port in LEARNING_PORTS:
        return EgressDecision(Verdict.ALLOW, Reason.LEARNING, learning_mode.RULE, Route.TUNNEL)
    return EgressDecision()


def decide_dns(
    book: Rulebook,
    name: str,
    record_type: int,
    record_class: int,
    granted: Callable[[Host], str | None] = lambda _: None,
) -> DnsDecision:
    """Decide a DNS question. Only names that some rule allows exist; only A has an answer.

    `granted` returns the rule of a name that was granted at run time.
    """
    if record_class != CLASS_INTERNET:
        return DnsDecision(reason=Reason.CLASS_NOT_ANSWERED, answer=DnsAnswer.REFUSED)
    if record_type == TYPE_ANY or record_type in _TRANSFERS:
        return DnsDecision(reason=Reason.TYPE_NOT_ANSWERED, answer=DnsAnswer.REFUSED)
    try:
        host = Host.parse(name.removesuffix("."))
    except Unparsable:
        return DnsDecision(reason=Reason.NAME_MALFORMED)
    rule, reason = book.rule_for_name(host) or granted(host), Reason.RULE
    if rule is None and book.policy.learning:
        rule, reason = learning_mode.RULE, Reason.LEARNING
    if rule is None:
        return DnsDecision()
    if record_type != TYPE_A:
        # Also for AAAA, HTTPS and SVCB: there is no IPv6 inside, and a client must learn no ECH
        # keys. The name itself is allowed, so this is no refusal; it has no record of this type.
        return DnsDecision(Verdict.ALLOW, Reason.TYPE_NOT_ANSWERED, rule, DnsAnswer.NODATA)
    return DnsDecision(Verdict.ALLOW, reason, rule, DnsAnswer.ADDRESS)
