"""Provides for sessions: reads policies, roots and secrets of this host.

Used by `keyhole run` for a gateway of its own, and by the keeper for one that lives on. Whoever
follows the sources afterwards (`following.py`) needs the vault, too; a gateway gets the provision
alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.kit import inspects
from keyhole.app.policyfile import open_policy, with_presets
from keyhole.app.provision import Provision
from keyhole.app.roots import open_roots
from keyhole.app.trust import TrustStore, examine, find_changed
from keyhole.model.text import visible
from keyhole.model.value import dataclass, field
from keyhole.policy.rulebook import Rulebook
from keyhole.sandbox.files.executables import refuse_inside
from keyhole.sandbox.files.fileplan import Refused
from keyhole.vault.command import trusted_paths
from keyhole.vault.logins import Failures
from keyhole.vault.tokenendpoint import Reach
from keyhole.vault.vault import Ground, Vault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.catalogue import FileCatalogue
    from keyhole.app.places import Places
    from keyhole.app.policyfile import Joined
    from keyhole.app.trust import Dossier
    from keyhole.model.secret import SecretRef
    from keyhole.policy.policy import Policy
    from keyhole.vault.interface import Given
    from keyhole.vault.stored import Ask

NOT_ACCEPTED = "it is not accepted; `keyhole policy trust` asks for that"


@dataclass(frozen=True, slots=True)
class Stock:
    """A provision with what it came from."""

    provision: Provision
    dossier: Dossier
    vault: Vault
    given: Mapping[SecretRef, Given]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which session is to be provided for."""

    policy: Path
    search_path: str
    """Where programs that the policy names by name are looked for."""
    writable: tuple[Path, ...]
    """Trees that its sandbox can write."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Reads sessions' policies and secrets, as one user of this host."""

    places: Places
    env: Mapping[str, str]
    catalogue: FileCatalogue
    ask: Ask | None
    """Asks for the store's passphrase."""
    failures: Failures = field(default_factory=Failures)
    """Of logins that could not be renewed: many sessions do not ask a dead endpoint each."""

    def accepted(self, policy: Path) -> Path:
        """The file that changes when a policy is accepted."""
        return TrustStore(self.places.trust).file(policy)

    def provide(self, wanted: Wanted) -> Stock:
        """Read all anew. Raises Refused, Unreadable, PolicyFaults or Unavailable."""
        path, store = wanted.policy, TrustStore(self.places.trust)
        accepted = store.find(path)
        if accepted is None and os.path.lexists(path):
            # Attack: a gateway that was taken over has other files read as policies, for what is
            # complained of in them (I1).
            raise Refused(f"{path}: {NOT_ACCEPTED}")
        _stay(path, os.path.realpath(path))
        file = open_policy(path, self.places, self.catalogue)
        # Attack: a link to another policy, which was accepted for a sandbox of its own.
        _stay(path, str(file.path))
        dossier = examine(file, self.places.home, wanted.search_path)
        # The bytes that were accepted are the bytes that were parsed (I11).
        if accepted is None or accepted.digest != dossier.digest:
            raise Refused(f"{file.path}: {NOT_ACCEPTED}")
        joined = with_presets(file, dict(self.env), self.places.home)
        settings = trusted_paths(self.env) if any(s.secret for s in joined.policy.services) else ()
        referred = tuple(r.path for r in dossier.referred if r.path.is_absolute())
        refuse_inside((*referred, *settings), wanted.writable)
        return self.stock(dossier, joined, wanted.writable)

    def stock(self, dossier: Dossier, joined: Joined, writable: tuple[Path, ...]) -> Stock:
        """The same for a policy that was read and judged. Raises Refused or Unavailable."""
        policy = joined.policy
        roots = open_roots(policy, dossier) if inspects(policy) else None
        wanted = {s.name: s.secret for s in policy.services if s.secret is not None}
        vault = Vault(
            Ground(
                home=self.places.home,
                directory=dossier.file.directory,
                store=self.places.store,
                env=self.env,
                programs=_programs(policy, dossier),
                lives={
                    s.secret: s.secret_life for s in policy.services if s.secret_life and s.secret
                },
                writable=writable,
                ask=self.ask,
                reach=_reach(policy, dossier),
                failures=self.failures,
                changed=lambda ref: find_changed(dossier, self.places.home, ref),
            )
        )
        given = vault.fetch_all(wanted.values())
        notes = tuple(dict.fromkeys(one.warning for one in given.values() if one.warning))
        secrets = {name: given[ref].secret for name, ref in wanted.items()}
        hidden = {name: given[ref].hidden for name, ref in wanted.items()}
        provision = Provision(dossier.digest, policy, roots, secrets, hidden, notes)
        return Stock(provision, dossier, vault, given)


def _stay(path: Path, found: str) -> None:
    if found != str(path):
        raise Refused(f"{visible(str(path))} leads elsewhere: what was accepted is another file")


def _reach(policy: Policy, dossier: Dossier) -> Reach:
    """How logins are renewed: by this policy's roots, addresses and proxy, and by no sandbox."""
    return Reach(
        book=lambda: Rulebook(policy), context=lambda: open_roots(policy, dossier).context()
    )


def _programs(policy: Policy, dossier: Dossier) -> dict[SecretRef, Path]:
    """For each `exec:` reference the program that was accepted with the policy."""
    paths = {referred.role: referred.path for referred in dossier.referred}
    return {
        service.secret: paths[f"{service.rule}.secret"]
        for service in policy.services
        if service.secret is not None and f"{service.rule}.secret" in paths
    }
