"""The directory, the lock and the socket: made so that nobody else can stand in for the gateway.

Called by `server.py` to claim the place and by `client.py` to find it. A lock file that the living
gateway holds (flock) says who is there; the kernel lets go when it is killed, so a socket without a
lock is a leftover and is replaced.
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

if TYPE_CHECKING:
    from pathlib import Path

SOCKET = "control.sock"
LOCK = "control.lock"
_NEW = "control.sock.new"

BACKLOG = 64
"""Connections that wait to be accepted."""

HOLDER_SECONDS = 0.5
"""How long the holder of a lock is given to write down who it is: it takes microseconds."""

_HOLDER_PAUSE = 0.005
_MAX_TRIES = 16
"""How often the lock file may be replaced under our hands."""

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Unusable(Exception):
    """The place cannot be used; the message says why and what to do."""


class Missing(Unusable):
    """There is no such directory."""


HELD = "a gateway is running already"


class Held(Unusable):
    """Another gateway is there."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{HELD}: {who} holds {path / LOCK}; `keyhole status` shows it, `keyhole down` ends it"
        )
        self.pid = pid


def location(runtime: Path | None, state: Path) -> Path:
    """The socket's directory, by what XDG_RUNTIME_DIR says and where Keyhole keeps its state.

    A relative XDG_RUNTIME_DIR counts as none (XDG Base Directory Specification: "the application
    should consider the path invalid and ignore it").
    """
    return state / "run" if runtime is None or not runtime.is_absolute() else runtime / "keyhole"


def open_directory(path: Path, *, make: bool) -> int:
    """A descriptor (O_PATH) of the socket's directory, each step on the way to it judged.

    No step may be a link, nor belong to anybody but root or us; none may be writable by others,
    except, above the last but one, where the sticky bit keeps them from renaming what is ours.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise Unusable(f"{path}: not an absolute path; set XDG_RUNTIME_DIR to one")
    parts = path.parts[1:]
    here = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        for number, part in enumerate(parts):
            at = path.parents[len(parts) - number - 1]
            _judge(here, at, closest=number >= len(parts) - 1)
            below = _step(here, part, at / part, make=make)
            os.close(here)
            here = below
        _judge_own(here, path)
    except BaseException:
        os.close(here)
        raise
    return here


def _step(here: int, part: str, path: Path, *, make: bool) -> int:
    try:
        try:
            below = os.open(part, _STEP, dir_fd=here)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):  # made by another gateway meanwhile
                os.mkdir(part, 0o700, dir_fd=here)
            below = os.open(part, _STEP, dir_fd=here)
    except FileNotFoundError:
        raise Missing(f"{path}: there is no such directory") from None
    except OSError as error:
        raise Unusable(f"{path}: {(error.strerror or 'cannot be opened').lower()}") from None
    mode = os.fstat(below).st_mode
    if stat.S_ISDIR(mode):
        return below
    os.close(below)
    if stat.S_ISLNK(mode):
        raise Unusable(f"{path}: is a link; name the directory that it leads to")
    raise Unusable(f"{path}: is not a directory; move it away")


def _judge(directory: int, path: Path, *, closest: bool) -> None:
    found = os.fstat(directory)
    if found.st_uid not in (0, os.geteuid()):
        raise Unusable(f"{path}: belongs to uid {found.st_uid}, who could replace what is in it")
    if found.st_mode & _WRITABLE_BY_OTHERS and (closest or not found.st_mode & stat.S_ISVTX):
        raise Unusable(f"{path}: is writable by others; `chmod go-w` it, or use another directory")


def _judge_own(directory: int, path: Path) -> None:
    found = os.fstat(directory)
    if found.st_uid != os.geteuid():
        raise Unusable(f"{path}: belongs to uid {found.st_uid}; move it away")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise Unusable(f"{path}: is open to others; `chmod 700` it")


def address(directory: int, name: str = SOCKET) -> str:
    """Where a socket in an open directory is, for bind and connect.

    By the descriptor, so that it is the directory that was judged, however long its path is: an
    address has room for 107 bytes.
    """
    return f"/proc/self/fd/{directory}/{name}"


class Claim:
    """The place while it is ours: made by `claim`, given back by `release`."""

    def __init__(self, path: Path, directory: int, lock: int) -> None:
        self.path = path
        self._directory = directory
        self._lock = lock
        self._pid = os.getpid()
        self._inode: int | None = None

    def listen(self) -> socket.socket:
        """The listening socket, in the place of a leftover if there is one."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._put(sock)
        except OSError as error:
            sock.close()
            raise Unusable(f"{self.path / SOCKET}: {error.strerror}") from None
        except Unusable:
            sock.close()
            raise
        return sock

    def _put(self, sock: socket.socket) -> None:
        self._clear(SOCKET, remove=False)
        self._clear(_NEW)
        sock.setblocking(False)
        # Linux gives the file the mode of the unbound socket: there is no moment when it is wider,
        # and no umask of the whole process to change meanwhile.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(address(self._directory, _NEW))
        sock.listen(BACKLOG)
        made = os.stat(_NEW, dir_fd=self._directory, follow_symlinks=False)
        if stat.S_IMODE(made.st_mode) & 0o177 or made.st_uid != os.geteuid():
            raise Unusable(f"{self.path / SOCKET}: this file system does not keep its mode")
        # At once and when it listens: a socket under its name always has somebody behind it.
        os.rename(_NEW, SOCKET, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._inode = made.st_ino

    def _clear(self, name: str, *, remove: bool = True) -> None:
        """Remove a leftover socket; the lock says that nobody is behind it."""
        try:
            found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise Unusable(f"{self.path / name}: is not a socket; move it away")
        if remove:
            os.unlink(name, dir_fd=self._directory)

    def release(self) -> None:
        """Remove the socket, then let go of the lock. The lock file stays: to remove it would let
        two gateways hold two locks of one name."""
        if self._lock < 0:
            return
        if self._pid == os.getpid():  # not in a child that was forked meanwhile
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
            return  # somebody has cleared it away


def claim(path: Path) -> Claim:
    """Take the place, or say who has it (Held)."""
    directory = open_directory(path, make=True)
    try:
        return Claim(path, directory, _take_lock(directory, path))
    except BaseException:
        os.close(directory)
        raise


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
            raise Held(path, holder) from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    raise Unusable(f"{path / LOCK}: is replaced again and again")


def _open_lock(directory: int, path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(LOCK, flags, 0o600, dir_fd=directory)
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else (error.strerror or "").lower()
        raise Unusable(f"{path / LOCK}: {why}; move it away") from None
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise Unusable(f"{path / LOCK}: is not a file; move it away")
    return lock


def _is_named(directory: int, lock: int) -> bool:
    """Whether the lock that was taken is that of the file which has the name now."""
    try:
        return (
            os.stat(LOCK, dir_fd=directory, follow_symlinks=False).st_ino == os.fstat(lock).st_ino
        )
    except FileNotFoundError:
        return False


def _holder(lock: int) -> int | None:
    """Who holds it, by its own word. After a crash the number of the dead stands there for as long
    as the next one needs to write its own."""
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
