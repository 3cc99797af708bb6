"""Sandboxes that are kept under a name: what is known of each on disk, and whether it lives.

A directory for each: `record`, what it was made with; `life`, how it is or how it ended; `log`,
what its supervisor said; `lock`, which the supervisor holds for as long as it lives and the kernel
takes away with it, so that a killed one is told from one that runs. No sandbox can write there. No
engine is asked here, so that listing them is quick.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import re
import secrets
import select
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from keyhole.app.leftovers import pin, read_own
from keyhole.model.text import visible
from keyhole.model.value import dataclass, field_names, replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME = re.compile("[a-z][a-z0-9-]{0,30}")
_SESSION = re.compile("[0-9a-f]{12}")

MAX_BYTES = 256 * 1024
"""Of a record: a command's words are most of it, and the kernel takes no more at once."""

MAX_LEFT = 100
"""Lines that are kept of what a sandbox left for the host to execute."""

STOP_SECONDS = 20.0
"""How long a supervisor may take to end: five seconds are its command's, some are the engine's."""


_LOCK = struct.Struct("hhqqi4x")
"""`struct flock` of <fcntl.h>: kind, whence, start, length, process."""
_WHOLE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class NotPossible(Exception):
    """What was asked cannot be done with this sandbox; says why, and what can."""


class State(enum.StrEnum):
    """How a sandbox is."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"
    """It runs, and nothing in it reaches anything any more."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a sandbox was made with; all paths are absolute."""

    name: str
    runtime: str
    image: str
    engine: str
    """The path of the engine's socket."""
    policy: str
    directory: str
    """Where its command starts, and what was typed there."""
    command: tuple[str, ...]
    """Empty for one that idles."""
    volume: str
    """What the engine calls its home."""
    created: int


@dataclass(frozen=True, slots=True)
class Life:
    """How it is, while its supervisor lives; else how it ended."""

    session: str
    container: str = ""
    """Empty until it runs."""
    pid: int = 0
    started: int = 0
    """When its supervisor did, in ticks since boot."""
    since: int = 0
    shared: bool = False
    """Whether its door is served by the gateway that `keyhole up` started."""
    closed: str = ""
    """Why its door is closed; empty while it is open."""
    code: int | None = None
    """Its command's exit code, once it has ended."""
    left: tuple[str, ...] = ()
    """Files it left that the host may execute (I11)."""


class Named:
    """One of them, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self.log = directory / "log"

    def record(self) -> Record:
        """What it was made with. NotPossible when that cannot be read."""
        return _record(self._read("record"), self.name)

    def life(self) -> Life:
        """How it was when that was last written."""
        try:
            return _life(self._read("life"))
        except NotPossible:
            return Life("")

    def write_record(self, record: Record) -> None:
        """Remember what it is made with."""
        self._write("record", record)

    def write_life(self, life: Life) -> None:
        """Say how it is; by its supervisor alone."""
        self._write("life", life)

    def note_closed(self, why: str) -> None:
        """Its door was closed."""
        self.write_life(replace(self.life(), closed=why))

    def hold(self) -> int:
        """Be the one who acts on it, until the descriptor is closed. NotPossible if another is."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.directory / "lock", flags, 0o600)
        except OSError:
            raise no_such(self.name) from None
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE)
            # Whoever removed the directory held the lock of a file that has no name any more.
            if os.stat(self.directory / "lock").st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            os.close(descriptor)
            raise no_such(self.name) from None
        except BlockingIOError:
            pass
        os.close(descriptor)
        raise NotPossible(f"{self.name} runs already, or is being started or removed")

    def is_held(self) -> bool:
        """Whether somebody holds it: it runs, or is about to. Asked without holding it oneself,
        which would keep it from being started in that moment."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            kind: int = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE))[0]
        finally:
            os.close(descriptor)
        return kind != fcntl.F_UNLCK

    def state(self) -> State:
        """As far as it is known here; a shared gateway knows whether it still serves it."""
        if not self.is_held():
            return State.STOPPED
        life = self.life()
        if not life.container or life.code is not None:
            return State.STARTING
        return State.CLOSED if life.closed else State.RUNNING

    def running(self) -> tuple[Record, Life]:
        """Of one that runs. NotPossible for every other."""
        record, life = self.record(), self.life()
        state = self.state()
        if state is State.STOPPED:
            raise NotPossible(f"{self.name} is stopped; `keyhole start {self.name}` starts it")
        if state is State.STARTING:
            raise NotPossible(f"{self.name} is only being started; try again in a moment")
        return record, life

    def stop(self) -> Life:
        """End it: its command has a few seconds. How it ended; NotPossible if it does not run."""
        if not self.is_held():
            raise NotPossible(f"{self.name} is not running")
        life = self.life()
        process = pin(life.pid, life.started) if life.pid else None
        if process is None:
            raise NotPossible(f"{self.name} is only being started; try again in a moment")
        try:
            for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
                if select.select([process], [], [], seconds)[0]:
                    return self.life()
        finally:
            os.close(process)
        raise NotPossible(f"{self.name}: process {life.pid} does not end")

    def remove(self) -> None:
        """Forget it. By whoever holds it, when nothing of it is left elsewhere."""
        # The lock last: it is by what others know that somebody holds it.
        for name in sorted(os.listdir(self.directory), key=lambda name: name == "lock"):
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _read(self, what: str) -> dict[str, Any]:
        path = self.directory / what
        try:
            found = json.loads(read_own(path, MAX_BYTES))
        except FileNotFoundError:
            raise no_such(self.name) from None
        except (OSError, ValueError, RecursionError):
            raise NotPossible(f"{visible(str(path))} cannot be read") from None
        return found if isinstance(found, dict) else {}

    def _write(self, what: str, value: Record | Life) -> None:
        table = {name: getattr(value, name) for name in field_names(type(value))}
        temporary = self.directory / f"{what}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(table, file)
        temporary.replace(self.directory / what)


def no_such(name: str) -> NotPossible:
    """A name of nothing."""
    return NotPossible(f"there is no sandbox '{visible(name)}'; `keyhole ps` lists them")


def is_name(text: str) -> bool:
    """Whether a sandbox can be called so: never what could be a session's id."""
    return bool(_NAME.fullmatch(text)) and not _SESSION.fullmatch(text)


