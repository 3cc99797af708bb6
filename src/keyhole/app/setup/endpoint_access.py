"""How the vault reaches servers that issue tokens: under a policy, never through a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.setup.root_reader import open_roots, origin_context
from keyhole.policy.rulebook import Rulebook
from keyhole.vault.login_provider import EndpointAccess

if TYPE_CHECKING:
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.policy.policy import Policy


def endpoint_access(policy: Policy, examined: ExaminedPolicy) -> EndpointAccess:
    """With this policy's roots, addresses and proxy; each is read when it is needed."""
    return EndpointAccess(
        book=lambda: Rulebook(policy), context=lambda: origin_context(open_roots(policy, examined))
    )
