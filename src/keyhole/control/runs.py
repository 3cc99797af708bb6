"""Endpoints of runs that have a gateway of their own: a socket and a lock file for each.

A run claims its files here (`claim_run`) and serves the same API as a long-lived gateway; the verbs
find all live runs (`find_runs`). Both files are in a directory that is checked as the gateway's own
is. The lock file is locked (flock) from before it has its name until the run's process ends. A file
without a lock is a leftover of a killed run, and is removed by the verb that finds it.

The lock file names the run's processes, so that a verb can end the data plane of a run whose own
process is stopped (Ctrl-Z) and does not answer: the kill switch waits for nothing (I12).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.socket_directory import BACKLOG, open_directory, socket_address
from keyhole.model.errors import ResourceUnusable
from keyhole.system.processes import has_ended, started_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNS = "runs"
"""Directory of the runs' files, beside the gateway's socket."""

MAX_RECORD = 32 * 1024
"""Bytes of a lock file: a path of 4096 characters, each escaped, and a little more."""

MAX_RUNS = 4096
"""Runs that are listed; a host has a handful."""

GONE_SECONDS = 1.0
"""How long a process that was killed may take to be gone."""

NEW_SECONDS = 60.0
"""Age from which on an unfinished lock file is a leftover."""

_SOCKET, _LOCK, _NEW = ".sock", ".lock", ".new"
_ID_DIGITS = frozenset("0123456789abcdef")
_ID_LENGTH = 12
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ProcessIdentity(Struct, frozen=True):
    """A process of this host by number and start, which no two processes share."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a living process."""
        return cls(pid, started_ticks(pid) or 0)

    @property
    def lives(self) -> bool:
        """Whether it has not ended; True if that cannot be found out."""
        try:
            pidfd = self._pin()
        except OSError:
            return True
        if pidfd is None:
            return False
        try:
            return not has_ended(pidfd, 0)
        finally:
            os.close(pidfd)

    def end(self, grace: float = 0.0) -> bool:
        """Kill it, if it is still the same process; returns whether it is gone.

        With a `grace`, it gets a SIGTERM first and so many seconds to end by itself; a process that
        a terminal has stopped is continued for that.
        """
        try:
            pidfd = self._pin()
        except OSError:
            return False
        if pidfd is None:
            return True
        try:
            with contextlib.suppress(ProcessLookupError):
                if grace:
                    for number in (signal.SIGTERM, signal.SIGCONT):
                        signal.pidfd_send_signal(pidfd, number)
                    if has_ended(pidfd, grace):
                        return True
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return has_ended(pidfd, GONE_SECONDS)
        except PermissionError:
            return False
        finally:
            os.close(pidfd)

    def _pin(self) -> int | None:
        """A pidfd of it; None if it is gone. Raises OSError if no descriptor is left."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # The start was read after the pidfd was opened, so it belongs to this process.
        started = started_ticks(self.pid)
        if started == self.started:
            return pidfd
        unknown = started is None and not has_ended(pidfd, 0)
        os.close(pidfd)
        if unknown:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return None


class RunRecord(Struct, frozen=True):
    """The facts of a run that its lock file has."""

    session: str
    label: str
    policy: str
    opened: int
    main: ProcessIdentity
    """The process that holds the sandbox and the endpoint."""
    plane: ProcessIdentity
    """The process that serves its door."""


class RunClaim:
    """A run's claimed files; `release` removes them."""

    def __init__(self, directory: int, session: str, lock: int, listener: socket.socket) -> None:
        self._directory = directory
        self._session = session
        self._lock = lock
        self.listener = listener

    def release(self) -> None:
        """Stop listening, and remove both files. A second call does nothing."""
        if self._lock < 0:
            return
        self.listener.close()
        _remove(self._directory, self._session)
        os.close(self._lock)
        os.close(self._directory)
        self._lock = self._directory = -1