def find(top: Path, name: str) -> Named:
    """The sandbox of this name. NotPossible when there is none."""
    if not is_name(name) or not (top / name / "record").exists():
        raise no_such(name)
    return Named(top / name)


def every(top: Path) -> Iterator[Named]:
    """All of them, by name."""
    with contextlib.suppress(OSError):
        for path in sorted(top.iterdir()):
            if is_name(path.name) and (path / "record").exists():
                yield Named(path)


def refuse_taken(top: Path, name: str) -> None:
    """NotPossible when a sandbox has this name, or none can."""
    if not is_name(name):
        raise NotPossible(
            f"'{visible(name)}' is no name: it has up to 31 lower-case letters, digits and "
            "dashes, begins with a letter, and does not look like the id of a session"
        )
    if (top / name / "record").exists():
        raise NotPossible(
            f"there is a sandbox {name} already; `keyhole start {name}` starts it, "
            f"`keyhole destroy {name}` removes it"
        )


def make(top: Path, record: Record) -> Named:
    """A directory for a new one. NotPossible when the name is taken, or is none."""
    refuse_taken(top, record.name)
    made = Named(top / record.name)
    try:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One may be there of who was killed before it was anything.
        made.directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise NotPossible(f"{visible(str(top))}: {error.strerror}") from None
    lock = made.hold()
    try:
        refuse_taken(top, record.name)
        made.write_record(record)
    finally:
        os.close(lock)
    return made


def new_volume(name: str) -> str:
    """What the engine calls the home of a new sandbox; never what another of that name had."""
    return f"keyhole-home-{name}-{secrets.token_hex(6)}"


def new_life(session: str, *, shared: bool) -> Life:
    """Of one whose supervisor is this process."""
    from keyhole.app.leftovers import started_at

    pid = os.getpid()
    return Life(session, "", pid, started_at(pid) or 0, int(time.time()), shared)


def _record(table: dict[str, Any], name: str) -> Record:
    try:
        found = Record(
            name=str(table["name"]),
            runtime=str(table["runtime"]),
            image=str(table["image"]),
            engine=str(table["engine"]),
            policy=str(table["policy"]),
            directory=str(table["directory"]),
            command=tuple(map(str, table["command"])),
            volume=str(table["volume"]),
            created=int(table["created"]),
        )
    except (KeyError, TypeError, ValueError):
        raise NotPossible(f"what is kept of {name} cannot be read; destroy it") from None
    absolute = all(path.startswith("/") for path in (found.engine, found.policy, found.directory))
    if found.name != name or not absolute or not found.volume.startswith("keyhole-home-"):
        raise NotPossible(f"what is kept of {name} is not its own; destroy it")
    return found


def _life(table: dict[str, Any]) -> Life:
    code = table.get("code")
    return Life(
        session=str(table.get("session", "")),
        container=str(table.get("container", "")),
        pid=_number(table.get("pid")),
        started=_number(table.get("started")),
        since=_number(table.get("since")),
        shared=table.get("shared") is True,
        closed=str(table.get("closed", "")),
        code=code if isinstance(code, int) else None,
        left=tuple(map(str, table.get("left") or ()))[:MAX_LEFT],
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1 << 53 else 0
