"""The trust of a session: a CA of its own, and roots.

Made with the session, before its sandbox's files are written; it imports little, since a run waits
for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.certs.authority import CA_LIFETIME, Authority
from keyhole.certs.kept_authority import open_kept_authority

if TYPE_CHECKING:
    from keyhole.app.setup.trusted_roots import TrustedRoots
    from keyhole.policy.policy import Policy

SLACK = timedelta(hours=1)
"""How much longer than its session a CA is valid."""


class SessionTrust(Struct, frozen=True):
    """The trust of a session: its own CA, this host's roots, and the roots that the policy adds."""

    authority: Authority
    roots: TrustedRoots


def open_session_trust(
    policy: Policy, roots: TrustedRoots, session: str, kept: str = ""
) -> SessionTrust:
    """Make a session's CA, or take the one that was kept for its sandbox. Raises Unparsable."""
    if kept:
        return SessionTrust(open_kept_authority(kept.encode("ascii")), roots)
    return SessionTrust(Authority.create(session, ca_lifetime(policy)), roots)


def ca_lifetime(policy: Policy) -> timedelta:
    """How long the CA of a session under this policy must be valid."""
    return max(CA_LIFETIME, timedelta(seconds=policy.limits.ttl) + SLACK)
