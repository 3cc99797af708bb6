"""The directory, lock file and socket of a gateway, made so that no other user can replace them.

Called by `server.py` to claim the place and by `client.py` to find it. A lock file that the living
gateway holds (flock) names it. The kernel releases the lock of a killed gateway, so a socket
without a lock is a leftover and is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable
from keyhole.system.walk import Descent, LinkInPath

if TYPE_CHECKING:
    from pathlib import Path

SOCKET = "control.sock"
LOCK = "control.lock"
_NEW = "control.sock.new"

BACKLOG = 64
"""Connections that wait to be accepted."""

HOLDER_SECONDS = 0.5
"""How long to wait until the holder of a lock has written its number: it takes microseconds."""

_HOLDER_PAUSE = 0.005
_MAX_TRIES = 16
"""How often the lock file may be replaced while it is being locked."""

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


HELD = "a gateway is running already"


def socket_location(runtime: Path | None, state: Path) -> Path:
    """The socket's directory: in XDG_RUNTIME_DIR, or else in Keyhole's state directory.

    A relative XDG_RUNTIME_DIR counts as none (XDG Base Directory Specification: "the application
    should consider the path invalid and ignore it").
    """
    return state / "run" if runtime is None or not runtime.is_absolute() else runtime / "keyhole"


def open_directory(path: Path, *, make: bool) -> int:
    """Open the socket's directory (O_PATH), and check every step of its path.

    No step may be a link or belong to anyone but root and this user; none may be writable by
    others, except above the last but one, where the sticky bit keeps them from renaming. Raises
    ResourceUnusable; FileNotFoundError if it is missing and not to be made.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise ResourceUnusable(f"{path}: not an absolute path; set XDG_RUNTIME_DIR to one")
    parts = path.parts[1:]
    with Descent() as descent:
        for number, part in enumerate(parts):
            at = path.parents[len(parts) - number - 1]
            _judge(descent.descriptor, at, closest=number >= len(parts) - 1)
            _enter(descent, part, at / part, make=make)
        _judge_own(descent.descriptor, path)
        return descent.take()


def _enter(descent: Descent, part: str, path: Path, *, make: bool) -> None:
    try:
        try:
            descent.enter(part)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):  # made by another gateway meanwhile
                os.mkdir(part, 0o700, dir_fd=descent.descriptor)
            descent.enter(part)
    except FileNotFoundError:
        missing = "there is no such directory"
        if make:  # and it cannot be made either: /proc, or a parent removed meanwhile
            raise ResourceUnusable(f"{path}: {missing}") from None
        raise FileNotFoundError(errno.ENOENT, missing, str(path)) from None
    except LinkInPath:
        raise ResourceUnusable(f"{path}: is a link; name the directory that it leads to") from None
    except OSError as error:
        raise ResourceUnusable(
            f"{path}: {(error.strerror or 'cannot be opened').lower()}"
        ) from None
    if not stat.S_ISDIR(os.fstat(descent.descriptor).st_mode):
        raise ResourceUnusable(f"{path}: is not a directory; move it away")


