"""The record of a sandbox's first process, which outlives the run: it tells when a sandbox is gone.

A run can be killed. The kernel releases its locks at once, and ends its sandbox a moment later;
until then, code inside still writes. So the number of the sandbox's first process is written to a
file before that process runs: bubblewrap does it by `--info-fd`, and for a container the run does
it, with its holder. The kernel shows the first process of a process namespace as ended only when
every other process in it has ended.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from keyhole.system.processes import has_ended, started_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENDING_SECONDS = 5.0
"""How long the sandbox of a killed run may take to end, all of its processes included."""

_BOOT = "/proc/sys/kernel/random/boot_id"
_MAX_RECORD = 4096
"""Bytes of a record: three lines, and what bubblewrap writes about namespaces."""
_NOTED = re.compile(r"^([0-9]{1,10}) ([0-9]{1,20})$", re.MULTILINE)
_BY_BUBBLEWRAP = re.compile(r'"child-pid": ([0-9]{1,10})')


def prepare_record(path: Path) -> None:
    """Begin the record of a sandbox that is about to be made, in place of the last one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
        file.write(_boot())


def open_record(path: str) -> int:
    """A descriptor of the record, for bubblewrap to write to."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def note_process(path: str, pid: int) -> None:
    """Add a process that lives: the helper, which becomes bubblewrap, or a container's holder."""
    record = open_record(path)
    try:
        os.write(record, f"{pid} {started_ticks(pid) or 0}\n".encode("ascii"))
    finally:
        os.close(record)


def has_sandbox_ended(path: Path, seconds: float) -> bool:
    """Whether nothing of the recorded sandbox is left within these seconds. Without a record there
    was no sandbox."""
    until = time.monotonic() + seconds
    # The helper comes first: once it has ended, no number is added.
    for pidfd in _living(path, _noted):
        if not _ends(pidfd, until):
            return False
    return all(_ends(pidfd, until) for pidfd in _living(path, _made_by_bubblewrap))


def _ends(pidfd: int, until: float) -> bool:
    try:
        return has_ended(pidfd, until - time.monotonic())
    finally:
        os.close(pidfd)


def _living(path: Path, find: Callable[[str], list[int]]) -> Iterator[int]:
    """A descriptor of each of these processes that has not ended and been reaped."""
    text = _read(path)
    if not text.startswith(_boot()):
        return  # there is no record, or the host was started again since
    for pid in find(text):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        # The process is pinned: if it is the recorded one by now, it was when it was opened.
        if pid in find(text):
            yield pidfd
        else:
            os.close(pidfd)


def _noted(text: str) -> list[int]:
    """The noted processes that live, by number and start."""
    found = ((int(pid), int(started)) for pid, started in _NOTED.findall(text))
    return [pid for pid, started in found if started_ticks(pid) == started]


def _made_by_bubblewrap(text: str) -> list[int]:
    """The first process of the sandbox. Its start is not known: a number that another process has
    by now is told by that process, which is not the first one of a namespace. In doubt it counts
    as the sandbox's."""
    found = map(int, _BY_BUBBLEWRAP.findall(text))
    return [pid for pid in found if _is_first(pid)]


def _is_first(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            numbers = next((line for line in file if line.startswith("NSpid:")), "").split()
    except OSError:
        return True
    return not numbers or numbers[-1] == "1"


def _read(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(_MAX_RECORD)
    except FileNotFoundError:
        return ""


def _boot() -> str:
    with open(_BOOT, encoding="ascii") as file:
        return file.read()
