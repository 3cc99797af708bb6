"""Writes the rule of a question into the policy, where a person says "always".

Used by whatever takes answers. The file must be the accepted one (I11); what is written is the
narrowest rule that covers the question, and the new file is accepted in the same step. Questions
come from data planes, which may have been taken over: the rule must follow from what was shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.policy_saving import plan_change, write_policy
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.host import Host
from keyhole.model.ref import parse_ref_glob
from keyhole.model.text import visible
from keyhole.policy.asks import AskSubject
from keyhole.policy.edit import RuleAddition
from keyhole.policy.schema import AskKind

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import AskView
    from keyhole.policy.policy import Policy

_TAG = "refs/tags/"


def rule_for(ask: AskView) -> RuleAddition:
    """The rule that a question needs. Raises Refused if no policy can have it."""
    if ask.kind == AskKind.BUDGETS:
        raise Refused(f"a budget is raised in the policy by hand: {ask.rule}")
    _check_shown(ask)
    if ask.kind == AskKind.HOSTS:
        return RuleAddition(("egress",), "allow", ask.rule)
    if "." in ask.service:
        raise Refused(f"{ask.service} is no service of the policy's own; name one for this host")
    if ask.kind == AskKind.REQUESTS:
        return RuleAddition(("services", ask.service), "allow_also", ask.rule)
    try:
        parse_ref_glob(ask.rule)
    except Unparsable as error:
        # A branch that is called like a ref, `refs/heads/refs/tags/main`: its rule is no other's.
        raise Refused(f"no policy can name {ask.ref}: {error}") from None
    key = "tags" if ask.ref.startswith(_TAG) else "push"
    return RuleAddition(("services", ask.service), key, ask.rule)


def save_rule_for(ask: AskView, policy: str, places: HostPaths, search_path: str) -> list[str]:
    """Write the rule into the session's policy and accept that. Returns the change as lines that
    are safe to show. Raises Refused, PolicyFaults or ResourceUnusable."""
    catalogue, store = FileCatalogue(), AcceptanceStore(places.trust)
    with store.alone():
        file = open_policy(Path(policy), places, catalogue)
        examined = examine_policy(file, places.home, search_path)
        change = plan_change(examined, [rule_for(ask)], store, places, catalogue, search_path)
        _check_service(ask, change.after.file.loaded.policy)
        write_policy(examined.file.data, change.after, store)
    return change.diff()


def _check_shown(ask: AskView) -> None:
    """Refuse a rule that allows more than the words of the question say, or a pattern.

    Attack: a data plane that was taken over asks about `a.example`, and has `*.example` written.
    """
    subject = AskSubject(
        AskKind(ask.kind), ask.host, ask.port, ask.service, ask.method, ask.path, ask.ref
    )
    try:
        Host.parse(ask.host)
    except Unparsable as error:
        raise Refused(f"the question names no host: {error}") from None
    if ask.rule != subject.rule or "*" in ask.rule or ask.method == "*":
        raise Refused(f"the rule of the question is not for it alone: {visible(ask.rule)}")


def _check_service(ask: AskView, policy: Policy) -> None:
    """Refuse a rule for another service than that of the host which the question names."""
    host = Host.parse(ask.host)
    named = [service for service in policy.services if service.name == ask.service]
    patterns = [pattern for service in named for pattern in service.patterns]
    if ask.kind != AskKind.HOSTS and not any(pattern.matches(host) for pattern in patterns):
        raise Refused(f"services.{ask.service} has no host {host}; nothing is written")
