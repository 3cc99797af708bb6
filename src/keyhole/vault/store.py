"""Keyhole's own store: a directory of the user's alone, one file for each secret.

`keyhole secret` keeps and lists entries; the vault reads them by `store:NAME`. Each is in
the desktop's keyring, which the file points to; or encrypted; or, on explicit request, plain. A
replacement is atomic: a concurrent reader gets the old secret or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.model.text import visible
from keyhole.vault.custody import admit_reading
from keyhole.vault.interface import mark_of
from keyhole.vault.keyrings import Keyrings
from keyhole.vault.store_file import (
    MAX_FILE,
    MAX_HEADER,
    StorageForm,
    StoredSecret,
    read_entry,
    read_file,
    write_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyhole.model.secret import Secret
    from keyhole.vault.envelope import StoreKey
    from keyhole.vault.interface import SecretReading

DIRECTORY = "secrets"
"""The directory's name in Keyhole's state directory."""

SERVICE = "keyhole"
"""The service name of the store's entries in the desktop's keyring."""

MAX_NAME = 64
"""Characters of a name: far below the limit of any file system, and most keys that someone pastes
instead of a name are longer."""

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")
_SUFFIX = ".secret"
_KEY_FILE = "passphrase.key"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Store:
    """The store's directory. It is opened for each action, and nothing of it is kept in memory."""

    def __init__(self, path: Path, keyrings: Keyrings | None = None) -> None:
        self.path = path
        self.keyrings = keyrings or Keyrings()

    def entries(self) -> tuple[StoredSecret, ...]:
        """All stored secrets, by name."""
        with self._opened() as directory:
            names = os.listdir(directory) if directory is not None else []
        found = (self.find(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
        return tuple(sorted((entry for entry in found if entry), key=lambda entry: entry.name))

    def find(self, name: str) -> StoredSecret | None:
        """The secret that is stored under a name."""
        data = self._read(name + _SUFFIX, MAX_HEADER) if is_name(name) else None
        return read_entry(name, data) if data is not None else None

    def mark(self, name: str) -> object:
        """A mark that changes when the secret is replaced or removed."""
        return mark_of(self.path / (name + _SUFFIX))

    def load(self, name: str, key: StoreKey | None) -> SecretReading:
        """The secret, or why it cannot be used; an encrypted one needs the key."""
        data = self._read(name + _SUFFIX, MAX_FILE + 1) if is_name(name) else None
        return read_file(name, data or b"", key, lambda: self.keyrings.read(SERVICE, name))

    def keep_plain(self, name: str, reading: SecretReading, *, unsafe_short: bool = False) -> None:
        """Store it in a file that only its owner reads; SecretUnavailable where it must not be."""
        from keyhole.vault.envelope import unencrypted

        secret = self._admitted(name, reading, unsafe_short=unsafe_short)
        header = write_header(
            StoredSecret(name, StorageForm.PLAIN, int(time.time())), insisted=reading.short
        )
        self._move_in(name, lambda: header + unencrypted(secret))

    def keep_in_keyring(
        self, name: str, reading: SecretReading, *, unsafe_short: bool = False
    ) -> None:
        """Store it in the desktop's keyring; SecretUnavailable where it must not be."""
        secret = self._admitted(name, reading, unsafe_short=unsafe_short)
        entry = StoredSecret(name, StorageForm.KEYRING, int(time.time()))
        header = write_header(entry, insisted=reading.short)
        with self._opened(create=True):
            pass  # a store that cannot be used is known before the keyring has it
        try:
            self.keyrings.keep(SERVICE, name, secret)
        except ResourceUnusable as error:
            message = f"{error}; --encrypted keeps it without the keyring"
            raise ResourceUnusable(message) from None
        # Written last: a process that sees the new file reads the new secret.
        self._write(name + _SUFFIX, lambda: header)

    def keep_encrypted(
        self, name: str, reading: SecretReading, key: StoreKey, *, unsafe_short: bool = False
    ) -> None:
        """Store it encrypted; SecretUnavailable where it must not be."""
        secret = self._admitted(name, reading, unsafe_short=unsafe_short)
        entry = StoredSecret(name, StorageForm.ENCRYPTED, int(time.time()))
        header = write_header(entry, insisted=reading.short)
        body = key.encrypt(secret, header)
        self._move_in(name, lambda: header + body + b"\n")

    def remove(self, name: str) -> bool:
        """Remove a secret, and with the last encrypted one the passphrase's key file. Returns
        whether it was there."""
        if self._in_keyring(name):
            self._forget(name)
        if not is_name(name) or not self._unlink(name + _SUFFIX):
            return False
        if not any(entry.kept is StorageForm.ENCRYPTED for entry in self.entries()):
            self._unlink(_KEY_FILE)
        return True

    def _move_in(self, name: str, compose: Callable[[], bytes]) -> None:
        """Write a file that contains its secret itself, and remove an old value from the
        keyring."""
        moved = self._in_keyring(name)
        self._write(name + _SUFFIX, compose)
        if moved:
            self._forget(name)

    def _in_keyring(self, name: str) -> bool:
        try:
            entry = self.find(name)
        except ResourceUnusable:
            return False  # the file there is no entry, and is replaced or removed
        return entry is not None and entry.kept is StorageForm.KEYRING

    def _forget(self, name: str) -> None:
        try:
            self.keyrings.forget(SERVICE, name)
        except ResourceUnusable as error:
            raise ResourceUnusable(f"{name} is still in the keyring: {error}") from None

    @property
    def key_file(self) -> bytes | None:
        """The file from which the passphrase opens the store's key; None while nothing is
        encrypted."""
        return self._read(_KEY_FILE, MAX_HEADER)

    def keep_key_file(self, file: bytes) -> None:
        """Write the key file, before the first encrypted secret and never over another."""
        self._write(_KEY_FILE, lambda: file, replace=False)

    def _admitted(self, name: str, reading: SecretReading, *, unsafe_short: bool) -> Secret:
        if not is_name(name):
            raise ResourceUnusable(
                f"a name has at most {MAX_NAME} letters, digits, '.', '_' and '-'"
            )
        return admit_reading(
            SecretRef(SecretScheme.STORE, name), reading, unsafe_short=unsafe_short
        ).secret

    # ── the directory ─────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[int | None]:
        """Open the directory, which must be the user's alone; None if there is none."""
        try:
            if create:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self.path, _READ | os.O_DIRECTORY)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise self._unusable(error) from None
        try:
            self._refuse_shared(os.fstat(directory), self._shown, "700")
            yield directory
        finally:
            os.close(directory)

    def _read(self, name: str, limit: int) -> bytes | None:
        """The first bytes of a file; None where there is none."""
        with self._opened() as directory:
            if directory is None:
                return None
            try:
                descriptor = os.open(name, _READ, dir_fd=directory)
                with os.fdopen(descriptor, "rb", buffering=0) as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode):
                        raise ResourceUnusable(f"{self._shown}/{visible(name)} is no regular file")
                    self._refuse_shared(found, f"{self._shown}/{visible(name)}", "600")
                    return file.read(limit)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._unusable(error) from None

    def _refuse_shared(self, found: os.stat_result, path: str, mode: str) -> None:
        if found.st_uid != os.geteuid():
            raise ResourceUnusable(f"{path} belongs to uid {found.st_uid}; move it away")
        if found.st_mode & 0o077:
            raise ResourceUnusable(f"others can reach {path}: chmod {mode} {path}")

    def _write(self, name: str, compose: Callable[[], bytes], *, replace: bool = True) -> None:
        """Write a file. `compose` makes the content where nothing raises."""
        with self._opened(create=True) as directory:
            if directory is None:
                raise ResourceUnusable(f"{self._shown} vanished while it was opened")
            fcntl.flock(directory, fcntl.LOCK_EX)
            error = _write_file(directory, name, compose, replace=replace)
        if error:
            raise ResourceUnusable(f"{self._shown}: {error}")

    def _unlink(self, name: str) -> bool:
        with self._opened() as directory:
            if directory is None:
                return False
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._unusable(error) from None
        return True

    def _unusable(self, error: OSError) -> ResourceUnusable:
        return ResourceUnusable(f"{self._shown}: {(error.strerror or 'cannot be used').lower()}")

    @property
    def _shown(self) -> str:
        return visible(str(self.path))


def is_name(text: str) -> bool:
    """Whether a secret can have this name."""
    return _NAME.fullmatch(text) is not None


def _write_file(directory: int, name: str, compose: Callable[[], bytes], *, replace: bool) -> str:
    """Write the whole file beside its place and rename it. Returns an error message."""
    temporary = f".{secrets.token_hex(8)}"
    try:
        if not replace and name in os.listdir(directory):
            return "it was changed meanwhile; try again"
        descriptor = os.open(temporary, _CREATE, 0o600, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(compose())
            file.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    except OSError as error:
        return (error.strerror or "cannot be written").lower()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
    return ""
