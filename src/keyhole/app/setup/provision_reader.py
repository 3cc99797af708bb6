"""Reads policies, roots and secrets of this host for sessions.

Used by `keyhole run` for a gateway of its own, and by the keeper for a long-lived one.
`source_watcher.py` needs the vault, too; a gateway gets the provision alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from keyhole.app.setup.client_setup import inspects_tls
from keyhole.app.setup.endpoint_access import endpoint_access
from keyhole.app.setup.period_spending import read_spending
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy, find_changed
from keyhole.app.setup.policy_file import open_policy, with_presets
from keyhole.app.setup.provision import Provision
from keyhole.app.setup.root_reader import open_roots
from keyhole.app.setup.spending_ledger import SpendingLedger
from keyhole.app.setup.tool_store import ToolStore
from keyhole.model.errors import Refused
from keyhole.model.secret import SecretScheme
from keyhole.model.text import visible
from keyhole.policy.github_app import app_grant
from keyhole.policy.seen_tools import with_accepted_tools
from keyhole.sandbox.files.trusted_programs import refuse_writable_programs
from keyhole.vault.login_source import RenewalFailures
from keyhole.vault.source_paths import trusted_paths
from keyhole.vault.vault import Vault, VaultContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_file import PolicyWithPresets
    from keyhole.model.secret import SecretRef
    from keyhole.policy.github_app import AppGrant
    from keyhole.policy.learning_mode import LearningMode
    from keyhole.policy.policy import Policy
    from keyhole.vault.interface import FetchedSecret, SecretUnavailable
    from keyhole.vault.store_source import PassphrasePrompt

NOT_ACCEPTED = "it is not accepted; `keyhole policy trust` asks for that"


class SourcedProvision(Struct, frozen=True):
    """A provision, and the sources that it was read from."""

    provision: Provision
    examined: ExaminedPolicy
    vault: Vault
    given: Mapping[SecretRef, FetchedSecret]
    missing: Mapping[SecretRef, str] = field(default_factory=dict)
    """The secrets that could not be read, each with the reason."""


class ProvisionRequest(Struct, frozen=True):
    """The session whose policy and secrets are to be read."""

    policy: Path
    search_path: str
    """The search path for programs that the policy gives without a directory."""
    writable: tuple[Path, ...]
    """Trees that its sandbox can write."""
    learning: LearningMode | None = None
    """What a person agreed to, for a learning run."""


class ProvisionReader(Struct, frozen=True):
    """Reads sessions' policies and secrets, as one user of this host."""

    places: HostPaths
    env: Mapping[str, str]
    catalogue: FileCatalogue
    ask: PassphrasePrompt | None
    """Asks for the store's passphrase."""
    failures: RenewalFailures = field(default_factory=RenewalFailures)
    """Failures to renew logins, so that many sessions do not each ask a dead endpoint."""

    def accepted(self, policy: Path) -> Path:
        """The file that changes when a policy is accepted."""
        return AcceptanceStore(self.places.trust).file(policy)

    def provide(self, wanted: ProvisionRequest) -> SourcedProvision:
        """Read everything again. A service whose secret cannot be read is closed.

        Raises Refused, ResourceUnusable or PolicyFaults.
        """
        path, store = wanted.policy, AcceptanceStore(self.places.trust)
        accepted = store.find(path)
        if accepted is None and os.path.lexists(path):
            # Attack: a gateway that was taken over has other files read as policies, to learn their
            # content from the error messages (I1).
            raise Refused(f"{path}: {NOT_ACCEPTED}")
        _stay(path, os.path.realpath(path))
        file = open_policy(path, self.places, self.catalogue)
        # Attack: a link to another policy, which was accepted for a sandbox of its own.
        _stay(path, str(file.path))
        examined = examine_policy(file, self.places.home, wanted.search_path)
        # The bytes that were accepted are the bytes that were parsed (I11).
        if accepted is None or accepted.digest != examined.digest:
            raise Refused(f"{file.path}: {NOT_ACCEPTED}")
        joined = with_presets(file, dict(self.env), self.places)
        if wanted.learning is not None:
            joined = replace(joined, policy=wanted.learning.apply(joined.policy))
        settings = trusted_paths(self.env) if any(s.secret for s in joined.policy.services) else ()
        referred = tuple(r.path for r in examined.referred if r.path.is_absolute())
        refuse_writable_programs((*referred, *settings), wanted.writable)
        return self.stock(examined, joined, wanted.writable)

    def stock(
        self, examined: ExaminedPolicy, joined: PolicyWithPresets, writable: tuple[Path, ...]
    ) -> SourcedProvision:
        """The same for a policy that was read and judged. Raises Refused or SecretUnavailable."""
        known = ToolStore(self.places.tools).read(examined.file.path)
        policy = with_accepted_tools(joined.policy, known)
        roots = open_roots(policy, examined) if inspects_tls(policy) else None
        wanted = {s.name: s.secret for s in policy.services if s.secret is not None}
        vault = Vault(
            VaultContext(
                home=self.places.home,
                directory=examined.file.directory,
                store=self.places.store,
                env=self.env,
                programs=_programs(policy, examined),
                lives={
                    s.secret: s.secret_life for s in policy.services if s.secret_life and s.secret
                },
                writable=writable,
                ask=self.ask,
                reach=endpoint_access(policy, examined),
                failures=self.failures,
                audiences=_audiences(policy),
                apps=_apps(policy),
                changed=lambda ref: find_changed(examined, self.places.home, ref),
            )
        )
        fetched = vault.fetch_each(wanted.values())
        given, missing = fetched.given, fetched.missing
        notes = [one.warning for one in given.values() if one.warning]
        notes += [_closing(wanted, error) for error in missing.values()]
        there = {name: given[ref] for name, ref in wanted.items() if ref in given}
        provision = Provision(
            digest=examined.digest,
            policy=policy,
            roots=roots,
            secrets={name: one.secret for name, one in there.items()},
            hidden={name: one.hidden for name, one in there.items()},
            notes=tuple(dict.fromkeys(notes)),
            closed=tuple(name for name, ref in wanted.items() if ref in missing),
            spending=read_spending(policy, SpendingLedger(self.places.spending)),
        )
        reasons = {ref: str(error) for ref, error in missing.items()}
        return SourcedProvision(provision, examined, vault, given, reasons)


