"""From a surveyed sandbox to one that is ready for a gateway of its own.

Certificates are made before the sandbox's files are written, secrets are read after the survey:
what may be read depends on what the sandbox can write (I11). What a policy with services takes is
imported only for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.kit import inspects
from keyhole.app.policyfile import open_gateway_limits
from keyhole.app.prepare import Intent, Prepared, Site, prepare, survey
from keyhole.app.provision import Provision
from keyhole.app.tenant import Tenant, make_tenant
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.places import Places
    from keyhole.app.post import OwnGateway, Sourced
    from keyhole.audit.log import AuditLog
    from keyhole.vault.stored import Ask


@dataclass(frozen=True, slots=True)
class Furnished:
    """A sandbox that only needs to be started, and its session."""

    prepared: Prepared
    tenant: Tenant
    places: Places
    sourced: Callable[[], Sourced]
    """Where its policy and secrets come from, for whoever follows them."""

    @property
    def session(self) -> str:
        """Its id."""
        return self.tenant.id

    @property
    def simple(self) -> bool:
        """Whether its helper may be let go on before the gateway is even loaded."""
        return self.tenant.trust is None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person should know, once."""
        return (*self.prepared.notices, *self.tenant.provision.notes)

    def post(self, report: Callable[[str], None], log: AuditLog | None = None) -> OwnGateway:
        """A gateway for it; `log` is open where the helper was let go on ahead."""
        from keyhole.app.post import OwnGateway

        audit, quarantine = self.places.audit, self.places.quarantine
        limits = open_gateway_limits(self.places)
        return OwnGateway(self.tenant, audit, quarantine, report, self.sourced, limits, log)


def furnish(intent: Intent, session: str, ask: Ask | None = None) -> Furnished:
    """Survey, read the secrets, make the certificates, and prepare the sandbox with them.

    `ask` asks for the store's passphrase. Raises Refused, Missing or Unavailable.
    """
    site = survey(intent).begun(session)
    try:
        return _furnish(intent, site, session, ask)
    except BaseException:
        site.close()
        raise


def _furnish(intent: Intent, site: Site, session: str, ask: Ask | None) -> Furnished:
    policy, dossier = intent.joined.policy, intent.dossier
    if not inspects(policy):
        tenant = Tenant(session, Provision(dossier.digest, policy, None, {}))
        prepared = prepare(intent, site)
        return Furnished(prepared, tenant, intent.places, lambda: _read(intent, site, ask))
    from keyhole.app.roots import Vouched

    sourced = _read(intent, site, ask)
    tenant = make_tenant(session, sourced.stock.provision, site.stand_ins.texts())
    vouched = None
    if tenant.trust is not None:
        vouched = Vouched(tenant.trust.authority.pem, tenant.trust.roots)
    prepared = prepare(intent, site, vouched)
    return Furnished(prepared, tenant, intent.places, lambda: sourced)


def _read(intent: Intent, site: Site, ask: Ask | None) -> Sourced:
    from pathlib import Path

    from keyhole.app.catalogue import FileCatalogue
    from keyhole.app.post import Sourced
    from keyhole.app.provider import Provider, Wanted

    writable = tuple(map(Path, site.plan.writable))
    provider = Provider(intent.places, intent.env, FileCatalogue(), ask)
    wanted = Wanted(intent.dossier.file.path, intent.env.get("PATH", ""), writable)
    return Sourced(provider, wanted, provider.stock(intent.dossier, intent.joined, writable))
