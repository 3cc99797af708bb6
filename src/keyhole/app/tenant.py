"""A session that is to have a door: who it is, what it stands on, whom its sandbox believes.

Made by `keyhole run` for its own gateway, or by a gateway that was asked for one. The key of its CA
is in here and nowhere else. It imports little: a policy without services needs no certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.provision import Provision
    from keyhole.app.sessionca import Trust
    from keyhole.gateway.pushes import Judge
    from keyhole.gateway.session import Interception
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Tenant:
    """One session, with or without something to inspect."""

    id: str
    provision: Provision
    trust: Trust | None = None
    """None: nothing is inspected, and its sandbox has no certificate of ours."""
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What its sandbox has in place of each service's secret, the usual one first."""

    def with_provision(self, provision: Provision) -> Tenant:
        """The same under another policy, and by its roots."""
        trust = self.trust
        if trust is not None and provision.roots is not None:
            trust = replace(trust, roots=provision.roots)
        return replace(self, provision=provision, trust=trust)

    def with_secret(self, ref: SecretRef, secret: Secret, hidden: tuple[Secret, ...]) -> Tenant:
        """The same with another secret, for the services that name it."""
        before, services = self.provision, self.provision.services_of(ref)
        provision = replace(
            before,
            secrets=dict(before.secrets) | dict.fromkeys(services, secret),
            hidden=dict(before.hidden) | dict.fromkeys(services, hidden),
        )
        return replace(self, provision=provision)

    def interception(
        self, book: Rulebook, judge: Judge | None, quarantine: Path | None
    ) -> Interception | None:
        """What the gateway inspects with; Refused where a secret cannot be written."""
        if self.trust is None:
            return None
        from keyhole.app.interception import intercept

        secrets, hidden = self.provision.secrets, self.provision.hidden
        return intercept(book, secrets, self.stand_ins, self.trust, judge, quarantine, hidden)


def make_tenant(
    session: str, provision: Provision, stand_ins: Mapping[str, tuple[str, ...]]
) -> Tenant:
    """A tenant with a CA of its own, where its policy has something to inspect."""
    if provision.roots is None:
        return Tenant(session, provision)
    from keyhole.app.sessionca import open_trust

    trust = open_trust(provision.policy, provision.roots, session)
    return Tenant(session, provision, trust, stand_ins)
