"""`file:PATH`: a secret in a file of the host, or in one that a container engine provided.

Like a key of ssh, a file that others can read is refused, with what to type. A unit of systemd
names its credentials as in its own command line: `file:$CREDENTIALS_DIRECTORY/NAME`. No other
variable is expanded, and only `source_paths.locate` reads a path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible
from keyhole.vault.checked_open import open_regular
from keyhole.vault.custody import MAX_SIZE, seal_secret
from keyhole.vault.file_facts import FileFacts, objection
from keyhole.vault.interface import SecretReading, SecretUnavailable, mark_of
from keyhole.vault.source_paths import CREDENTIALS, locate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef


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

    def read(self, ref: SecretRef) -> SecretReading:
        """Open the file once, judge the open file, and read it."""
        try:
            path = self._locate(ref.locator)
        except ResourceUnusable as error:
            raise SecretUnavailable(ref, str(error)) from None
        try:
            opened = open_regular(path, self._writable)
        except ResourceUnusable as error:
            raise SecretUnavailable(ref, f"{visible(str(path))}: {error}") from None
        try:
            facts = FileFacts.of(opened.descriptor, opened.path)
            why = objection(facts, os.geteuid())
            if why:
                raise SecretUnavailable(ref, why)
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
        """The mark of the file that the path leads to now: Kubernetes and editors replace files, by
        a link or a rename."""
        path = self._marked.get(ref.locator)
        if path is None:
            try:
                path = self._marked[ref.locator] = str(self._locate(ref.locator))
            except ResourceUnusable:
                return None
        return mark_of(path)

    def _locate(self, text: str) -> Path:
        return locate(text, self._directory, self._home, self._env)


def _read(descriptor: int) -> SecretReading:
    pieces, left = [], MAX_SIZE + 1
    try:
        while left and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        return SecretReading(flaw=f"it cannot be read: {(error.strerror or '').lower()}")
    return seal_secret(b"".join(pieces))
