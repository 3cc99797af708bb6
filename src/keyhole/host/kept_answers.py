"""Keeps the answer of a slow program of the host for the next run.

Used by the preset `node`: npm takes a quarter of a second to print settings that hardly ever
change. The answer lies in Keyhole's own state, which no sandbox can write. It counts only while the
command, its environment, its programs and every file that it read are what they were. It is handed
no credential to keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING

from keyhole.host.settings_file import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from keyhole.host.host_environment import Invocation


class KeptAnswers:
    """The last answer of each program. Without a directory, nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def find(self, name: str, invocation: Invocation) -> dict[str, str] | None:
        """The kept answer, if nothing has changed since."""
        if self._directory is None:
            return None
        try:
            kept = json.loads(read_text(self._directory / name) or "")
            read: dict[str, str] = kept["read"]
            if kept["asked"] != _digest(invocation) or any(_stamp(p) != read[p] for p in read):
                return None
            return {str(key): str(value) for key, value in kept["answer"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(
        self, name: str, invocation: Invocation, answer: Mapping[str, str], read: Iterable[Path]
    ) -> None:
        """Keep an answer, in place of the last one. A directory that cannot be written keeps
        none."""
        if self._directory is None:
            return
        table = {
            "asked": _digest(invocation),
            "read": {str(path): _stamp(str(path)) for path in read},
            "answer": dict(answer),
        }
        beside = self._directory / f"{name}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(table), encoding="utf-8")
            beside.replace(self._directory / name)


def _digest(invocation: Invocation) -> str:
    programs = {word: _stamp(word) for word in invocation.argv if word.startswith("/")}
    asked = [invocation.argv, sorted(invocation.environment.items()), programs]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _stamp(path: str) -> str:
    """A text that changes when the file does, or when the path leads to another one."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev}.{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"
