"""Finds settings files of a project that hold a credential of a known shape (I1).

People paste tokens into files that are not made for them: `.mcp.json`, an editor's or an agent's
settings, `mise.toml`, `*.tfvars`, `docker-compose.yml`; and git writes the address of a clone into
its reflogs. Called for every file of a bound tree that `credential_files.py` lets pass. A rule
chooses the files that are read: small ones with a settings file's suffix, near the top of a tree,
in a hidden directory, or with a known name. Files deeper down are sources and test data.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.files.credential_patterns import credential_by_shape

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SIZE = 65536
"""Bytes of a settings file; a larger file is data."""
MAX_REFLOG = 4 << 20
"""Bytes of a reflog: some 25,000 entries."""
MAX_FILES = 20_000
"""Files looked into for one plan: a large monorepo has some thousands."""
MAX_SECONDS = 5.0
"""Time that reading them may take together; a thousand take a tenth of a second."""

_NEAR = 3
"""Directories below the top of a tree: `packages/web/config/local.json`."""
_SUFFIXES = frozenset(
    "json jsonc json5 toml yml yaml ini cfg conf config properties tfvars hcl xml env vars".split()
)
_TELLING = (
    "appsettings", "application", "compose", "config", "credential", "docker-compose", "local",
    "mcp", "mise", "secret", "settings", "values",
)  # fmt: skip
_PUBLIC = frozenset({"google-services.json"})
"""A file that is shipped with an app, and its key with it."""
_CACHES = frozenset(
    ".eggs .gradle .hypothesis .next .nox .nuxt .pnpm-store .svelte-kit .terraform .tox .venv "
    ".yarn __pycache__ venv".split()
)


_UNREAD = "what could not be read"
"""Masked as well: the sandbox runs as the file's owner and could make it readable."""


class SettingsFiles:
    """Looks into the settings files of one plan's trees, within its bounds."""

    def __init__(self, files: int = MAX_FILES, seconds: float = MAX_SECONDS) -> None:
        self._files = files
        self._seconds = seconds
        self.passed_over = 0
        """The number of settings files that were not searched because a limit was reached."""

    def credential_in(
        self, root: str, directory: str, name: str, path: str | None = None
    ) -> str | None:
        """The credential in a file, described; None if it is no settings file, or holds none.

        `path` is where it is read instead, when the name is a link's.
        """
        path = path or f"{directory}/{name}"
        if is_reflog(directory):
            return self._look(path, MAX_REFLOG, _in_addresses)
        if is_settings(directory.removeprefix(root), name):
            return self._look(path, MAX_SIZE, credential_by_shape)
        return None

    def _look(self, path: str, limit: int, judge: Callable[[bytes], str | None]) -> str | None:
        if self._files <= 0 or self._seconds <= 0:
            self.passed_over += 1
            return None
        self._files -= 1
        start = time.monotonic()
        try:
            return _read(path, limit, judge)
        finally:
            self._seconds -= time.monotonic() - start


def is_reflog(directory: str) -> bool:
    """Whether this directory holds git's reflogs."""
    if "/logs" not in directory:
        return False
    parts = directory.split("/")
    inside = next((at for at, part in enumerate(parts) if part.endswith(".git")), len(parts))
    return "logs" in parts[inside:]


def is_settings(below: str, name: str) -> bool:
    """Whether a file of this name, in a directory below the top of its tree, is looked into."""
    lower = name.lower()
    suffix = lower.rpartition(".")[2] if "." in lower[1:] else ""
    if suffix not in _SUFFIXES and (suffix or not lower.startswith(".")):
        return False
    directories = [part for part in below.split("/") if part]
    if lower in _PUBLIC or any(map(_is_kept_elsewhere, directories)):
        return False
    return (
        len(directories) <= _NEAR
        or suffix == "tfvars"
        or lower.startswith((".", *_TELLING))
        or any(part.startswith(".") for part in directories)
    )


def _is_kept_elsewhere(directory: str) -> bool:
    """Whether the directory is a cache, or a repository's own, whose config `repositories.py`
    covers."""
    return directory in _CACHES or directory.endswith(("cache", ".git"))


def _in_addresses(data: bytes) -> str | None:
    """The credential in a reflog, described. Few of its lines have an address, and only addresses
    hold one."""
    if b"://" not in data:
        return None
    return credential_by_shape(b"\n".join(x for x in data.splitlines() if b"://" in x))


def _read(path: str, limit: int, judge: Callable[[bytes], str | None]) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNREAD
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        return judge(os.read(file, limit))
    except OSError:
        return _UNREAD
    finally:
        os.close(file)
