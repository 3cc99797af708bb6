"""The logins of this host, for `keyhole login --list`: clients' own, and those of `keyhole login`.

Each file is read, and nothing of a token is kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import LOGINS, SecretRef, SecretScheme
from keyhole.vault.kept_login import SUFFIX, KeptLogin, logins_directory
from keyhole.vault.login_file import LoginFile
from keyhole.vault.login_providers import locate_login, login_provider

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_LOGINS = 1000
"""Logins that are listed."""


class KnownLogin(Struct, frozen=True):
    """The public facts of a login."""

    name: str
    target: str
    """The service that it is for."""
    scopes: tuple[str, ...] = ()
    since: int | None = None
    expires: float | None = None
    renewable: bool = False
    flaw: str = ""
    """Why it cannot be used; empty if it can."""


def list_logins(home: Path, env: Mapping[str, str]) -> tuple[KnownLogin, ...]:
    """Every login that is there, clients' own first."""
    places = [
        (name, locate_login(SecretRef(SecretScheme.LOGIN, name), home, env)) for name in LOGINS
    ]
    found = [_known(name, path) for name, path in places if os.path.isfile(path)]
    directory = logins_directory(home, env)
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except OSError:
        names = []
    own = [name for name in names[:MAX_LOGINS] if not name.startswith(".")]
    return (*found, *(_known(name.removesuffix(SUFFIX), directory / name) for name in own))


def _known(name: str, path: Path) -> KnownLogin:
    provider = login_provider(name)
    target = provider.browser.title if provider.browser else name
    try:
        file = LoginFile(path)
    except ResourceUnusable as error:
        return KnownLogin(name, target, flaw=str(error))
    try:
        document = file.read().document
    except ResourceUnusable as error:
        return KnownLogin(name, target, flaw=str(error))
    finally:
        file.close()
    tokens = provider.tokens(document)
    if isinstance(tokens, str):
        return KnownLogin(name, target, flaw=tokens)
    expires, renewable = tokens.expires, bool(tokens.refresh)
    if not isinstance(provider, KeptLogin):
        return KnownLogin(name, target, expires=expires, renewable=renewable)
    facts = provider.facts(document)
    return KnownLogin(name, facts.resource, facts.scopes, facts.since, expires, renewable)
