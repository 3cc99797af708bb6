"""Remembers which notices a person has read about a project, so that each is said once.

Called by `keyhole run`. A notice tells what a run found on this host: masked files, a package
manager that is missing. One whose text changes is said again. Only digests are stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_KNOWN = 200
"""Notices that are remembered for a project; an older one is said again."""

MAX_BYTES = 64 * 1024
"""Bytes of a file that is read: far more than so many digests take."""


class SaidNotices:
    """The notices of one project, in a file of a directory of the person's own."""

    def __init__(self, directory: Path, project: Path) -> None:
        self._directory = directory
        self._file = directory / f"{_digest(str(project))}.json"

    def take_new(self, lines: Sequence[str]) -> list[str]:
        """Those that were not said before; they are remembered from now on.

        Where nothing can be stored, each is new every time.
        """
        if not lines:
            return []
        known = self._read()
        new = [line for line in dict.fromkeys(lines) if _digest(line) not in known]
        if new:
            with contextlib.suppress(OSError):
                self._write([*known, *map(_digest, new)][-MAX_KNOWN:])
        return new

    def _read(self) -> list[str]:
        try:
            with self._file.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return []
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def _write(self, known: list[str]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # tempfile would take longer to import than this takes.
        path = self._directory / f"{os.getpid()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(path, flags, 0o600), "w") as file:
                json.dump(known, file)
            os.replace(path, self._file)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
