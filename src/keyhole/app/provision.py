"""What a session stands on: its policy as accepted, roots, and the secrets that it names.

Made of values, so that it can be handed from the process that may read files and run programs
(`provider.py`) to the gateway, which may not.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, field
from keyhole.policy.disclose import disclose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.roots import Roots
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Provision:
    """All that a gateway needs of one session."""

    digest: str
    """Of what a person accepted."""
    policy: Policy
    roots: Roots | None
    """None where the policy has nothing to inspect."""
    secrets: Mapping[str, Secret]
    """By service."""
    hidden: Mapping[str, tuple[Secret, ...]] = field(default_factory=dict)
    """By service: what belongs to its secret, is never sent, and must not come back (I7)."""
    notes: tuple[str, ...] = ()
    """What the person should know of the secrets."""

    @property
    def granted(self) -> str:
        """A digest of what the sandbox may do, presets included."""
        return granted(self.policy)

    def services_of(self, ref: SecretRef) -> tuple[str, ...]:
        """Those that name this secret."""
        return tuple(s.name for s in self.policy.services if s.secret == ref)


def granted(policy: Policy) -> str:
    """A digest by which two readers of one file see whether they read the same out of it: what a
    host's package managers say depends on the environment of who asks them."""
    return "sha256:" + hashlib.sha256(disclose(policy).encode()).hexdigest()
