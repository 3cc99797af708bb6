"""Decides whether a secret may be read from a file, by its owner and its permissions.

Like a key of ssh, a file that others can read is refused, with what to type. Used for secrets in
files and for the login files of other programs.
"""

from __future__ import annotations

import os
import shlex

from msgspec import Struct

from keyhole.model.text import visible
from keyhole.vault.custody import MAX_SIZE

HANDED_OVER = ("/run/secrets", "/var/run/secrets", "/run/credentials")
"""Directories in which container engines and systemd place secrets for one container or service.
They choose owner and mode (0444, or group-readable), and the mount decides which processes see
it."""

_BY_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022


class FileFacts(Struct, frozen=True):
    """The status of an open file."""

    path: str
    owner: int
    mode: int
    size: int
    read_only: bool
    """Whether its mount is read-only."""

    @classmethod
    def of(cls, descriptor: int, path: str) -> FileFacts:
        """The facts of the open file, not of the file that now has the name."""
        found = os.fstat(descriptor)
        flags = os.fstatvfs(descriptor).f_flag
        read_only = bool(flags & os.ST_RDONLY)
        return cls(path, found.st_uid, found.st_mode & 0o7777, found.st_size, read_only)


def objection(facts: FileFacts, user: int) -> str | None:
    """Why a secret must not be read from such a file, and what to do about it."""
    if facts.size > MAX_SIZE:
        return f"the secret is larger than {MAX_SIZE} bytes"
    if _is_handed_over(facts):
        return None
    quoted = visible(shlex.quote(facts.path))
    if facts.owner not in (0, user):
        return f"it belongs to uid {facts.owner}, who can change it: chown {user} {quoted}"
    if facts.mode & _BY_OTHERS and facts.read_only:
        place = HANDED_OVER[0]
        return f"others can reach it (mode {facts.mode:04o}), read-only: mount it below {place}"
    if facts.mode & _BY_OTHERS:
        return f"others can reach it (mode {facts.mode:04o}): chmod 600 {quoted}"
    return None


def _is_handed_over(facts: FileFacts) -> bool:
    if not any(facts.path.startswith(f"{place}/") for place in HANDED_OVER):
        return False
    kept = facts.owner == 0 and not facts.mode & _WRITABLE_BY_OTHERS
    return kept or facts.read_only
