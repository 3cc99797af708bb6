"""A session that has no door yet: its identity, its provision and its trust.

Made by `keyhole run` for its own gateway, or by a gateway that was asked for one. It alone holds
the key of its CA. It imports little: a policy without services needs no certificates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.session.session_trust import SessionTrust
    from keyhole.app.setup.provision import Provision
    from keyhole.gateway.session import Interception, Judge
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.rulebook import Rulebook


class PreparedSession(Struct, frozen=True):
    """One session, with or without something to inspect."""

    id: str
    provision: Provision
    trust: SessionTrust | None = None
    """None: nothing is inspected, and the sandbox trusts no certificate of ours."""
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The placeholders of each service, the usual one first."""
    quiet: tuple[str, ...] = ()
    """Refusals that the person is not told."""

    def with_provision(self, provision: Provision) -> PreparedSession:
        """The same under another policy, and by its roots."""
        trust = self.trust
        if trust is not None and provision.roots is not None:
            trust = replace(trust, roots=provision.roots)
        return replace(self, provision=provision, trust=trust)

    def with_secret(
        self, ref: SecretRef, secret: Secret, hidden: tuple[Secret, ...]
    ) -> PreparedSession:
        """The same with another secret, for the services that name it."""
        before, services = self.provision, self.provision.services_of(ref)
        provision = replace(
            before,
            secrets=dict(before.secrets) | dict.fromkeys(services, secret),
            hidden=dict(before.hidden) | dict.fromkeys(services, hidden),
            closed=tuple(name for name in before.closed if name not in services),
        )
        return replace(self, provision=provision)

    def interception(
        self, book: Rulebook, judge: Judge | None, quarantine: Path | None
    ) -> Interception | None:
        """The values with which the gateway inspects. Raises Refused where a secret cannot be
        written."""
        if self.trust is None:
            return None
        from keyhole.app.session.interception import build_interception

        secrets, hidden = self.provision.secrets, self.provision.hidden
        made = build_interception(
            book, secrets, self.stand_ins, self.trust, judge, quarantine, hidden
        )
        return replace(made, closed=frozenset(self.provision.closed))


def prepare_session(
    session: str,
    provision: Provision,
    stand_ins: Mapping[str, tuple[str, ...]],
    quiet: tuple[str, ...] = (),
    kept: str = "",
) -> PreparedSession:
    """Prepare a session, with a CA of its own if its policy has something to inspect: the one that
    was `kept` for its sandbox, or a new one. Raises Unparsable."""
    if provision.roots is None:
        return PreparedSession(session, provision, quiet=quiet)
    from keyhole.app.session.session_trust import open_session_trust

    trust = open_session_trust(provision.policy, provision.roots, session, kept)
    return PreparedSession(session, provision, trust, stand_ins, quiet)
