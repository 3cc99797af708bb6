"""The provision of a session: its accepted policy, its roots, and the secrets that it names.

It consists of values, so that the process that may read files and run programs
(`provision_reader.py`) can hand it to the gateway, which may not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.model.secret import Secret
from keyhole.policy.budget import GatewayLimits, PeriodSpending
from keyhole.policy.disclose import disclose
from keyhole.policy.policy import Policy

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef


class Provision(Struct, frozen=True):
    """Everything that a gateway needs for one session."""

    digest: str
    """The digest that a person accepted."""
    policy: Policy
    roots: TrustedRoots | None
    """None if the policy has nothing to inspect."""
    secrets: Mapping[str, Secret]
    """By service."""
    hidden: Mapping[str, tuple[Secret, ...]] = field(default_factory=dict)
    """By service: values of the same login that are never sent and must not come back (I7)."""
    notes: tuple[str, ...] = ()
    """Notes about the secrets for the person."""
    closed: tuple[str, ...] = ()
    """Services whose secret could not be read: requests to them are refused."""
    spending: Mapping[str, PeriodSpending] = field(default_factory=dict)
    """By service with a budget for a day or month: what was spent before the session."""

    @property
    def granted(self) -> str:
        """A digest of what the sandbox may do, presets included."""
        return grants_digest(self.policy)

    def services_of(self, ref: SecretRef) -> tuple[str, ...]:
        """The services that name this secret."""
        return tuple(s.name for s in self.policy.services if s.secret == ref)


class SessionOpening(Struct, frozen=True):
    """Everything that a run's data plane gets to know of its session."""

    session: str
    provision: Provision
    stand_ins: Mapping[str, tuple[str, ...]]
    """By service: the placeholders that clients have instead of its secret."""
    limits: GatewayLimits
    fault: str = ""
    """A fault, for tests."""
    quiet: tuple[str, ...] = ()
    """Refusals that the person is not told."""
    watched: bool = False
    """Whether a person watches already, to answer questions."""


def grants_digest(policy: Policy) -> str:
    """A digest by which two readers of one policy compare their results: the hosts of presets
    depend on the reader's environment."""
    return "sha256:" + hashlib.sha256(disclose(policy).encode()).hexdigest()
