"""The secrets that are known and the services that name them, for `keyhole secret list`.

These are the store's entries, and the references of the policy in the working directory and of the
user's own defaults. No source is read: neither a value nor its length is known here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.policy_file import read_bounded
from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.policy.document import parse_document
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.reader import read_settings
from keyhole.policy.schema import USER_KEYS
from keyhole.vault.github_app_source import key_reference
from keyhole.vault.login_providers import locate_login
from keyhole.vault.source_paths import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.vault.store_file import StoredSecret

MISSING = "missing"
_KINDS = {
    SecretScheme.STORE: MISSING,
    SecretScheme.KEYRING: "keyring",
    SecretScheme.FILE: "file",
    SecretScheme.EXEC: "command",
    SecretScheme.UNSAFE_ENV: "variable",
    SecretScheme.LOGIN: "login",
    SecretScheme.GITHUB_APP: MISSING,
}


class SecretUse(Struct, frozen=True):
    """A service that names a secret, and the file in which it does."""

    service: str
    file: str


class KnownSecret(Struct, frozen=True):
    """The public facts of a secret."""

    ref: SecretRef
    kept: str
    """The form in the store; else the kind of its source, or that it is missing."""
    since: float | None = None
    """Seconds since the epoch: when it was stored, or when its file was last written."""
    used: tuple[SecretUse, ...] = ()

    @property
    def id(self) -> str:
        """The name in the store, by which the other verbs take it; else the reference."""
        return self.ref.locator if self.ref.source is SecretScheme.STORE else str(self.ref)


def uses_of_policy(file: PolicyFile, defaults: str) -> list[tuple[SecretRef, SecretUse]]:
    """The secrets that a policy's services use, by reference or by the user's default."""
    found = []
    for service in file.loaded.policy.services:
        if service.secret is not None:
            own = ("services", service.name, "secret") in file.loaded.project
            found.append(
                (service.secret, SecretUse(service.name, str(file.path) if own else defaults))
            )
    return found


def uses_of_defaults(places: HostPaths) -> list[tuple[SecretRef, SecretUse]]:
    """The secrets that the user's own defaults name, whether or not this project uses them."""
    path = places.user_defaults
    if not path.exists():
        return []
    try:
        settings, _ = read_settings(parse_document(str(path), read_bounded(path)), USER_KEYS)
    except PolicyFaults:
        return []  # `keyhole check` reports its faults
    return [
        (setting.value, SecretUse(str(key[1]), str(path)))
        for key, setting in settings.items()
        if key[0] == "services" and isinstance(setting.value, SecretRef)
    ]


def known_secrets(
    entries: Iterable[StoredSecret],
    uses: Iterable[tuple[SecretRef, SecretUse]],
    places: HostPaths,
    directory: Path,
    env: Mapping[str, str],
) -> tuple[KnownSecret, ...]:
    """All of them, the store's first; `directory` is the policy's."""
    using: dict[SecretRef, list[SecretUse]] = {}
    stored = {SecretRef(SecretScheme.STORE, entry.name): entry for entry in entries}
    for ref in stored:
        using[ref] = []
    for ref, use in uses:
        found = using.setdefault(ref, [])
        if use not in found:
            found.append(use)
    rows = []
    for ref, users in using.items():
        is_app = ref.source is SecretScheme.GITHUB_APP
        entry = stored.get(key_reference(ref) if is_app else ref)
        if entry:
            rows.append(KnownSecret(ref, entry.kept, entry.since, tuple(users)))
        elif ref.source in (SecretScheme.FILE, SecretScheme.LOGIN):
            written = _written(ref, places, directory, env)
            kept = MISSING if written is None else _KINDS[ref.source]
            rows.append(KnownSecret(ref, kept, written, tuple(users)))
        else:
            rows.append(KnownSecret(ref, _KINDS[ref.source], used=tuple(users)))
    return tuple(rows)


def _written(
    ref: SecretRef, places: HostPaths, directory: Path, env: Mapping[str, str]
) -> float | None:
    try:
        if ref.source is SecretScheme.LOGIN:
            return os.stat(locate_login(ref, places.home, env)).st_mtime
        return os.stat(locate(ref.locator, directory, places.home, env)).st_mtime
    except (ResourceUnusable, OSError, ValueError):
        return None
