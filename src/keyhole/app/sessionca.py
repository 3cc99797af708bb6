"""Whom a session trusts: a CA of its own, and roots.

Made when a session is, before its sandbox's files are written; it imports what that takes and no
more, since a run waits for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from keyhole.certs.authority import CA_LIFETIME, Authority
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.app.roots import Roots
    from keyhole.policy.policy import Policy

SLACK = timedelta(hours=1)
"""How much longer than a session its CA lives."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom a session trusts: its own CA, this host's roots, and what the policy adds to them."""

    authority: Authority
    roots: Roots


def open_trust(policy: Policy, roots: Roots, session: str) -> Trust:
    """Make a session's CA."""
    life = max(CA_LIFETIME, timedelta(seconds=policy.limits.ttl) + SLACK)
    return Trust(Authority.create(session, life), roots)
