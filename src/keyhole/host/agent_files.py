"""Reads the files of an agent that come along into a sandbox: settings, instructions, skills.

Called by `app`, which says what may be shown. A link in the agent's own directory is followed as
the agent would follow it, and what it leads to is judged by its own path. Below that, no link leads
out: the directory may be a project's, in which sandboxed code left the link (I1). Everything is
bounded: the files may be anybody's (I9).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from keyhole.system.walk import read_no_links

if TYPE_CHECKING:
    from keyhole.host.host_environment import HostEnvironment

MAX_FILES = 200
"""Files that are copied for one run; a rich collection of skills has a hundred."""
MAX_FILE = 256 * 1024
"""Bytes of one of them: instructions and commands are texts of a few pages."""
MAX_BYTES = 2 * 1024 * 1024
"""Bytes of all of them together."""
MAX_DEPTH = 5
"""Directories below a directory that is copied."""
MAX_ENTRIES = 2000
"""Names that are looked at."""

Refuses: TypeAlias = Callable[[str, bytes], bool]
"""Whether a file, by its real path and its content, must not be shown."""


class CopiedFile(Struct, frozen=True):
    """A file for the sandbox's home."""

    path: str
    """Below the home."""
    data: bytes
    executable: bool


class CopiedFiles(Struct, frozen=True):
    """The files, and the paths of those that were left out."""

    files: tuple[CopiedFile, ...]
    refused: tuple[str, ...]
    """They look like credentials."""
    crowded: bool
    """There are more, or larger ones, than are copied."""


def copy_files(paths: tuple[str, ...], host: HostEnvironment, refuses: Refuses) -> CopiedFiles:
    """Read these files and directories below the home."""
    reading = _Reading(host, refuses)
    for path in paths:
        reading.read(path, 0, reading.led_to(path))
    return CopiedFiles(tuple(reading.files), tuple(reading.refused), reading.crowded)


class _Reading:
    def __init__(self, host: HostEnvironment, refuses: Refuses) -> None:
        self._host = host
        self._home = os.path.realpath(host.home)
        self._refuses = refuses
        self._left = MAX_BYTES
        self._entries = MAX_ENTRIES
        self.files: list[CopiedFile] = []
        self.refused: list[str] = []
        self.crowded = False

    def led_to(self, path: str) -> str | None:
        """The directory that a link on the way to this path leads to; None if there is no link."""
        place = self._home
        for name in path.split("/")[:-1]:
            place = f"{place}/{name}"
            if os.path.islink(place):
                return os.path.realpath(place)
        return None

    def read(self, path: str, depth: int, within: str | None) -> None:
        """One file, or a directory with what is below it. `within` is the directory that a link
        has led to."""
        self._entries -= 1
        if self._entries < 0 or depth > MAX_DEPTH or len(self.files) >= MAX_FILES:
            self.crowded = True
            return
        place = self._host.home / path
        if not self._host.trusts(place):
            return
        real = os.path.realpath(place)
        # Attack: a skill that is a link into a project, where a sandbox left a link to a file of
        # the person's for the sandbox of another project.
        if within is not None and not real.startswith(f"{within}/"):
            return
        try:
            mode = os.stat(real).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            if within is None and real != f"{self._home}/{path}":
                within = real
            for name in self._names(real):
                self.read(f"{path}/{name}", depth + 1, within)
        elif stat.S_ISREG(mode):
            self._take(path, real, executable=bool(mode & stat.S_IXUSR))

    def _names(self, directory: str) -> Iterator[str]:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            return
        for name in names:
            # `.git`, `.DS_Store`, `.env`: nothing that an agent reads.
            if not name.startswith(".") and name not in ("node_modules", "__pycache__"):
                yield name

    def _take(self, path: str, real: str, *, executable: bool) -> None:
        data = _read(real)
        if data is None or len(data) > self._left:
            self.crowded = True
            return
        if self._refuses(real, data):
            self.refused.append(path)
            return
        self._left -= len(data)
        self.files.append(CopiedFile(path, data, executable))


def _read(path: str) -> bytes | None:
    """The bytes of a regular file; None if it has too many or cannot be read."""
    try:
        # Attack: a directory on the way becomes a link after it was judged.
        data = read_no_links(path, MAX_FILE + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= MAX_FILE else None


def settings_text(path: str, host: HostEnvironment, refuses: Refuses) -> str:
    """The text of a settings file below the home; empty where there is none to read."""
    place = Path(host.home, path)
    text = host.read(place)
    if text is None or refuses(os.path.realpath(place), b""):
        return ""
    return text
