"""The CAs of this node's pods, which outlive the agent.

A program in a pod reads its CA once. After a restart the agent must use the same CA, or the program
rejects every connection. The files are below /run, in memory, and only root of the node can read
them. Root administers the node anyway, and only the pod itself trusts its CA.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.certs.kept_authority import KEPT_LIFETIME, kept_certificate, new_kept_authority
from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

MAX_KEPT = 16 * 1024
"""Bytes of one file; it has about a thousand."""


class PodAuthorities:
    """The directory with a file for each pod."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)

    def open(self, uid: str, lasting: timedelta) -> bytes:
        """The CA of a pod with its key, in PEM. Made if there is none that is valid long enough."""
        path = self._directory / f"{uid}.pem"
        try:
            with path.open("rb") as file:
                kept = file.read(MAX_KEPT)
            kept_certificate(kept, lasting)
        except (OSError, Unparsable):
            kept = new_kept_authority(uid, max(KEPT_LIFETIME, lasting))
            self._write(path, kept)
        return kept

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        (self._directory / f"{uid}.pem").unlink(missing_ok=True)

    def keep_only(self, uids: set[str]) -> None:
        """Remove the files of all other pods, which ended while no agent was running."""
        for path in self._directory.glob("*.pem"):
            if path.stem not in uids:
                path.unlink(missing_ok=True)

    def _write(self, path: Path, kept: bytes) -> None:
        beside = path.with_suffix(".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(kept)
        beside.replace(path)
