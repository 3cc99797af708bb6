"""Which secrets there are and which services name them, for `keyhole secret list`.

The store's entries, and what the policy in the working directory and the user's own defaults refer
to. No source is read: neither a value nor its length is known here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.policyfile import read_bounded
from keyhole.model.secret import SecretRef, Source
from keyhole.model.value import dataclass
from keyhole.policy.document import parse_document
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.reader import read_settings
from keyhole.policy.schema import USER_KEYS
from keyhole.vault.files import NoPlace, locate
from keyhole.vault.providers import locate_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.app.places import Places
    from keyhole.app.policyfile import PolicyFile
    from keyhole.vault.storefile import Entry

MISSING = "missing"
_KINDS = {
    Source.STORE: MISSING,
    Source.KEYRING: "keyring",
    Source.FILE: "file",
    Source.EXEC: "command",
    Source.UNSAFE_ENV: "variable",
    Source.LOGIN: "login",
}


@dataclass(frozen=True, slots=True)
class Use:
    """A service that names a secret, and the file in which it does."""

    service: str
    file: str


@dataclass(frozen=True, slots=True)
class Known:
    """What may be told of a secret."""

    ref: SecretRef
    kept: str
    """How the store keeps it; else what kind of source it has, or that it is missing."""
    since: float | None = None
    """Seconds since the epoch: when it was stored, or when its file was last written."""
    used: tuple[Use, ...] = ()

    @property
    def id(self) -> str:
        """The name in the store, by which the other verbs take it; else the reference."""
        return self.ref.locator if self.ref.source is Source.STORE else str(self.ref)


def uses_of_policy(file: PolicyFile, defaults: str) -> list[tuple[SecretRef, Use]]:
    """What a policy's services use, by a word of its own or by the user's default."""
    found = []
    for service in file.loaded.policy.services:
        if service.secret is not None:
            own = ("services", service.name, "secret") in file.loaded.project
            found.append((service.secret, Use(service.name, str(file.path) if own else defaults)))
    return found


def uses_of_defaults(places: Places) -> list[tuple[SecretRef, Use]]:
    """What the user's own defaults name, whether or not this project uses it."""
    path = places.user_defaults
    if not path.exists():
        return []
    try:
        settings, _ = read_settings(parse_document(str(path), read_bounded(path)), USER_KEYS)
    except PolicyFaults:
        return []  # `keyhole check` says what is wrong with it
    return [
        (setting.value, Use(str(key[1]), str(path)))
        for key, setting in settings.items()
        if key[0] == "services" and isinstance(setting.value, SecretRef)
    ]


def known_secrets(
    entries: Iterable[Entry],
    uses: Iterable[tuple[SecretRef, Use]],
    places: Places,
    directory: Path,
    env: Mapping[str, str],
) -> tuple[Known, ...]:
    """All of them, the store's first; `directory` is the policy's."""
    using: dict[SecretRef, list[Use]] = {}
    stored = {SecretRef(Source.STORE, entry.name): entry for entry in entries}
    for ref in stored:
        using[ref] = []
    for ref, use in uses:
        found = using.setdefault(ref, [])
        if use not in found:
            found.append(use)
    rows = []
    for ref, users in using.items():
        entry = stored.get(ref)
        if entry:
            rows.append(Known(ref, entry.kept, entry.since, tuple(users)))
        elif ref.source in (Source.FILE, Source.LOGIN):
            written = _written(ref, places, directory, env)
            kept = MISSING if written is None else _KINDS[ref.source]
            rows.append(Known(ref, kept, written, tuple(users)))
        else:
            rows.append(Known(ref, _KINDS[ref.source], used=tuple(users)))
    return tuple(rows)


def _written(
    ref: SecretRef, places: Places, directory: Path, env: Mapping[str, str]
) -> float | None:
    try:
        if ref.source is Source.LOGIN:
            return os.stat(locate_login(ref, places.home, env)).st_mtime
        return os.stat(locate(ref.locator, directory, places.home, env)).st_mtime
    except (NoPlace, OSError, ValueError):
        return None
