"""A policy for a learning run: names that no rule names are open, and services have no credential.

Applied by `cli` once a person agreed to it, and again whenever the policy is read during the run.
`egress.py` decides by the mark that it leaves on the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy, Service

LEARNING_PORTS = frozenset({80, 443})
"""Ports at which an unnamed host is open: the web's, whose first bytes name it (I4)."""

MAX_LEARNT_NAMES = 1000
"""Names that a session of a learning run may ask for: a large build needs some fifty. The gateway
resolves each, so every name carries a message to its name server."""

RULE = "learn"
"""The name by which decisions cite it."""


class LearningMode(Struct, frozen=True):
    """What a person agreed to for one run."""

    with_credentials: bool = False
    """Whether services get their credentials although an open host can carry out what they read."""

    def apply(self, policy: Policy) -> Policy:
        """The policy of the run."""
        services = policy.services
        if not self.with_credentials:
            services = tuple(map(_without_credential, services))
        return replace(policy, learning=True, services=services)


def _without_credential(service: Service) -> Service:
    hosts = tuple(replace(host, credential=None) for host in service.hosts)
    return replace(service, secret=None, secret_life=None, hosts=hosts)
