"""A client's login file: opened with care, read whole, replaced whole.

Called by `login_source.py`. As with any file that a secret is in, every step of the way to it is
judged; beyond that, a login file that the sandbox could write is refused, since it decides which
account sends requests (I6, I11). A new file keeps the mode and owner, and is complete on disk
before it takes the old one's name."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible
from keyhole.vault.checked_open import open_regular
from keyhole.vault.custody import MAX_SIZE
from keyhole.vault.file_facts import FileFacts, objection
from keyhole.vault.json_document import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.vault.checked_open import OpenedFile
    from keyhole.vault.json_document import Document

ROOM = 16 * 1024
"""Bytes by which a file may grow with new tokens. They are reserved before a token is spent, so
that a full disk does not lose the new one."""

SETTLING = 5
"""Times that a file which is no JSON is read again: clients empty it before they write it."""

_SETTLE = 0.05
"""Seconds between these."""

_SUFFIX = ".keyhole"
"""Suffix of the new file beside the old one. Only one renewer works at a time, so the name is
free."""

_BY_EVERYBODY = 0o002
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LoginFileContents(Struct, frozen=True, eq=False):
    """The content of a login file at one moment."""

    document: Document

    def __repr__(self) -> str:
        return "Contents(…)"


class LoginFile:
    """One login file, by its real path. Open until it is closed."""

    def __init__(self, path: Path, writable: Iterable[Path] = ()) -> None:
        self._path, self._writable = path, tuple(writable)
        opened = self._open()
        try:
            self.real = Path(opened.path)
            # The client's own directory: the file itself may be linked out of it.
            self.home = Path(os.path.realpath(path.parent))
            self.directory = self._open_directory(os.fstat(opened.descriptor))
        finally:
            os.close(opened.descriptor)

    def close(self) -> None:
        """Close the directory, and so release a lock on it."""
        os.close(self.directory)

    def read(self) -> LoginFileContents:
        """Read the whole file now. Raises ResourceUnusable if it is not a usable login file."""
        for _ in range(SETTLING):
            found = self._read()
            if found is not None:
                return found
            time.sleep(_SETTLE)
        raise ResourceUnusable(f"{self._shown}: not a JSON object")

    def prepare(self) -> Replacement:
        """Make the new file, with room for its content.

        Raises ResourceUnusable before anything is lost.
        """
        try:
            old = os.stat(self.real.name, dir_fd=self.directory, follow_symlinks=False)
            descriptor = os.open(self._beside, _CREATE, 0o600, dir_fd=self.directory)
        except OSError as error:
            raise self._unfit(error) from None
        made = Replacement(descriptor, self.directory, self._beside, self.real.name)
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            os.posix_fallocate(descriptor, 0, old.st_size + ROOM)
        except OSError as error:
            made.discard()
            raise self._unfit(error) from None
        return made

    def recover(self) -> None:
        """Finish the work of a renewer that was killed: its new file is complete, or there is none.
        Called under the lock. A newer login stays."""
        try:
            left = os.open(self._beside, _READ, dir_fd=self.directory)
        except OSError:
            return
        with os.fdopen(left, "rb", buffering=0) as file:
            facts, old = os.fstat(left), self._stat()
            complete = read_document(file.read(MAX_SIZE)) is not None
        own = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
        with contextlib.suppress(OSError):
            if own and complete and old and old.st_mtime_ns <= facts.st_mtime_ns:
                _take_name(self.directory, self._beside, self.real.name)
            else:
                os.unlink(self._beside, dir_fd=self.directory)

    def _open(self) -> OpenedFile:
        try:
            opened = open_regular(self._path, self._writable)
        except ResourceUnusable as error:
            raise ResourceUnusable(f"{visible(str(self._path))}: {error}") from None
        if opened.exposed:
            os.close(opened.descriptor)
            shown = visible(str(self._path))
            raise ResourceUnusable(
                f"{shown} lies where the sandbox can write, and says who you are"
            )
        return opened

    def _open_directory(self, file: os.stat_result) -> int:
        """Open the directory of the file that was judged; it is locked, and written in later."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            directory = os.open(self.real.parent, flags)
        except OSError as error:
            raise self._unfit(error) from None
        self.directory = directory
        found, here = self._stat(), os.fstat(directory)
        why = ""
        if found is None or (found.st_dev, found.st_ino) != (file.st_dev, file.st_ino):
            why = f"{self._shown} was replaced while it was opened; try again"
        elif here.st_mode & _BY_EVERYBODY:
            why = f"everybody can write in {visible(str(self.real.parent))}"
        if why:
            os.close(directory)
            raise ResourceUnusable(why)
        return directory

    def _read(self) -> LoginFileContents | None:
        opened = self._open()
        try:
            why = objection(FileFacts.of(opened.descriptor, opened.path), os.geteuid())
            if why:
                raise ResourceUnusable(f"{self._shown}: {why}")
            if Path(opened.path) != self.real:
                raise ResourceUnusable(f"{self._shown} was moved meanwhile; try again")
            return _parse(opened.descriptor)
        finally:
            os.close(opened.descriptor)

    def _stat(self) -> os.stat_result | None:
        try:
            return os.stat(self.real.name, dir_fd=self.directory, follow_symlinks=False)
        except OSError:
            return None

    @property
    def _beside(self) -> str:
        return f".{self.real.name.removeprefix('.')}{_SUFFIX}"

    @property
    def _shown(self) -> str:
        return visible(str(self.real))

    def _unfit(self, error: OSError) -> ResourceUnusable:
        words = (error.strerror or "cannot be used").lower()
        return ResourceUnusable(f"{self._shown} cannot be replaced: {words}")


class Replacement:
    """The new file beside the old one: made before a token is spent, and renamed when it is
    complete."""

    def __init__(self, descriptor: int, directory: int, beside: str, name: str) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._beside = beside
        self._name = name

    def finish(self, contents: LoginFileContents) -> str:
        """Write it, and rename it over the old one. Returns an error message; raises nothing."""
        try:
            data = write_document(contents.document)
            with os.fdopen(self._descriptor, "wb") as file:
                file.write(data)
                file.truncate()
                os.fsync(self._descriptor)
            # It is complete from now on: the next process can finish this (`recover`).
            _take_name(self._directory, self._beside, self._name)
        except OSError as error:
            return (error.strerror or "cannot be written").lower()
        return ""

    def discard(self) -> None:
        """Remove it; the old one stays."""
        os.close(self._descriptor)
        with contextlib.suppress(OSError):
            os.unlink(self._beside, dir_fd=self._directory)


def _take_name(directory: int, beside: str, name: str) -> None:
    os.rename(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def _parse(descriptor: int) -> LoginFileContents | None:
    data = b""
    while len(data) <= MAX_SIZE and (piece := os.read(descriptor, MAX_SIZE + 1 - len(data))):
        data += piece
    document = read_document(data)
    return LoginFileContents(document) if document is not None else None
