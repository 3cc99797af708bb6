"""Named sandboxes: their records on disk, and their state.

Each has a directory: `record`, its settings; `life`, its state or how it ended; `log`, messages of
its supervisor; `lock`, which the supervisor holds while it lives and the kernel releases with it,
so that a killed one is recognised. No sandbox can write there. No engine is called here, so that
listing them is quick.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import re
import secrets
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.session.session_register import pin_process, read_own
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.system.processes import has_ended, started_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME = re.compile("[a-z][a-z0-9-]{0,30}")
_SESSION = re.compile("[0-9a-f]{12}")

MAX_BYTES = 256 * 1024
"""Bytes of a record: the command's words are most of it, and the kernel accepts no more of them."""

MAX_LEFT = 100
"""Findings of a sandbox that are kept."""

BUBBLEWRAP = "bwrap"
"""The runtime of a sandbox that is no container, as `policy.schema.RuntimeName` has it."""

STOP_SECONDS = 20.0
"""How long a supervisor may take to end: five seconds are its command's, some are the engine's."""


_LOCK = struct.Struct("hhqqi4x")
"""`struct flock` of <fcntl.h>: kind, whence, start, length, process."""
_WHOLE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class SandboxState(enum.StrEnum):
    """The states of a sandbox."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"
    """It runs, and its door is closed."""


class SandboxRecord(Struct, frozen=True):
    """The settings that a sandbox was made with; all paths are absolute."""

    name: str
    runtime: str
    image: str
    """Empty for bubblewrap, as are `engine` and `volume`."""
    engine: str
    """The path of the engine's socket."""
    policy: str
    directory: str
    """The directory in which `keyhole new` was typed, and in which its command starts."""
    command: tuple[str, ...]
    """Empty for a sandbox that idles."""
    volume: str
    """The engine's name for its home volume."""
    created: int
    changes: str = ""
    """`--changes` of `keyhole new`; empty: as the policy says."""

    @property
    def contained(self) -> bool:
        """Whether it is a container, and not a sandbox of bubblewrap."""
        return self.runtime != BUBBLEWRAP


class SandboxLifecycle(Struct, frozen=True):
    """The state of a sandbox while its supervisor lives; after that, how it ended."""

    session: str
    container: str = ""
    """The engine's id of its container, or the session's for bubblewrap. Empty until it runs."""
    pid: int = 0
    started: int = 0
    """When its supervisor started, in ticks since boot."""
    since: int = 0
    shared: bool = False
    """Whether its door is served by the gateway that `keyhole up` started."""
    closed: str = ""
    """Why its door is closed; empty while it is open."""
    code: int | None = None
    """The command's exit code, once it has ended."""
    left: tuple[str, ...] = ()
    """Files it left that the host may execute (I11)."""
    waiting: str = ""
    """A line about its changes that wait for a review."""


