"""Whose logins there are, by the name in `login:NAME`. Read by `logins.py`, and by whoever must
know where a login lies without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.vault.claudelogin import Claude
from keyhole.vault.codexlogin import Codex
from keyhole.vault.googlelogin import Google

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef
    from keyhole.vault.provider import Provider

PROVIDERS: Mapping[str, Provider] = {"claude": Claude(), "codex": Codex(), "google": Google()}


def locate_login(ref: SecretRef, home: Path, env: Mapping[str, str]) -> Path:
    """The file that a `login:` reference means."""
    return PROVIDERS[ref.locator].place(home, env)
