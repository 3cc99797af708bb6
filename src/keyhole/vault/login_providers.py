"""The logins, by the name in `login:NAME`. Used by `login_source.py`, and by code that
needs a login's path without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.vault.claude_login import ClaudeLogin
from keyhole.vault.codex_login import CodexLogin
from keyhole.vault.google_login import GoogleLogin
from keyhole.vault.kept_login import KeptLogin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef
    from keyhole.vault.login_provider import LoginProvider

PROVIDERS: Mapping[str, LoginProvider] = {
    "claude": ClaudeLogin(),
    "codex": CodexLogin(),
    "google": GoogleLogin(),
}


def login_provider(name: str) -> LoginProvider:
    """The provider of `login:NAME`: a client's, or Keyhole's own for every other name."""
    return PROVIDERS.get(name) or KeptLogin(name)


def locate_login(ref: SecretRef, home: Path, env: Mapping[str, str]) -> Path:
    """The file that a `login:` reference means."""
    return login_provider(ref.locator).place(home, env)