def _closing(wanted: Mapping[str, SecretRef], error: SecretUnavailable) -> str:
    """The line about a missing secret: which services are closed, why, and what to type."""
    names = ", ".join(f"services.{name}" for name, ref in wanted.items() if ref == error.ref)
    return f"{names}: closed, as its secret cannot be read. {error}"


def _stay(path: Path, found: str) -> None:
    if found != str(path):
        raise Refused(f"{visible(str(path))} leads elsewhere: what was accepted is another file")


def _audiences(policy: Policy) -> dict[SecretRef, frozenset[str]]:
    """The host patterns that each secret would be sent to."""
    found: dict[SecretRef, frozenset[str]] = {}
    for service in policy.services:
        if service.secret is not None:
            others = found.get(service.secret, frozenset())
            found[service.secret] = others.union(service.credential_hosts)
    return found


def _apps(policy: Policy) -> dict[SecretRef, AppGrant]:
    """What the token of each GitHub App is for."""
    return {
        service.secret: app_grant(service)
        for service in policy.services
        if service.secret is not None and service.secret.source is SecretScheme.GITHUB_APP
    }


def _programs(policy: Policy, examined: ExaminedPolicy) -> dict[SecretRef, Path]:
    """The program of each `exec:` reference that was accepted with the policy."""
    paths = {referred.role: referred.path for referred in examined.referred}
    return {
        service.secret: paths[f"{service.rule}.secret"]
        for service in policy.services
        if service.secret is not None and f"{service.rule}.secret" in paths
    }