class NamedSandbox:
    """One named sandbox, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self.log = directory / "log"

    def record(self) -> SandboxRecord:
        """The settings that it was made with. Raises Refused when they cannot be read."""
        return _record(self._read("record"), self.name)

    def life(self) -> SandboxLifecycle:
        """The state that was last written."""
        try:
            return _life(self._read("life"))
        except Refused:
            return SandboxLifecycle("")

    def write_record(self, record: SandboxRecord) -> None:
        """Store the settings that it is made with."""
        self._write("record", record)

    def write_life(self, life: SandboxLifecycle) -> None:
        """Store its state; called by its supervisor alone."""
        self._write("life", life)

    def note_closed(self, why: str) -> None:
        """Store that its door was closed."""
        self.write_life(replace(self.life(), closed=why))

    def hold(self) -> int:
        """Lock it, until the descriptor is closed. Raises Refused if another process has it."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.directory / "lock", flags, 0o600)
        except OSError:
            raise no_such_sandbox(self.name) from None
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE)
            # Another process removed the directory: this lock is of an unlinked file.
            if os.stat(self.directory / "lock").st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            os.close(descriptor)
            raise no_such_sandbox(self.name) from None
        except BlockingIOError:
            pass
        os.close(descriptor)
        raise Refused(f"{self.name} runs already, or is being started or removed")

    def is_held(self) -> bool:
        """Whether it is locked: it runs, or is about to. Checked without taking the lock, which
        would keep it from being started in that moment."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            kind: int = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE))[0]
        finally:
            os.close(descriptor)
        return kind != fcntl.F_UNLCK

    def state(self) -> SandboxState:
        """The state as far as it is known here; a shared gateway knows whether it still serves
        it."""
        if not self.is_held():
            return SandboxState.STOPPED
        life = self.life()
        if not life.container or life.code is not None:
            return SandboxState.STARTING
        return SandboxState.CLOSED if life.closed else SandboxState.RUNNING

    def running(self) -> tuple[SandboxRecord, SandboxLifecycle]:
        """The lifecycle of a running sandbox. Raises Refused for any other."""
        record, life = self.record(), self.life()
        state = self.state()
        if state is SandboxState.STOPPED:
            raise Refused(f"{self.name} is stopped; `keyhole start {self.name}` starts it")
        if state is SandboxState.STARTING:
            raise Refused(f"{self.name} is only being started; try again in a moment")
        return record, life

    def stop(self) -> SandboxLifecycle:
        """Stop it; its command has a few seconds. Returns how it ended. Raises Refused if it does
        not run."""
        if not self.is_held():
            raise Refused(f"{self.name} is not running")
        life = self.life()
        process = pin_process(life.pid, life.started) if life.pid else None
        if process is None:
            raise Refused(f"{self.name} is only being started; try again in a moment")
        try:
            for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
                if has_ended(process, seconds):
                    return self.life()
        finally:
            os.close(process)
        raise Refused(f"{self.name}: process {life.pid} does not end")

    def remove(self) -> None:
        """Remove its records. The caller has the lock, and nothing else of it is left."""
        # The lock last: it shows other processes that it is in use.
        for name in sorted(os.listdir(self.directory), key=lambda name: name == "lock"):
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _read(self, what: str) -> dict[str, Any]:
        path = self.directory / what
        try:
            found = json.loads(read_own(path, MAX_BYTES))
        except FileNotFoundError:
            raise no_such_sandbox(self.name) from None
        except (OSError, ValueError, RecursionError):
            raise Refused(f"{visible(str(path))} cannot be read") from None
        return found if isinstance(found, dict) else {}

    def _write(self, what: str, value: SandboxRecord | SandboxLifecycle) -> None:
        table = {name: getattr(value, name) for name in type(value).__struct_fields__}
        temporary = self.directory / f"{what}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(table, file)
        temporary.replace(self.directory / what)


def no_such_sandbox(name: str) -> Refused:
    """The error for a name that no sandbox has."""
    return Refused(f"there is no sandbox '{visible(name)}'; `keyhole ps` lists them")


def is_sandbox_name(text: str) -> bool:
    """Whether the text can be a sandbox's name: it must not look like a session's id."""
    return bool(_NAME.fullmatch(text)) and not _SESSION.fullmatch(text)


def find_sandbox(top: Path, name: str) -> NamedSandbox:
    """The sandbox of this name. Refused when there is none."""
    if not is_sandbox_name(name) or not (top / name / "record").exists():
        raise no_such_sandbox(name)
    return NamedSandbox(top / name)


def list_sandboxes(top: Path) -> Iterator[NamedSandbox]:
    """All of them, by name."""
    with contextlib.suppress(OSError):
        for path in sorted(top.iterdir()):
            if is_sandbox_name(path.name) and (path / "record").exists():
                yield NamedSandbox(path)


def refuse_taken_name(top: Path, name: str) -> None:
    """Raise Refused when a sandbox has this name, or no sandbox can."""
    if not is_sandbox_name(name):
        raise Refused(
            f"'{visible(name)}' is no name: it has up to 31 lower-case letters, digits and "
            "dashes, begins with a letter, and does not look like the id of a session"
        )
    if (top / name / "record").exists():
        raise Refused(
            f"there is a sandbox {name} already; `keyhole start {name}` starts it, "
            f"`keyhole destroy {name}` removes it"
        )


def make_sandbox(top: Path, record: SandboxRecord) -> NamedSandbox:
    """Make the directory of a new sandbox. Raises Refused when the name is taken or not valid."""
    refuse_taken_name(top, record.name)
    made = NamedSandbox(top / record.name)
    try:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One may be left by a process that was killed early.
        made.directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"{visible(str(top))}: {error.strerror}") from None
    lock = made.hold()
    try:
        refuse_taken_name(top, record.name)
        made.write_record(record)
    finally:
        os.close(lock)
    return made


def new_volume(name: str) -> str:
    """A name for the home volume of a new sandbox, never that of an earlier sandbox."""
    return f"keyhole-home-{name}-{secrets.token_hex(6)}"


def new_lifecycle(session: str, *, shared: bool) -> SandboxLifecycle:
    """The lifecycle of a sandbox whose supervisor is this process."""
    pid = os.getpid()
    return SandboxLifecycle(session, "", pid, started_ticks(pid) or 0, int(time.time()), shared)


def _record(table: dict[str, Any], name: str) -> SandboxRecord:
    try:
        found = SandboxRecord(
            name=str(table["name"]),
            runtime=str(table["runtime"]),
            image=str(table["image"]),
            engine=str(table["engine"]),
            policy=str(table["policy"]),
            directory=str(table["directory"]),
            command=tuple(map(str, table["command"])),
            volume=str(table["volume"]),
            created=int(table["created"]),
            changes=str(table.get("changes", "")),
        )
    except (KeyError, TypeError, ValueError):
        raise Refused(f"what is kept of {name} cannot be read; destroy it") from None
    own = found.name == name and found.policy.startswith("/") and found.directory.startswith("/")
    if found.contained:
        own = own and found.engine.startswith("/") and found.volume.startswith("keyhole-home-")
    if not own:
        raise Refused(f"what is kept of {name} is not its own; destroy it")
    return found


def _life(table: dict[str, Any]) -> SandboxLifecycle:
    code = table.get("code")
    return SandboxLifecycle(
        session=str(table.get("session", "")),
        container=str(table.get("container", "")),
        pid=_number(table.get("pid")),
        started=_number(table.get("started")),
        since=_number(table.get("since")),
        shared=table.get("shared") is True,
        closed=str(table.get("closed", "")),
        code=code if isinstance(code, int) else None,
        left=tuple(map(str, table.get("left") or ()))[:MAX_LEFT],
        waiting=str(table.get("waiting", "")),
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1 << 53 else 0
