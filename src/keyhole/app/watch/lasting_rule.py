"""Writes the rule of a question into the policy, where a person says "always".

Used by whatever takes answers. The file must be the accepted one (I11); what is written is the
narrowest rule that covers the question, and the new file is accepted in the same step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.policy_saving import plan_change, save_change
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.ref import parse_ref_glob
from keyhole.policy.edit import RuleAddition
from keyhole.policy.schema import AskKind

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.values import AskView

_TAG = "refs/tags/"


def rule_for(ask: AskView) -> RuleAddition:
    """The rule that a question needs. Raises Refused if no policy can have it."""
    if ask.kind == AskKind.BUDGETS:
        raise Refused(f"a budget is raised in the policy by hand: {ask.rule}")
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
    file = open_policy(Path(policy), places, catalogue)
    examined = examine_policy(file, places.home, search_path)
    change = plan_change(examined, [rule_for(ask)], store, places, catalogue, search_path)
    save_change(change, store)
    return change.diff()
