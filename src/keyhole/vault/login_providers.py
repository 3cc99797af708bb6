"""The supported logins, by the name in `login:NAME`. Used by `login_source.py`, and by code that
needs a login's path without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.vault.claude_login import ClaudeLogin
from keyhole.vault.codex_login import CodexLogin
from keyhole.vault.google_login import GoogleLogin

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


def locate_login(ref: SecretRef, home: Path, env: Mapping[str, str]) -> Path:
    """The file that a `login:` reference means."""
    return PROVIDERS[ref.locator].place(home, env)
