"""The socket of a running sandbox at which `keyhole exec` asks for a further command.

Each bubblewrap sandbox has one, whichever gateway serves its door: the process that holds the
sandbox listens (`claim_exec_socket`), and answers on the connection (`app/run/exec_endpoint.py`).
The verb finds the sockets, and asks (`request_exec`). `keyhole attach` asks there for the terminal
of a named sandbox (`request_attach`). They are in a directory that is checked as
the gateway's own is. A socket that refuses a connection is a leftover of a killed run, and is
removed by the verb that finds it; `keyhole down` removes all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.control.socket_directory import BACKLOG, open_directory, socket_address
from keyhole.model.errors import Refused, Unparsable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EXECS = "exec"
"""Directory of the sockets, beside the gateway's socket."""

ASK = b"exec"
"""The message that comes with the descriptors of an `ExecRequest` and the three streams."""
ASK_DESCRIPTORS = 4
ATTACH = b"attach"
"""The message that asks for the terminal of the first command."""

MAX_REQUEST = 2 << 20
"""Bytes of a request; the kernel accepts no more words and variables of a command."""

MAX_ANSWER = 4096
ANSWER_SECONDS = 20.0
"""How long the run's process may take to answer: longer than it waits for the new process."""

PASSED = ("TERM", "COLORTERM")
"""Variables of the caller that the command gets: they describe the terminal."""
MAX_VALUE = 256
"""Characters of such a variable."""

_SUFFIX, _NEW = ".sock", ".new"
_UCRED = struct.Struct("=iII")


class ExecRequest(Struct, frozen=True):
    """A further command."""

    command: tuple[str, ...]
    directory: str
    """The caller's working directory if the sandbox has it; empty: that of the run."""
    environment: dict[str, str]
    interactive: bool
    """Whether standard input is a terminal of its own."""

    def packed(self) -> bytes:
        """The request as JSON."""
        table = {name: getattr(self, name) for name in self.__struct_fields__}
        return json.dumps(table).encode("ascii")

    @classmethod
    def read(cls, data: bytes) -> ExecRequest:
        """The inverse of `packed`. Raises Unparsable."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise Unparsable("a request is JSON") from None
        match found:
            case {
                "command": [_, *_] as command,
                "directory": str(directory),
                "environment": dict(environment),
                "interactive": bool(interactive),
            } if all(_is_word(each) for each in (*command, directory)):
                pass
            case _:
                raise Unparsable("a request has a command, a directory and variables")
        if not all(_is_passed(name, value) for name, value in environment.items()):
            raise Unparsable(f"only {' and '.join(PASSED)} are passed")
        return cls(tuple(command), directory, environment, interactive)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_passed(name: str, value: object) -> bool:
    return (
        name in PASSED
        and isinstance(value, str)
        and len(value) <= MAX_VALUE
        and value.isprintable()
    )


class ExecStarted(Struct, frozen=True):
    """A command that was started, as its caller holds it."""

    pid: int
    pidfd: int
    line: socket.socket
    """Receives the exit code, and is closed without one when the sandbox ends."""
    connection: socket.socket
    """When it is closed, the command is ended."""


class ExecSocketClaim:
    """A claimed socket; `release` removes it."""

    def __init__(self, directory: int, session: str, listener: socket.socket) -> None:
        self._directory = directory
        self._session = session
        self.listener = listener

    def release(self) -> None:
        """Stop listening, and remove the socket. A second call does nothing."""
        if self._directory >= 0:
            self.listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self._session + _SUFFIX, dir_fd=self._directory)
            os.close(self._directory)
            self._directory = -1


def claim_exec_socket(runtime: Path, session: str) -> ExecSocketClaim:
    """Listen for one sandbox. Raises ResourceUnusable, OSError."""
    os.close(open_directory(runtime, make=True))
    directory = open_directory(runtime / EXECS, make=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        # Linux gives the file the mode of the unbound socket, so that it is never wider.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(socket_address(directory, session + _NEW))
        listener.listen(BACKLOG)
        # Renamed when it listens, so that a socket that refuses a connection is a leftover.
        names = session + _NEW, session + _SUFFIX
        os.rename(*names, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listener.close()
        os.close(directory)
        raise
    return ExecSocketClaim(directory, session, listener)


def find_exec_sockets(runtime: Path, beginning: str) -> list[str]:
    """The ids of sandboxes that begin so and have a socket. Raises ResourceUnusable."""
    try:
        directory = open_directory(runtime / EXECS, make=False)
    except FileNotFoundError:
        return []
    try:
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            names = os.listdir(listed)
        finally:
            os.close(listed)
    finally:
        os.close(directory)
    ids = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(each for each in ids if each.startswith(beginning))


def remove_leftover_sockets(runtime: Path) -> None:
    """Remove the sockets of killed runs. Raises ResourceUnusable."""
    for session in find_exec_sockets(runtime, ""):
        connection = _connect(runtime, session)
        if connection is not None:
            connection.close()


def request_exec(
    runtime: Path, session: str, request: ExecRequest, streams: Sequence[int]
) -> ExecStarted | None:
    """Ask for a command; None if no sandbox listens there. Raises Refused with the reason of the
    run's process."""
    connection = _connect(runtime, session)
    if connection is None:
        return None
    memory = os.memfd_create("keyhole-exec", os.MFD_CLOEXEC)
    try:
        os.write(memory, request.packed())
        if os.fstat(memory).st_size > MAX_REQUEST:
            raise Refused(f"the command has more than {MAX_REQUEST} bytes")
        connection.settimeout(ANSWER_SECONDS)
        socket.send_fds(connection, [ASK], [memory, *streams])
        answer, descriptors, _, _ = socket.recv_fds(connection, MAX_ANSWER, 2)
    except TimeoutError:
        connection.close()
        raise Refused(
            f"{session} does not answer; it may be stopped (Ctrl-Z): type `fg` in its terminal"
        ) from None
    except OSError:
        connection.close()
        raise Refused(f"{session} has just ended") from None
    except Refused:
        connection.close()
        raise
    finally:
        os.close(memory)
    return _started(session, answer, descriptors, connection)


