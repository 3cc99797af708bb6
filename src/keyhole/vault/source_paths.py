"""Paths of the host that sources of secrets read, by reference and by variable.

A run checks that the sandbox cannot write them before a source reads one (I11). It imports this
module alone of the vault when its policy names no secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS_VARIABLES = """
HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME XDG_RUNTIME_DIR GNUPGHOME
PASSWORD_STORE_DIR
""".split()
"""Variables that name directories in which programs keep settings."""

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The directories of a unit's credentials by systemd.exec(5), for the system and for users."""


def trusted_paths(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Directories of settings that variables name, as GnuPG's does."""
    return tuple(
        Path(env[name]) for name in SETTINGS_VARIABLES if env.get(name, "").startswith("/")
    )


def locate(text: str, directory: Path, home: Path, env: Mapping[str, str]) -> Path:
    """The file that a reference means; a relative one is relative to the policy."""
    variable, slash, name = text.partition("/")
    if variable == f"${CREDENTIALS}":
        if not env.get(CREDENTIALS, "").startswith("/"):
            raise ResourceUnusable(
                f"{CREDENTIALS} is not set: no unit of systemd handed a credential over"
            )
        if not slash or "/" in name or name in ("", ".", ".."):
            raise ResourceUnusable(f"a credential is one name: ${CREDENTIALS}/NAME")
        return Path(env[CREDENTIALS]) / name
    path = home / text[2:] if text.startswith("~/") else directory / text
    return Path("/") / path
