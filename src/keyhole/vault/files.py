"""`file:PATH`: a secret in a file of the host, or in one that a container engine handed over.

As ssh does with a key, a file that others can read is refused, with what to type. A unit of systemd
names what it was handed as it would in its own command line: `file:$CREDENTIALS_DIRECTORY/NAME`. No
other variable is looked at, and `locate` is the one place that reads a path.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass, replace
from keyhole.vault.custody import MAX_SIZE, seal
from keyhole.vault.interface import Reading, Unavailable, mark_of
from keyhole.vault.opening import Unopened, open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.secret import SecretRef

HANDED_OVER = ("/run/secrets", "/var/run/secrets", "/run/credentials")
"""Where container engines and systemd place secrets for one container or service. They choose owner
and mode (0444, or group-readable), and who can look there at all is decided by the mount."""

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd says that a unit's credentials are (systemd.exec(5)), system's and user's."""

_BY_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True, slots=True)
class Facts:
    """What the descriptor of an open file says of it."""

    path: str
    owner: int
    mode: int
    size: int
    read_only: bool
    """Whether its mount is."""

    @classmethod
    def of(cls, descriptor: int, path: str) -> Facts:
        """Of what is open, not of what has the name by now."""
        found = os.fstat(descriptor)
        flags = os.fstatvfs(descriptor).f_flag
        read_only = bool(flags & os.ST_RDONLY)
        return cls(path, found.st_uid, found.st_mode & 0o7777, found.st_size, read_only)


def objection(facts: Facts, user: int) -> str | None:
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


class NoPlace(Exception):
    """A path that leads nowhere in this environment; the message says why."""


def locate(text: str, directory: Path, home: Path, env: Mapping[str, str]) -> Path:
    """The file that a reference means; a relative one is relative to the policy."""
    variable, slash, name = text.partition("/")
    if variable == f"${CREDENTIALS}":
        if not env.get(CREDENTIALS, "").startswith("/"):
            raise NoPlace(f"{CREDENTIALS} is not set: no unit of systemd handed a credential over")
        if not slash or "/" in name or name in ("", ".", ".."):
            raise NoPlace(f"a credential is one name: ${CREDENTIALS}/NAME")
        return Path(env[CREDENTIALS]) / name
    path = home / text[2:] if text.startswith("~/") else directory / text
    return Path("/") / path


def _is_handed_over(facts: Facts) -> bool:
    if not any(facts.path.startswith(f"{place}/") for place in HANDED_OVER):
        return False
    kept = facts.owner == 0 and not facts.mode & _WRITABLE_BY_OTHERS
    return kept or facts.read_only


class FileSource:
    """Files by their path; a relative one is relative to the policy."""

    def __init__(
        self,
        directory: Path,
        home: Path,
        writable: tuple[Path, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._home = home
        self._writable = writable
        self._env = {CREDENTIALS: (env or {}).get(CREDENTIALS, "")}
        self._marked: dict[str, str] = {}

    def read(self, ref: SecretRef) -> Reading:
        """Open once, judge what is open, read it."""
        try:
            path = self._locate(ref.locator)
        except NoPlace as error:
            raise Unavailable(ref, str(error)) from None
        try:
            opened = open_regular(path, self._writable)
        except Unopened as error:
            raise Unavailable(ref, f"{visible(str(path))}: {error}") from None
        try:
            facts = Facts.of(opened.descriptor, opened.path)
            why = objection(facts, os.geteuid())
            if why:
                raise Unavailable(ref, why)
            reading = _read(opened.descriptor)
        finally:
            os.close(opened.descriptor)
        if not opened.exposed:
            return reading
        return replace(
            reading,
            warning=f"{visible(str(ref))} lies in a tree that sandboxes can write; "
            "keep it elsewhere, or in the store (`keyhole secret set`)",
        )

    def mark(self, ref: SecretRef) -> object:
        """Of what it leads to now: Kubernetes and editors replace files, by a link or a rename."""
        path = self._marked.get(ref.locator)
        if path is None:
            try:
                path = self._marked[ref.locator] = str(self._locate(ref.locator))
            except NoPlace:
                return None
        return mark_of(path)

    def _locate(self, text: str) -> Path:
        return locate(text, self._directory, self._home, self._env)


def _read(descriptor: int) -> Reading:
    pieces, left = [], MAX_SIZE + 1
    try:
        while left and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        return Reading(flaw=f"it cannot be read: {(error.strerror or '').lower()}")
    return seal(b"".join(pieces))