def request_attach(runtime: Path, session: str) -> tuple[socket.socket, int]:
    """Attach to the terminal of a sandbox's first command. Returns a connection that carries
    its output and the keys, and a descriptor by which its size is set. Raises Refused."""
    connection = _connect(runtime, session)
    if connection is None:
        raise Refused(f"{session} has just ended")
    with connection:
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.send(ATTACH)
            answer, descriptors, _, _ = socket.recv_fds(connection, MAX_ANSWER, 2)
        except OSError:
            raise Refused(f"{session} does not answer") from None
    if len(descriptors) == 2:
        return socket.socket(fileno=descriptors[0]), descriptors[1]
    try:
        raise Refused(str(json.loads(answer)["refused"]))
    except (ValueError, LookupError, TypeError):
        raise Refused(f"{session} has just ended") from None


def _started(
    session: str, answer: bytes, descriptors: Sequence[int], connection: socket.socket
) -> ExecStarted:
    try:
        said: Any = json.loads(answer)
    except ValueError:
        said = None
    match said, list(descriptors):
        case {"started": int(pid)}, [pidfd, line]:
            connection.settimeout(None)
            return ExecStarted(pid, pidfd, socket.socket(fileno=line), connection)
        case {"refused": str(why)}, []:
            connection.close()
            raise Refused(why)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.close()
    raise Refused(f"{session} has just ended")


def _connect(runtime: Path, session: str) -> socket.socket | None:
    try:
        directory = open_directory(runtime / EXECS, make=False)
    except FileNotFoundError:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(ANSWER_SECONDS)
        sock.connect(socket_address(directory, session + _SUFFIX))
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        if _UCRED.unpack(raw)[1] == os.geteuid():
            return sock
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            os.unlink(session + _SUFFIX, dir_fd=directory)
    except OSError:
        pass
    finally:
        os.close(directory)
    sock.close()
    return None
