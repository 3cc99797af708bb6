"""From a surveyed sandbox to one that is ready for a gateway of its own.

Certificates are made before the sandbox's files are written, secrets are read after the survey:
what may be read depends on what the sandbox can write (I11). What a policy with services takes is
imported only for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.kit import inspects
from keyhole.app.plane import DataPlane
from keyhole.app.policyfile import open_gateway_limits
from keyhole.app.prepare import Intent, Prepared, Site, label_of, prepare, survey
from keyhole.app.provision import Provision
from keyhole.model.value import dataclass
from keyhole.sandbox.helper import FAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.app.owngateway import OwnGateway, Sourced
    from keyhole.app.places import Places
    from keyhole.audit.log import AuditLog
    from keyhole.vault.stored import Ask


@dataclass(frozen=True, slots=True)
class Furnished:
    """A sandbox that only needs to be started, and its session."""

    prepared: Prepared
    session: str
    """Its id."""
    label: str
    """What it is called in a list."""
    policy: Path
    provision: Provision
    places: Places
    stand_ins: Mapping[str, tuple[str, ...]]
    """What the sandbox has in place of each service's secret, the usual one first."""
    plane: DataPlane
    """What is to serve its door, and has its CA."""
    sourced: Callable[[], Sourced]
    """Where its policy and secrets come from, for what follows them."""

    @property
    def shared(self) -> bool:
        """Whether a gateway that serves others has it."""
        return False

    @property
    def simple(self) -> bool:
        """Whether its helper may be let go on before the data plane is even loaded."""
        return self.provision.roots is None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the person should know, once."""
        return (*self.prepared.notices, *self.provision.notes)

    def post(
        self,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> OwnGateway:
        """A gateway for it; `log` is open where the helper was let go on ahead, and `warn` is for
        what a quiet person must read, too."""
        from keyhole.app.owngateway import OwnGateway, Tenancy

        tenancy = Tenancy(
            self.session, self.label, self.policy, self.provision, self.places, self.sourced
        )
        return OwnGateway(self.plane, tenancy, report, log, warn)


def furnish(
    intent: Intent, session: str, ask: Ask | None = None, plane: DataPlane | None = None
) -> Furnished:
    """Survey, read the secrets, have the certificates made, and prepare the sandbox with them.

    `ask` asks for the store's passphrase; `plane` is a data plane that was started ahead. Raises
    Refused, Missing, Unavailable or SetupFailed.
    """
    plane = plane or DataPlane(intent.env)
    try:
        places, inspected = intent.places, inspects(intent.joined.policy)
        plane.confine(places.audit, places.quarantine, inspects=inspected)
        site = survey(intent).begun(session)
        try:
            return _furnish(intent, site, session, ask, plane)
        except BaseException:
            site.close()
            raise
    except BaseException:
        plane.close()
        raise


def _furnish(
    intent: Intent, site: Site, session: str, ask: Ask | None, plane: DataPlane
) -> Furnished:
    policy, dossier, places = intent.joined.policy, intent.dossier, intent.places
    limits, fault = open_gateway_limits(places), intent.env.get(FAULT, "")
    known = session, label_of(intent), dossier.file.path
    if not inspects(policy):
        provision = Provision(dossier.digest, policy, None, {})
        plane.open(session, provision, {}, limits, fault)
        prepared = prepare(intent, site)
        return Furnished(
            prepared, *known, provision, places, {}, plane, lambda: _read(intent, site, ask)
        )
    from keyhole.app.roots import Vouched

    sourced = _read(intent, site, ask)
    provision = sourced.stock.provision
    stand_ins = site.stand_ins.texts()
    authority = plane.open(session, provision, stand_ins, limits, fault)
    vouched = Vouched(authority, provision.roots) if provision.roots else None
    prepared = prepare(intent, site, vouched)
    return Furnished(prepared, *known, provision, places, stand_ins, plane, lambda: sourced)


def _read(intent: Intent, site: Site, ask: Ask | None) -> Sourced:
    from pathlib import Path

    from keyhole.app.catalogue import FileCatalogue
    from keyhole.app.owngateway import Sourced
    from keyhole.app.provider import Provider, Wanted

    writable = tuple(map(Path, site.plan.writable))
    provider = Provider(intent.places, intent.env, FileCatalogue(), ask)
    wanted = Wanted(intent.dossier.file.path, intent.env.get("PATH", ""), writable)
    return Sourced(provider, wanted, provider.stock(intent.dossier, intent.joined, writable))
