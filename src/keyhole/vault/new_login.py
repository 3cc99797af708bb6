"""Writes the file of a new login, in the place of an old one, and removes it.

Called when a person has logged in or out. Renewals lock the same directory, so that none of them
writes over a newer login. Nothing here raises while the tokens are in scope.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible
from keyhole.vault.json_document import read_document, write_document
from keyhole.vault.login_lock import locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.vault.json_document import Document
    from keyhole.vault.login_provider import LoginProvider

MAX_FILE = 256 * 1024
"""Bytes of a client's file that are read to be kept beside the new login."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BY_OTHERS = 0o022


def write_login(
    provider: LoginProvider, path: Path, compose: Callable[[Document], Document | None]
) -> str:
    """Write what `compose` makes of the document that is there, or of an empty one. Returns an
    error message."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = Path(os.path.realpath(path))
        directory = os.open(real.parent, _DIRECTORY)
    except OSError as error:
        return _words(path, error)
    try:
        if os.fstat(directory).st_mode & _BY_OTHERS:
            return f"others can write in {visible(str(real.parent))}: chmod go-w it"
        with locked(directory, provider.locks(real.parent), threading.Event()):
            return _replace(directory, real.name, compose)
    except ResourceUnusable as error:
        return str(error)
    except OSError as error:
        return _words(path, error)
    finally:
        os.close(directory)


def remove_login(path: Path) -> bool:
    """Remove the file; a renewal under way finishes first. Returns whether it was there.

    Raises ResourceUnusable.
    """
    try:
        directory = os.open(path.parent, _DIRECTORY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ResourceUnusable(_words(path, error)) from None
    try:
        with locked(directory, (), threading.Event()):
            os.unlink(path.name, dir_fd=directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ResourceUnusable(_words(path, error)) from None
    finally:
        os.close(directory)
    return True


def _replace(directory: int, name: str, compose: Callable[[Document], Document | None]) -> str:
    document = compose(_present(directory, name))
    if document is None:
        return "the answer has no token in a form that is understood"
    beside = f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(beside, _CREATE, 0o600, dir_fd=directory), "wb") as file:
            file.write(write_document(document))
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=directory)
    return ""


def _present(directory: int, name: str) -> Document:
    """The document that is there: a client keeps more in its file than the login."""
    try:
        with os.fdopen(os.open(name, _READ, dir_fd=directory), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            return read_document(file.read(MAX_FILE)) or {}
    except OSError:
        return {}


def _words(path: Path, error: OSError) -> str:
    return f"{visible(str(path))}: {(error.strerror or 'cannot be written').lower()}"
