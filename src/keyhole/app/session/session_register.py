"""The sessions of a gateway on disk, so that the next gateway finds those of one that died.

Written by the gateway, a small file for each open door; read by `keyhole up` before it serves. A
sandbox whose gateway is dead is of no use: the key of its CA is gone too. The process that holds it
is ended, if it is the very process that opened the session. The files are not trusted: a gateway
that was taken over can write here, and must not choose which processes the next one kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.model.text import visible
from keyhole.system.processes import has_ended, started_ticks

if TYPE_CHECKING:
    from pathlib import Path

END_SECONDS = 6.0
"""How long a sandbox may take to end by itself: a second more than its command is given."""

SUPERVISOR = b"keyhole-run"
"""The name that a process which holds a gateway's sandbox gives itself in the kernel."""

MAX_RECORD = 4096
"""Bytes of one file; it has some 100."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ID = re.compile("[0-9a-f]{12}")

_MAX_PID = 1 << 22


class OrphanedSession(Struct, frozen=True):
    """A session that a dead gateway left."""

    session: str
    label: str
    pid: int
    alive: bool
    """Whether its sandbox still ran, and was ended."""


class SessionRegister:
    """The directory with one file for each session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def enter(self, session: str, label: str, process: tuple[int, int]) -> None:
        """A door was opened for this process, named by its number and its start."""
        record = {"label": label, "pid": process[0], "started": process[1]}
        path = self._directory / f"{session}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)

    def remove(self, session: str) -> None:
        """The session has ended: remove its file."""
        (self._directory / f"{session}.json").unlink(missing_ok=True)

    def clear(self) -> list[OrphanedSession]:
        """End the sessions of a dead gateway and remove their records. The caller holds the
        gateway's lock."""
        found = [self._read(path) for path in sorted(self._directory.glob("*.json"))]
        pinned = [(each, pin_process(each["pid"], each["started"])) for each in found if each]
        for _, pidfd in pinned:
            if pidfd is not None:
                _send(pidfd, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        left = []
        for record, pidfd in pinned:
            if pidfd is not None:
                if not has_ended(pidfd, deadline - time.monotonic()):
                    _send(pidfd, signal.SIGKILL)
                    has_ended(pidfd, END_SECONDS)
                os.close(pidfd)
            left.append(
                OrphanedSession(
                    record["id"], record["label"], record["pid"], alive=pidfd is not None
                )
            )
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(OSError):  # a foreign directory
                path.unlink()
        return left

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record = json.loads(read_own(path))
            known: dict[str, Any] = {
                "id": path.stem,
                "label": visible(str(record["label"]))[:64],
                "pid": int(record["pid"]),
                "started": int(record["started"]),
            }
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return {}
        return known if _ID.fullmatch(path.stem) and 0 < known["pid"] <= _MAX_PID else {}


def read_own(path: Path, most: int = MAX_RECORD) -> bytes:
    """Read a small file of our own user, but no link, pipe or device. Raises OSError."""
    descriptor = os.open(path, _OPEN)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError("not a file of ours")
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def pin_process(pid: int, started: int) -> int | None:
    """A descriptor of a process that holds a sandbox, if the process with this number started at
    this time."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if os.getpid() != pid and started_ticks(pid) == started and _holds_a_sandbox(pid):
        return pidfd
    os.close(pidfd)
    return None


def _holds_a_sandbox(pid: int) -> bool:
    """Whether it is a run of our user at a gateway. Attack: a file names another process, and if we
    are root, anybody's."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            rows = dict(row.split(b":", 1) for row in file.read(4096).splitlines() if b":" in row)
        owners = {int(number) for number in rows[b"Uid"].split()}
    except (OSError, ValueError, KeyError):
        return False
    return rows[b"Name"].strip() == SUPERVISOR and owners == {os.geteuid()}


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, number)
