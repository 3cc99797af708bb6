"""The helper process, as seen from outside: started early, given its launch, ended.

The helper needs nothing at first, so it starts before the policy is read: it imports its modules
and makes its empty network on another core, and then waits for the launch from `cli` or
`bwrap_start.py`. This module is the first import of a run, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING

import keyhole
from keyhole.confine import cgroup
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.first_process import note_process
from keyhole.sandbox.handover import SETUP_SECONDS, TOOK_TOO_LONG, DoorReader

if TYPE_CHECKING:
    from keyhole.sandbox.handover import StandardStreams
    from keyhole.sandbox.launch import Launch

_ROOT = os.path.dirname(os.path.abspath(keyhole.__path__[0]))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from keyhole.system.startup import import_msgspec
import_msgspec()
from keyhole.sandbox.bwrap.helper_main import main
sys.exit(main())
"""

FAULT = "KEYHOLE_UNSAFE_FAULT"
"""A variable for tests. It names set-up steps after which the helper dies or halts, and calls that
the system is to refuse it, separated by commas."""

TOLD = b"launch"
"""The message that comes with the descriptors of the launch, the socket of further commands, and
the three streams."""


class Helper:
    """A process of our own interpreter that runs `helper_main.py`, a child of this very thread.

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
        self.group: cgroup.Cgroup | None = None
        """The control group of the helper and its children, once it has its launch."""
        self.commands: socket.socket | None = None
        """The socket that leads to the sandbox's first process, once it has its launch."""
        self._code: int | None = None
        try:
            for descriptor in (theirs.fileno(), status):
                os.set_inheritable(descriptor, True)
            words = [sys.executable, "-I", "-c", _PROGRAM, _ROOT]
            words += [str(theirs.fileno()), str(status), fault]
            actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
            # The helper itself closes all other descriptors of this process. It leaves the user's
            # session at once: a process in it could open its terminal, /dev/tty, and Ctrl-C would
            # end it before this process, which then would report a failed set-up.
            self.pid = os.posix_spawn(
                sys.executable,
                words,
                {},
                file_actions=actions,
                setsid=True,
                setsigmask=FROM_TERMINAL,
                setsigdef=_DEFAULT_SIGNALS,
            )
        finally:
            theirs.close()
            os.close(status)
            os.close(null)

    def tell(self, launch: Launch, streams: StandardStreams) -> None:
        """Send the launch, by descriptor: it may be larger than a socket's buffer."""
        self.told = True
        if launch.record:
            note_process(launch.record, self.pid)
        bounds = launch.bounds
        self.group = cgroup.limit_child(self.pid, bounds.memory, bounds.processes, cpus=bounds.cpus)
        memory = os.memfd_create("keyhole-launch", os.MFD_CLOEXEC)
        self.commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with os.fdopen(memory, "wb", closefd=False) as file:
                file.write(launch.to_json())
            given = [memory, theirs.fileno(), streams.stdin, streams.stdout, streams.stderr]
            socket.send_fds(self.control, [TOLD], given)
        except OSError:
            raise SetupFailed("the helper ended before the sandbox was made") from None
        finally:
            theirs.close()
            os.close(memory)

    def refusal(self) -> str:
        """Why the system refuses the helper namespaces of its own, so that bubblewrap has to make
        them; empty when it does not. Waits until that is known, which is soon."""
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
        """Read a small message that was sent in one piece."""
        try:
            data = self.control.recv(size) if size else b""
        except ConnectionResetError:
            data = b""  # it ended before it read the launch
        if len(data) != size:
            raise SetupFailed("the helper ended before the sandbox was made")
        return data

    def take_door(self) -> None:
        """Receive the sockets of the door that the helper has made."""
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
        """Send the filter to the helper, which tells it that the gateway has the door."""
        try:
            self.control.sendall(struct.pack("=I", len(program)) + program)
        except OSError:
            raise SetupFailed("the helper ended before the sandbox was made") from None
        self.released = True

    def wait(self) -> int:
        """The exit code of the helper, or of the program that it became: negative for a signal."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            (self.group or cgroup.cgroup_of(self.pid)).remove()
        return self._code

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close our ends of its sockets."""
        self.control.close()
        if self.report >= 0:
            os.close(self.report)
            self.report = -1

    def close(self) -> None:
        """Kill it, and release everything."""
        self.let_go()
        if self.commands is not None:
            self.commands.close()
        self.kill()
        self.wait()


FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals of a terminal's keys. They may come before the helper has left the user's session, so
they are blocked until `helper_main.py` drops them."""

_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; an exec would pass that on."""