def claim_run(runtime: Path, record: RunRecord) -> RunClaim:
    """Claim the files of one run, and listen. Raises ResourceUnusable."""
    path = runtime / RUNS
    # The parent first: it is the gateway's own directory, and checked as such.
    os.close(open_directory(runtime, make=True))
    directory = open_directory(path, make=True)
    lock, listener = -1, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = _make_lock(directory, record)
        _put(listener, directory, record.session)
    except OSError as error:
        listener.close()
        if lock >= 0:
            _remove(directory, record.session)
            os.close(lock)
        os.close(directory)
        raise ResourceUnusable(f"{path}: {error.strerror}") from None
    return RunClaim(directory, record.session, lock, listener)


def _make_lock(directory: int, record: RunRecord) -> int:
    new = f"{record.session}.{secrets.token_hex(4)}{_NEW}"
    lock = os.open(new, _OPEN | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, _written(record))
        name = record.session + _LOCK
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.close(lock)
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=directory)
        raise
    return lock


def _put(listener: socket.socket, directory: int, session: str) -> None:
    listener.setblocking(False)
    # Linux gives the file the mode of the unbound socket, so that it is never wider.
    os.fchmod(listener.fileno(), 0o600)
    listener.bind(socket_address(directory, session + _SOCKET))
    listener.listen(BACKLOG)


def _remove(directory: int, session: str) -> None:
    for suffix in (_SOCKET, _LOCK):
        with contextlib.suppress(OSError):
            os.unlink(session + suffix, dir_fd=directory)


def _written(record: RunRecord) -> bytes:
    main, plane = record.main, record.plane
    said = {
        "label": record.label,
        "policy": record.policy,
        "opened": record.opened,
        "main": [main.pid, main.started],
        "plane": [plane.pid, plane.started],
    }
    return json.dumps(said).encode("ascii")[:MAX_RECORD]


def find_runs(runtime: Path) -> list[RunRecord]:
    """Live runs by id; removes the files that killed runs left. Raises ResourceUnusable."""
    try:
        directory = open_directory(runtime / RUNS, make=False)
    except FileNotFoundError:
        return []
    try:
        return sorted(_look(directory), key=lambda each: each.session)
    finally:
        os.close(directory)


def _look(directory: int) -> Iterator[RunRecord]:
    # Opened again for reading: the checked descriptor is O_PATH, which cannot list.
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        names = os.listdir(listed)[: 4 * MAX_RUNS]
    finally:
        os.close(listed)
    for name in names:
        session = name.partition(".")[0]
        if not _is_id(session) or not name.endswith((_LOCK, _NEW)):
            continue
        if name.endswith(_NEW) and not _is_old(directory, name):
            continue  # testing its lock now could keep the run from locking it
        found = _read(directory, name)
        if found is None:
            continue
        alive, said = found
        if not alive and name.endswith(_LOCK):
            _remove(directory, session)
        elif not alive:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
        elif name.endswith(_LOCK):
            record = _parse(session, said)
            if record is not None:
                yield record


def _is_old(directory: int, name: str) -> bool:
    """Whether it is a leftover; a run that starts locks its new file a moment later."""
    try:
        made = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
    except OSError:
        return False
    return time.time() - made > NEW_SECONDS


def _is_id(text: str) -> bool:
    return len(text) == _ID_LENGTH and set(text) <= _ID_DIGITS


def _read(directory: int, name: str) -> tuple[bool, bytes] | None:
    """Whether a lock file is held, and its content; None if it is gone or no lock file."""
    try:
        lock = os.open(name, _OPEN | os.O_RDONLY, dir_fd=directory)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, os.read(lock, MAX_RECORD)
        return False, b""
    finally:
        os.close(lock)


def _parse(session: str, said: bytes) -> RunRecord | None:
    try:
        match json.loads(said):
            case {
                "label": str(label),
                "policy": str(policy),
                "opened": int(opened),
                "main": [int(main), int(main_started)],
                "plane": [int(plane), int(plane_started)],
            }:
                main_process, plane_process = (
                    ProcessIdentity(main, main_started),
                    ProcessIdentity(plane, plane_started),
                )
                return RunRecord(session, label, policy, opened, main_process, plane_process)
    except (ValueError, RecursionError):
        pass
    return None


def socket_of(session: str) -> str:
    """The name of a run's socket in the directory of runs."""
    return session + _SOCKET