def _judge(directory: int, path: Path, *, closest: bool) -> None:
    found = os.fstat(directory)
    if found.st_uid not in (0, os.geteuid()):
        raise ResourceUnusable(
            f"{path}: belongs to uid {found.st_uid}, who could replace what is in it"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS and (closest or not found.st_mode & stat.S_ISVTX):
        raise ResourceUnusable(
            f"{path}: is writable by others; `chmod go-w` it, or use another directory"
        )


def _judge_own(directory: int, path: Path) -> None:
    found = os.fstat(directory)
    if found.st_uid != os.geteuid():
        raise ResourceUnusable(f"{path}: belongs to uid {found.st_uid}; move it away")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ResourceUnusable(f"{path}: is open to others; `chmod 700` it")


def socket_address(directory: int, name: str = SOCKET) -> str:
    """The path of a socket in an open directory, for bind and connect.

    It goes by the descriptor, so that it is the directory that was checked, and so that a long path
    fits: an address has room for 107 bytes.
    """
    return f"/proc/self/fd/{directory}/{name}"


class SocketClaim:
    """A claimed directory: made by `claim`, given back by `release`."""

    def __init__(self, path: Path, directory: int, lock: int) -> None:
        self.path = path
        self._directory = directory
        self._lock = lock
        self._pid = os.getpid()
        self._inode: int | None = None

    def listen(self) -> socket.socket:
        """Make the listening socket, and replace a leftover."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._put(sock)
        except OSError as error:
            sock.close()
            raise ResourceUnusable(f"{self.path / SOCKET}: {error.strerror}") from None
        except ResourceUnusable:
            sock.close()
            raise
        return sock

    def _put(self, sock: socket.socket) -> None:
        self._clear(SOCKET, remove=False)
        self._clear(_NEW)
        sock.setblocking(False)
        # Linux gives the file the mode of the unbound socket, so that it is never wider, and the
        # umask of the whole process need not change.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(socket_address(self._directory, _NEW))
        sock.listen(BACKLOG)
        made = os.stat(_NEW, dir_fd=self._directory, follow_symlinks=False)
        if stat.S_IMODE(made.st_mode) & 0o177 or made.st_uid != os.geteuid():
            raise ResourceUnusable(f"{self.path / SOCKET}: this file system does not keep its mode")
        # Renamed when it listens, so that a socket with this name always has a listener.
        os.rename(_NEW, SOCKET, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._inode = made.st_ino

    def _clear(self, name: str, *, remove: bool = True) -> None:
        """Remove a leftover socket; holding the lock proves that nothing listens on it."""
        try:
            found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ResourceUnusable(f"{self.path / name}: is not a socket; move it away")
        if remove:
            os.unlink(name, dir_fd=self._directory)

    def release(self) -> None:
        """Remove the socket, then release the lock. The lock file stays: if it were removed, two
        gateways could hold two locks of one name."""
        if self._lock < 0:
            return
        if self._pid == os.getpid():  # not in a forked child
            self._withdraw()
        os.close(self._lock)
        os.close(self._directory)
        self._lock = self._directory = -1

    def _withdraw(self) -> None:
        try:
            os.ftruncate(self._lock, 0)
            found = os.stat(SOCKET, dir_fd=self._directory, follow_symlinks=False)
            if found.st_ino == self._inode:
                os.unlink(SOCKET, dir_fd=self._directory)
        except OSError:
            return  # another process removed it


def claim_socket(path: Path) -> SocketClaim:
    """Claim the directory. Raises ResourceUnusable, which names the gateway that has it."""
    directory = open_directory(path, make=True)
    try:
        return SocketClaim(path, directory, _take_lock(directory, path))
    except BaseException:
        os.close(directory)
        raise


def _held(path: Path, pid: int | None) -> ResourceUnusable:
    holder = f"process {pid}" if pid else "another process"
    return ResourceUnusable(
        f"{HELD}: {holder} holds {path / LOCK}",
        "`keyhole status` shows it, `keyhole down` ends it",
    )


def _take_lock(directory: int, path: Path) -> int:
    for _ in range(_MAX_TRIES):
        lock = _open_lock(directory, path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(directory, lock):
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d\n" % os.getpid(), 0)
                return lock
        except BlockingIOError:
            holder = _holder(lock)
            os.close(lock)
            raise _held(path, holder) from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    raise ResourceUnusable(f"{path / LOCK}: is replaced again and again")


def _open_lock(directory: int, path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(LOCK, flags, 0o600, dir_fd=directory)
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else (error.strerror or "").lower()
        raise ResourceUnusable(f"{path / LOCK}: {why}; move it away") from None
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise ResourceUnusable(f"{path / LOCK}: is not a file; move it away")
    return lock


def _is_named(directory: int, lock: int) -> bool:
    """Whether the locked file is the one that has the name now."""
    try:
        return (
            os.stat(LOCK, dir_fd=directory, follow_symlinks=False).st_ino == os.fstat(lock).st_ino
        )
    except FileNotFoundError:
        return False


def _holder(lock: int) -> int | None:
    """The process number in the lock file. After a crash it is the dead gateway's, until the next
    one has written its own."""
    deadline = time.monotonic() + HOLDER_SECONDS
    while True:
        said = os.pread(lock, 32, 0).strip()
        if said.isdigit() and int(said) > 0 and _lives(int(said)):
            return int(said)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_HOLDER_PAUSE)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
