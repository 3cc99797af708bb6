"""Prepares a surveyed sandbox for a gateway of its own.

Certificates are made before the sandbox's files are written, secrets are read after the survey: a
source must not lie where the sandbox can write (I11). Modules that only services need are imported
only for a policy with services.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.processes.messages import packed
from keyhole.app.run.data_plane_process import RunDataPlaneProcess
from keyhole.app.run.port_claims import make_register
from keyhole.app.run.published_listeners import PublishedListeners
from keyhole.app.run.source_follower import SessionSources
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.client_setup import inspects_tls
from keyhole.app.setup.launch_preparation import (
    PreparedLaunch,
    RunRequest,
    SurveyedSandbox,
    label_of,
    prepare_launch,
    survey_sandbox,
)
from keyhole.app.setup.policy_file import open_gateway_limits
from keyhole.app.setup.provision import Provision, SessionOpening
from keyhole.app.setup.trusted_roots import SandboxTrust
from keyhole.control.watchers import is_watched
from keyhole.sandbox.bwrap.helper import FAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.run.own_gateway import OwnGateway
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.audit.log import AuditLog
    from keyhole.vault.store_source import PassphrasePrompt


class OwnGatewayRun(Struct, frozen=True):
    """A prepared sandbox, and its session."""

    prepared: PreparedLaunch
    session: str
    """The session's id."""
    label: str
    """The session's name in a list."""
    policy: Path
    provision: Provision
    places: HostPaths
    stand_ins: Mapping[str, tuple[str, ...]]
    """The placeholders of each service, the usual one first."""
    plane: RunDataPlaneProcess
    """The process that serves its door and has its CA."""
    sources: Callable[[], SessionSources]
    """The sources of its policy and secrets, for the watcher."""
    published: PublishedListeners | None = None
    """The ports that it publishes."""

    @property
    def shared(self) -> bool:
        """Whether a gateway that serves other runs too has it."""
        return False

    @property
    def simple(self) -> bool:
        """Whether its helper may go on before the data plane is loaded."""
        return self.provision.roots is None

    @property
    def addresses(self) -> tuple[str, ...]:
        """A line with the address of each port that it publishes."""
        return tuple(
            f"port {each.inner} of the sandbox is http://{self.session}.localhost:{each.outer}/"
            " in a browser of this host"
            for each in (self.published.ports if self.published else ())
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about secrets."""
        return self.provision.notes

    def post(
        self,
        report: Callable[[str], None],
        log: AuditLog | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> OwnGateway:
        """A gateway for it. `log` is open if the helper was released early; `warn` shows messages
        even with `--quiet`."""
        from keyhole.app.run.own_gateway import OwnGateway, OwnGatewaySession
        from keyhole.app.run.run_endpoint import RunEndpoint

        own_session = OwnGatewaySession(
            self.session,
            self.label,
            self.policy,
            self.provision,
            self.places,
            self.sources,
            self.published,
        )
        return OwnGateway(self.plane, own_session, RunEndpoint.claim, report, log, warn)


def prepare_own_gateway(
    intent: RunRequest,
    session: str,
    ask: PassphrasePrompt | None = None,
    plane: RunDataPlaneProcess | None = None,
) -> OwnGatewayRun:
    """Survey, read the secrets, have the certificates made, and prepare the sandbox with them.

    `ask` asks for the store's passphrase; `plane` is a data plane that was started early. Raises
    Refused, ResourceUnusable, SecretUnavailable or SetupFailed.
    """
    plane = plane or RunDataPlaneProcess(intent.env)
    try:
        places, inspected = intent.places, inspects_tls(intent.joined.policy)
        if intent.joined.policy.sandbox.host_ports:
            make_register(places.ports)  # the data plane can read only what exists by then
        plane.confine(places, inspects=inspected)
        site = survey_sandbox(intent).begun(session)
        try:
            run = _prepare_own_gateway(intent, site, session, ask, plane)
            return _with_ports(run)
        except BaseException:
            site.close()
            raise
    except BaseException:
        plane.close()
        raise


def _prepare_own_gateway(
    intent: RunRequest,
    site: SurveyedSandbox,
    session: str,
    ask: PassphrasePrompt | None,
    plane: RunDataPlaneProcess,
) -> OwnGatewayRun:
    policy, examined, places = intent.joined.policy, intent.examined, intent.places
    limits, fault = open_gateway_limits(places), intent.env.get(FAULT, "")
    known = session, label_of(intent), examined.file.path
    quiet = intent.agent.quiet if intent.agent else ()
    watched = is_watched(places.runtime)
    if not inspects_tls(policy):
        provision = Provision(examined.digest, policy, None, {})
        opening = SessionOpening(session, provision, {}, limits, fault, quiet, watched)
        plane.open(bytes(packed(opening)), inspects=False)
        prepared = prepare_launch(intent, site)
        return OwnGatewayRun(
            prepared, *known, provision, places, {}, plane, lambda: _read(intent, site, ask)
        )
    sources = _read(intent, site, ask)
    provision = sources.stock.provision
    stand_ins = site.stand_ins.texts()
    opening = SessionOpening(session, provision, stand_ins, limits, fault, quiet, watched)
    authority = plane.open(bytes(packed(opening)), inspects=provision.roots is not None)
    sandbox_trust = SandboxTrust(authority, provision.roots) if provision.roots else None
    prepared = prepare_launch(intent, site, sandbox_trust)
    return OwnGatewayRun(prepared, *known, provision, places, stand_ins, plane, lambda: sources)


def _with_ports(run: OwnGatewayRun) -> OwnGatewayRun:
    wanted = run.provision.policy.sandbox.publish
    if not wanted:
        return run
    return replace(run, published=PublishedListeners.open(wanted, run.places.ports))


def _read(
    intent: RunRequest, site: SurveyedSandbox, ask: PassphrasePrompt | None
) -> SessionSources:
    from keyhole.app.setup.provision_reader import ProvisionReader, ProvisionRequest

    writable = tuple(map(Path, site.plan.writable))
    provider = ProvisionReader(intent.places, intent.env, FileCatalogue(), ask)
    search = intent.env.get("PATH", "")
    wanted = ProvisionRequest(intent.examined.file.path, search, writable, intent.learning)
    return SessionSources(
        provider, wanted, provider.stock(intent.examined, intent.joined, writable)
    )
