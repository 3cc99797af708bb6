"""A file of this user's alone that leads a browser to a link.

Used by `keyhole web` and `keyhole login`. Attack: the link as an argument of the browser's start,
which every user of this host can read in the list of processes, and use sooner.
"""

from __future__ import annotations

import contextlib
import html
import os
import secrets
from typing import TYPE_CHECKING

from keyhole.control.socket_directory import open_directory

if TYPE_CHECKING:
    from pathlib import Path

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RedirectFile:
    """One file in the runtime directory; each link replaces the one before."""

    def __init__(self, runtime: Path, prefix: str) -> None:
        self._runtime = runtime
        self._prefix = prefix
        self._path: Path | None = None

    def write(self, link: str) -> Path:
        """Write a file that leads to the link."""
        self.remove()
        os.close(open_directory(self._runtime, make=True))
        path = self._runtime / f"{self._prefix}-{secrets.token_hex(8)}.html"
        with os.fdopen(os.open(path, _CREATE, 0o600), "w") as file:
            file.write(
                '<!doctype html><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={html.escape(link)}">\n'
            )
        self._path = path
        return path

    def remove(self) -> None:
        """Remove it, once the browser has read it or nobody waits any more."""
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
