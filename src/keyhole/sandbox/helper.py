"""The helper, as seen from outside: started ahead of its launch, told what to start, ended.

It needs nothing but itself to begin with, so it is started before the policy is even read: it loads
and makes its empty network on another core, and then waits. It is told by `cli` or `start.py`. This
module is imported first of all in a run, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox import cgroup

if TYPE_CHECKING:
    from keyhole.sandbox.launch import Launch

SETUP_SECONDS = 30.0
"""How long the whole set-up may take; it takes about 0.1 s."""
TOOK_TOO_LONG = f"the set-up took over {SETUP_SECONDS:g} s"

MAX_REPORT = 65536
_MAX_DOOR_SOCKETS = 4
"""Three that are listened on, and one by which a holder has new interfaces told."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from keyhole.sandbox.enter import main
sys.exit(main())
"""
"""The helper needs no package but Keyhole's own, the one that runs here, so it need not look for
others (`-S`), which takes as long as a third of its imports."""

FAULT = "KEYHOLE_UNSAFE_FAULT"
"""For tests, the variable that names set-up steps after which the helper dies or halts, and what
the system is to refuse it, with commas between."""

TOLD = b"launch"
"""What comes with the descriptors of the launch and the three streams."""


class SetupFailed(Exception):
    """The walls could not be made or do not stand; nothing untrusted has run."""


class SandboxLost(SetupFailed):
    """It ran, and whoever ran it is gone: it was ended, and how it ended is not known."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What the command gets as standard input, output and error."""

    stdin: int
    stdout: int
    stderr: int


class DoorReader:
    """Puts together the message that carries the door, from whatever pieces it comes in."""

    def __init__(self) -> None:
        self._data = b""
        self._descriptors: list[int] = []

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        data = self._data
        return len(data) >= 4 and len(data) >= 4 + int(struct.unpack("=I", data[:4])[0])

    def read(self, control: socket.socket) -> None:
        """One piece more; raises SetupFailed when there is none."""
        try:
            more, descriptors, _, _ = socket.recv_fds(control, MAX_REPORT, _MAX_DOOR_SOCKETS)
        except ConnectionResetError:
            more, descriptors = b"", []  # it ended before it read what it was told
        self._descriptors += descriptors
        if not more:
            raise SetupFailed("the helper ended before the sandbox was made")
        self._data += more

    @property
    def namespace(self) -> str:
        """The network that it belongs to, as its maker names it."""
        return str(json.loads(self._data[4:]).get("door", ""))

    def sockets(self) -> list[socket.socket]:
        """The door; raises SetupFailed when the helper says why there is none."""
        message = json.loads(self._data[4:])
        if "error" in message:
            raise SetupFailed(message["error"])
        return [socket.socket(fileno=descriptor) for descriptor in self._descriptors]


class Helper:
    """A process of our own interpreter that runs `enter.py`, a child of this very thread.

    The thread matters: the helper is killed when the thread that started it ends (PDEATHSIG).
    """

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self._refusal: str | None = None
        self.control, theirs = socket.socketpair()
        self.report, status = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(status, True)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.told = self.released = False
        self.door: list[socket.socket] = []
        self.group: cgroup.Group | None = None
        """What bounds it and all that it starts, from when it is told."""
        self._code: int | None = None
        try:
            for descriptor in (theirs.fileno(), status):
                os.set_inheritable(descriptor, True)
            words = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
            words += [str(theirs.fileno()), str(status), fault]
            actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
            # Whatever else this process was started with, the helper closes itself.
            self.pid = os.posix_spawn(
                sys.executable, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS
            )
        finally:
            theirs.close()
            os.close(status)
            os.close(null)

    def tell(self, launch: Launch, streams: Streams) -> None:
        """Hand over what to start. By descriptor: a launch may be larger than a socket's buffer."""
        self.told = True
        bounds = launch.bounds
        self.group = cgroup.enclose(self.pid, bounds.memory, bounds.processes, cpus=bounds.cpus)
        memory = os.memfd_create("keyhole-launch", os.MFD_CLOEXEC)
        try:
            with os.fdopen(memory, "wb", closefd=False) as file:
                file.write(launch.to_json())
            given = [memory, streams.stdin, streams.stdout, streams.stderr]
            socket.send_fds(self.control, [TOLD], given)
        except OSError:
            raise SetupFailed("the helper ended before the sandbox was made") from None
        finally:
            os.close(memory)

    def refusal(self) -> str:
        """Why the system refuses the helper namespaces of its own, so that it borrows them from
        bubblewrap; empty when it does not. Waits until that is known, which is soon."""
        if self._refusal is None:
            if self.control.gettimeout() is None:
                self.control.settimeout(SETUP_SECONDS)
            try:
                (size,) = struct.unpack("=I", self._exactly(4))
                self._refusal = self._exactly(size).decode("utf-8", "replace")
            except TimeoutError:
                raise SetupFailed(TOOK_TOO_LONG) from None
        return self._refusal

    def _exactly(self, size: int) -> bytes:
        """A small message that was sent at once comes at once."""
        try:
            data = self.control.recv(size) if size else b""
        except ConnectionResetError:
            data = b""  # it ended before it read what it was told
        if len(data) != size:
            raise SetupFailed("the helper ended before the sandbox was made")
        return data

    def take_door(self) -> None:
        """Wait for the sockets of the door that the helper has made."""
        self.refusal()
        self.control.settimeout(SETUP_SECONDS)
        reader = DoorReader()
        try:
            while not reader.complete:
                reader.read(self.control)
        except TimeoutError:
            raise SetupFailed(TOOK_TOO_LONG) from None
        self.door = reader.sockets()

    def let_go_on(self, program: bytes) -> None:
        """Give the helper the filter, and with it our word that the door is ours."""
        try:
            self.control.sendall(struct.pack("=I", len(program)) + program)
        except OSError:
            raise SetupFailed("the helper ended before the sandbox was made") from None
        self.released = True

    def wait(self) -> int:
        """How it, or what it became, ended: negative for a signal."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            (self.group or cgroup.group_of(self.pid)).remove()
        return self._code

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close our ends of what it talks through."""
        self.control.close()
        if self.report >= 0:
            os.close(self.report)
            self.report = -1

    def close(self) -> None:
        """End it, and leave nothing of it."""
        self.let_go()
        self.kill()
        self.wait()


_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and an exec would pass that on."""
