"""What the gateway needs to inspect a session's services, put together from the rooms that have it.

Certificates come before the sandbox's files are planned, secrets after: what may be read depends on
what the sandbox can write (I11). Every credential is rendered before the sandbox starts, so that a
secret which cannot be written stops the run and not a request. Imported only for a policy that has
services: what it brings takes a while to load.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from keyhole.app.prepare import Intent, Prepared, prepare
from keyhole.certs.authority import CA_LIFETIME, Authority
from keyhole.certs.roots import UnusableRoots, find_bundle, merged, system_bundle, upstream_context
from keyhole.gateway.minting import Minting
from keyhole.gateway.session import Interception
from keyhole.inject.credential import Credential, Unusable, make_credential
from keyhole.inject.injection import GoogleInjection
from keyhole.inject.serviceaccount import read_account
from keyhole.model.errors import Unparsable
from keyhole.model.value import dataclass, replace
from keyhole.policy.rulebook import Rulebook
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.jail import Jail
from keyhole.vault.tokenendpoint import Reach
from keyhole.vault.vault import Ground, Vault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.trust import Dossier
    from keyhole.gateway.pushes import Judge
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.policy import Policy, ServiceHost
    from keyhole.policy.rulebook import HostRules
    from keyhole.vault.stored import Ask

NO_PLACEHOLDER = ("keyhole-found-on-this-host",)
"""What replaces a preset's credential in answers: no client has a placeholder of it."""

SLACK = timedelta(hours=1)
"""How much longer than a session its CA lives."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom a session trusts: its own CA, this host's roots, and what the policy adds to them."""

    authority: Authority
    system: bytes
    added: bytes | None
    found: Path | None
    """Where the host's roots were read."""

    @property
    def bundle(self) -> bytes:
        """For the sandbox: the host's roots, those that the policy adds, and the session's CA."""
        return merged(self.system, self.added or b"", self.authority.pem)


def open_trust(policy: Policy, dossier: Dossier, session: str) -> Trust:
    """Make a session's CA and read the roots; raises Refused."""
    life = max(CA_LIFETIME, timedelta(seconds=policy.limits.ttl) + SLACK)
    added = None
    if policy.upstream.ca_file:
        # The bytes that were accepted are the bytes that are used.
        added = next(r.data for r in dossier.referred if r.role == "upstream.ca_file")
        if added is None:
            raise Refused(f"upstream.ca_file {policy.upstream.ca_file} cannot be read")
    try:
        system = system_bundle()
        upstream_context(added, system)
    except UnusableRoots as error:
        raise Refused(f"the certificates that origins are verified by: {error}") from None
    return Trust(Authority.create(session, life), system, added, find_bundle())


def intercept(
    book: Rulebook,
    secrets: Mapping[str, Secret],
    stand_ins: Mapping[str, tuple[str, ...]],
    trust: Trust,
    judge: Judge | None = None,
    quarantine: Path | None = None,
    hidden: Mapping[str, tuple[Secret, ...]] = MappingProxyType({}),
) -> Interception:
    """Render each service's secret for each of its hosts; raises Refused.

    `stand_ins` are the placeholders of each service, the usual one first. Pushes wait in
    `quarantine` while `judge` looks into them. What is `hidden` belongs to a service's secret and
    is searched for in answers alone.
    """
    rendered: dict[tuple[str, tuple[HostPattern, ...], bool], Credential | Minting] = {}
    for service in book.policy.services:
        for host in service.hosts:
            secret = host.credential or secrets.get(service.name)
            if secret is None or not host.inject:
                continue
            placeholder = "\n".join(stand_ins.get(service.name, NO_PLACEHOLDER))
            for git, ways in ((False, host.inject), (True, host.git_inject)):
                try:
                    made = _render(
                        book,
                        replace(host, inject=ways),
                        secret,
                        placeholder,
                        hidden.get(service.name, ()),
                    )
                except (Unusable, Unparsable) as error:
                    raise Refused(f"the secret of {service.rule} cannot be used: {error}") from None
                rendered[service.name, host.patterns, git] = made

    def credential_of(rules: HostRules, *, git: bool = False) -> Credential | Minting | None:
        return rendered.get((rules.service.name, rules.host.patterns, git))

    return Interception(
        trust.authority.leaf,
        upstream_context(trust.added, trust.system),
        credential_of,
        {name: tuple(text.encode() for text in texts) for name, texts in stand_ins.items()},
        judge,
        quarantine,
    )


def _render(
    book: Rulebook,
    host: ServiceHost,
    secret: Secret,
    placeholder: str,
    hidden: tuple[Secret, ...],
) -> Credential | Minting:
    for way in host.inject:
        if isinstance(way, GoogleInjection):
            return Minting(read_account(secret, way), host, placeholder, book)
    return make_credential(secret, host.inject, host.merge, placeholder, hidden)


@dataclass(frozen=True, slots=True)
class Services:
    """A run's services with their secrets at hand, and what the person should know of those."""

    prepared: Prepared
    trust: Trust
    secrets: Mapping[str, Secret]
    warnings: tuple[str, ...]
    quarantine: Path
    hidden: Mapping[str, tuple[Secret, ...]] = MappingProxyType({})

    def intercept(self, book: Rulebook) -> Interception:
        """What the gateway needs."""
        judge = None
        if any(
            service.git and (service.git.push or service.git.tags)
            for service in book.policy.services
        ):
            self.quarantine.mkdir(mode=0o700, parents=True, exist_ok=True)
            judge = Jail()
        stand_ins = self.prepared.kit.stands_for()
        return intercept(
            book, self.secrets, stand_ins, self.trust, judge, self.quarantine, self.hidden
        )


def prepare_with_services(intent: Intent, session: str, ask: Ask | None) -> Services:
    """Make the certificates, prepare the sandbox with them, then fetch the secrets that it names.

    `ask` asks for the store's passphrase. Raises Refused, Missing or Unavailable.
    """
    policy, dossier, places = intent.joined.policy, intent.dossier, intent.places
    trust = open_trust(policy, dossier, session)
    prepared = prepare(intent, trust)
    wanted = {s.name: s.secret for s in policy.services if s.secret is not None}
    ground = Ground(
        home=places.home,
        directory=dossier.file.directory,
        store=places.store,
        env=intent.env,
        programs=_programs(policy, dossier),
        writable=tuple(map(Path, prepared.plan.writable)),
        ask=ask,
        reach=login_reach(policy, trust),
    )
    given = Vault(ground).fetch_all(wanted.values())
    warnings = tuple(dict.fromkeys(one.warning for one in given.values() if one.warning))
    secrets = {name: given[ref].secret for name, ref in wanted.items()}
    hidden = {name: given[ref].hidden for name, ref in wanted.items()}
    return Services(prepared, trust, secrets, warnings, places.quarantine, hidden)


def login_reach(policy: Policy, trust: Trust) -> Reach:
    """How logins are renewed: by this policy's roots, addresses and proxy, and by no sandbox."""
    return Reach(
        book=lambda: Rulebook(policy),
        context=lambda: upstream_context(trust.added, trust.system),
    )


def _programs(policy: Policy, dossier: Dossier) -> dict[SecretRef, Path]:
    """For each `exec:` reference the program that was accepted with the policy."""
    paths = {referred.role: referred.path for referred in dossier.referred}
    return {
        service.secret: paths[f"{service.rule}.secret"]
        for service in policy.services
        if service.secret is not None and f"{service.rule}.secret" in paths
    }
