"""The vault: every source behind one `fetch`, and all secrets of a session fetched at once.

Made by `app` for one policy; it reads neither argv nor environment. It caches only the output of
commands, for the time that they declare. The caller holds the secrets, and only requested ones are
read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from keyhole.model.redacted import redacted_repr
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.system.child import Children
from keyhole.vault.cluster_source import ClusterSource
from keyhole.vault.command_source import CommandSource
from keyhole.vault.custody import admit_reading
from keyhole.vault.file_source import FileSource
from keyhole.vault.github_app_source import GitHubAppSource
from keyhole.vault.interface import FetchedSecret, SecretUnavailable
from keyhole.vault.keyrings import Keyrings, KeyringSource
from keyhole.vault.login_source import LoginSource, RenewalFailures
from keyhole.vault.store import Store
from keyhole.vault.store_source import PassphrasePrompt, StoreSource
from keyhole.vault.variable_source import VariableSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from keyhole.policy.github_app import AppGrant
    from keyhole.vault.interface import SecretSource
    from keyhole.vault.login_provider import EndpointAccess


class VaultContext(Struct, frozen=True):
    """The values that the sources need."""

    home: Path
    directory: Path
    """The policy's directory, to which paths are relative."""
    store: Path
    env: Mapping[str, str] = field(default_factory=dict)  # it may hold tokens
    programs: Mapping[SecretRef, Path] = field(default_factory=dict)
    """The accepted program of each `exec:` reference."""
    lives: Mapping[SecretRef, float] = field(default_factory=dict)
    """The lifetime in seconds of each `exec:` reference, where the command does not print one."""
    writable: tuple[Path, ...] = ()
    """Trees that the sandbox can write."""
    ask: PassphrasePrompt | None = None
    """Asks for the store's passphrase; None without a terminal."""
    keyrings: Keyrings = field(default_factory=Keyrings)
    reach: EndpointAccess | None = None
    """How a login is renewed; None: it is used without renewal, while it lasts."""
    failures: RenewalFailures = field(default_factory=RenewalFailures)
    """Recent failures of renewals; one for all vaults of a process."""
    audiences: Mapping[SecretRef, frozenset[str]] = field(default_factory=dict)
    """The host patterns that each secret would be sent to."""
    apps: Mapping[SecretRef, AppGrant] = field(default_factory=dict)
    """What the token of each GitHub App is for."""
    changed: Callable[[SecretRef], Path | None] = lambda _: None
    """Returns a file of an `exec:` command that has changed since it was accepted."""

    __repr__ = redacted_repr("env")


class Vault:
    """Fetches secrets by reference. Make one for each session's policy."""

    def __init__(self, ground: VaultContext) -> None:
        self._children = Children()
        self._stored = StoreSource(Store(ground.store, ground.keyrings), ground.ask)
        self._logins = LoginSource(
            ground.home,
            ground.env,
            ground.writable,
            ground.reach,
            ground.failures,
            ground.audiences,
        )
        self._sources: dict[SecretScheme, SecretSource] = {
            SecretScheme.FILE: FileSource(
                ground.directory, ground.home, ground.writable, ground.env
            ),
            SecretScheme.EXEC: CommandSource(
                ground.programs,
                ground.directory,
                ground.home,
                ground.env,
                self._children,
                ground.lives,
                ground.changed,
            ),
            SecretScheme.UNSAFE_ENV: VariableSource(dict(ground.env)),
            SecretScheme.STORE: self._stored,
            SecretScheme.KEYRING: KeyringSource(ground.keyrings),
            SecretScheme.LOGIN: self._logins,
            SecretScheme.GITHUB_APP: GitHubAppSource(self._stored, ground.apps, ground.reach),
            SecretScheme.KUBE: ClusterSource(ground.directory),
        }

    def fetch(self, ref: SecretRef, *, unsafe_short: bool = False) -> FetchedSecret:
        """Read one secret now; raises SecretUnavailable with the reason."""
        source = self._sources[ref.source]
        # Before it is read: a change in between is seen as one, not missed.
        mark = source.mark(ref)
        return replace(admit_reading(ref, source.read(ref), unsafe_short=unsafe_short), mark=mark)

    def mark(self, ref: SecretRef) -> object:
        """A mark that differs from `FetchedSecret.mark` once the secret may have changed; None:
        never."""
        return self._sources[ref.source].mark(ref)

    def hush(self) -> None:
        """Do not prompt for a passphrase any more."""
        self._stored.hush()

    def close(self) -> None:
        """End the commands under way and start no others. Waits for the renewal of a login."""
        self._children.close()
        self._logins.close()

    def fetch_all(
        self, refs: Iterable[SecretRef], *, unsafe_short: bool = False
    ) -> dict[SecretRef, FetchedSecret]:
        """Fetch each secret once. SecretUnavailable names all that failed."""
        found = self.fetch_each(refs, unsafe_short=unsafe_short)
        if found.missing:
            first, *others = found.missing.values()
            raise SecretUnavailable(first.ref, first.why, *others)
        return dict(found.given)

    def fetch_each(
        self, refs: Iterable[SecretRef], *, unsafe_short: bool = False
    ) -> FetchedSecrets:
        """Fetch each secret once, all commands and logins in parallel."""
        wanted = tuple(dict.fromkeys(refs))
        found: dict[SecretRef, FetchedSecret | SecretUnavailable] = {}

        def fetch(ref: SecretRef) -> None:
            try:
                found[ref] = self.fetch(ref, unsafe_short=unsafe_short)
            except SecretUnavailable as error:
                found[ref] = error

        slow = [ref for ref in wanted if ref.source in (SecretScheme.EXEC, SecretScheme.LOGIN)]
        threads = [threading.Thread(target=fetch, args=(ref,)) for ref in slow]
        try:
            for thread in threads:
                thread.start()
            # Meanwhile, and here: a question for a passphrase belongs to the caller's thread.
            for ref in wanted:
                if ref not in slow:
                    fetch(ref)
            for thread in threads:
                thread.join()
        except BaseException:
            self._children.close()  # a person who gave up does not wait for a time limit
            raise
        return _parted(wanted, found)


class FetchedSecrets(Struct, frozen=True):
    """The secrets that could be read, and why the others could not."""

    given: Mapping[SecretRef, FetchedSecret]
    missing: Mapping[SecretRef, SecretUnavailable]


def _parted(
    wanted: tuple[SecretRef, ...], found: Mapping[SecretRef, FetchedSecret | SecretUnavailable]
) -> FetchedSecrets:
    given: dict[SecretRef, FetchedSecret] = {}
    missing: dict[SecretRef, SecretUnavailable] = {}
    for ref in wanted:
        match found.get(ref):
            case FetchedSecret() as one:
                given[ref] = one
            case SecretUnavailable() as error:
                missing[ref] = error
            case None:
                why = "it was not read: an error in Keyhole itself"
                missing[ref] = SecretUnavailable(ref, why)
    return FetchedSecrets(given, missing)
