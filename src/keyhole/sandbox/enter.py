"""The helper: makes the walls, hands over the door, waits, and becomes bubblewrap.

Exec'd on its own, single-threaded, before any secret exists near it. It talks to its parent over
one socket. Whatever fails, it exits before a single untrusted instruction ran: there is no state in
which the command runs with another network than the empty one (I2).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys

from keyhole.sandbox import bwrap, cgroup, emptynet, inside, namespaces, syscalls
from keyhole.sandbox.files.fileplan import Bind, Blob, Entry, Mask, Seed, Text, mounted
from keyhole.sandbox.gather import TREE, gathered
from keyhole.sandbox.helper import TOLD
from keyhole.sandbox.launch import (
    ARGUMENTS_DESCRIPTOR,
    CONFIG_DESCRIPTOR,
    FILTER_DESCRIPTOR,
    FIRST_SEED_DESCRIPTOR,
    HALT,
    INSIDE_DESCRIPTOR,
    MAX_SEEDS,
    STATUS_DESCRIPTOR,
    Launch,
)
from keyhole.sandbox.staging import stage

MAX_MESSAGE = 64 * 1024 * 1024
"""Bytes of the launch; our own parent sends it, so this only bounds a mistake."""

EXIT_FAILED = 125


def main() -> int:
    """Run the helper: `enter.py CONTROL_FD STATUS_FD FAULT`."""
    parent = os.getppid()
    syscalls.die_with_parent(parent)
    os.chdir("/")
    control = socket.socket(fileno=int(sys.argv[1]))
    status = int(sys.argv[2])
    _keep_only(control.fileno(), status)
    step = _Steps(sys.argv[3])
    cgroup.step_in(parent)
    try:
        launch = None
        try:
            refusal = _begin(control, step)
        finally:
            # Also after a failure: whoever is to read of it begins by saying what to start.
            launch = told(control)
        if refusal:
            namespaces.borrow(launch.bwrap, refusal)
            syscalls.die_with_parent(parent)  # a change of identity may forget it
            _make_network(step)
        _enter(control, status, launch, parent, step)
    except (OSError, RuntimeError) as error:
        _tell(control, str(error))
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        from keyhole.system.faults import describe

        _tell(control, f"an error in Keyhole itself, in the helper: {describe(error)}")
    return EXIT_FAILED


def _tell(control: socket.socket, why: str) -> None:
    """The parent tells the person, unless it is gone; the sandbox's terminal is no place for it."""
    with contextlib.suppress(OSError):
        send(control, json.dumps({"error": why}).encode())


def _keep_only(*descriptors: int) -> None:
    """Whatever the parent was started with by others is not for us."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        os.set_inheritable(descriptor, False)  # nor are they for the programs that we start
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _begin(control: socket.socket, step: _Steps) -> str:
    """Ahead of the launch, since it is the same for all: an empty network of our own (I2).

    Where the system refuses it, that is told, and the rest waits until we know which bubblewrap is
    to make it for us.
    """
    refusal = ""
    try:
        # 1. Namespaces. The mounts follow when they are needed: a copy of them, kept while a person
        # thinks, would hold the host's.
        refusal = namespaces.make_own(step.faults)
    finally:
        send(control, refusal.encode())
    if not refusal:
        _make_network(step)
    return refusal


def _make_network(step: _Steps) -> None:
    step.reached("namespaces")
    # 2. Every address in it will lead to the door.
    emptynet.raise_loopback()
    emptynet.make_everything_local()
    step.reached("network")


def told(control: socket.socket) -> Launch:
    """Wait for the launch, and take the streams that come with it."""
    word, descriptors, _, _ = socket.recv_fds(control, len(TOLD), 4)
    if word != TOLD:
        raise SystemExit(EXIT_FAILED)  # the parent has ended, or changed its mind
    for number, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        return Launch.from_json(file.read())


def _enter(control: socket.socket, status: int, launch: Launch, parent: int, step: _Steps) -> None:
    is_root = os.getuid() == 0
    owner_map = _user_namespace_of(launch.uid) if launch.maps_root else None
    syscalls.unshare(syscalls.CLONE_NEWNS)
    if not is_root:
        syscalls.keep_over_exec((syscalls.CAP_NET_ADMIN,))
    emptynet.capture(launch.nft)
    sockets = emptynet.listen()
    step.reached("capture")
    # 3. The files, by descriptor (I11). What is still to be read of the host's is read before:
    # the stage covers /tmp, where Keyhole itself may lie.
    with open(inside.__file__, "rb") as source:
        first = source.read()
    staged = stage(launch.files, owner_map)
    step.reached("files")
    # 4. The door goes out; nothing runs until the gateway holds it and says so.
    namespace = os.readlink("/proc/self/ns/net")
    socket.send_fds(
        control, [_framed(json.dumps({"door": namespace}).encode())], [s.fileno() for s in sockets]
    )
    for opened in sockets:
        opened.close()
    step.reached("handed-over")
    program = receive(control)
    step.reached("acknowledged")
    # 5. The identity behind the untrusted code, which is never the host's root.
    if is_root:
        os.setgroups([])
        os.setresgid(launch.gid, launch.gid, launch.gid)
        os.setresuid(launch.uid, launch.uid, launch.uid)
        syscalls.die_with_parent(parent)  # a change of identity forgets it
    else:
        syscalls.drop_over_exec()
    if os.getuid() == 0:
        raise RuntimeError("the sandbox would run as root of the host")
    # Out of the user's session: what stays in it could open its terminal, /dev/tty.
    os.setsid()
    syscalls.no_new_privileges()
    step.reached("identity")
    _become_bwrap(
        launch, staged, {FILTER_DESCRIPTOR: program, INSIDE_DESCRIPTOR: first}, status, namespace
    )


def _become_bwrap(
    launch: Launch, staged: dict[int, str], given: dict[int, bytes], status: int, namespace: str
) -> None:
    together = (TREE,) if gathered(launch.files) else ()
    config = inside.Config(
        namespace=namespace,
        command=launch.command,
        environment=launch.environment | {"PWD": launch.directory},
        interactive=launch.interactive,
        processes=launch.bounds.processes,
        memory=launch.bounds.memory,
        open_files=launch.bounds.open_files,
        targets=(*together, *mounted(launch.files)),
        read_only=(*together, *(e.target for e in launch.files if _is_read_only(e))),
    )
    words = "\0".join(bwrap.words(launch, staged)).encode() + b"\0"
    contents = given | {ARGUMENTS_DESCRIPTOR: words, CONFIG_DESCRIPTOR: config.packed()}
    contents |= seed_contents(launch)
    descriptors = {STATUS_DESCRIPTOR: status} | {
        number: _memory_file(content) for number, content in contents.items()
    }
    # Out of the way of the numbers they are to have, then there, and nothing else is left.
    high = {n: _above(fd) for n, fd in descriptors.items()}
    for number, descriptor in high.items():
        os.dup2(descriptor, number, inheritable=True)
    os.closerange(max(descriptors) + 1, os.sysconf("SC_OPEN_MAX"))
    argv = [launch.bwrap, "--args", str(ARGUMENTS_DESCRIPTOR), "--"]
    argv += [launch.python, "-I", "-S", f"/proc/self/fd/{INSIDE_DESCRIPTOR}"]
    os.execv(launch.bwrap, argv)  # noqa: S606 - an absolute path that the parent judged


def seed_contents(launch: Launch) -> dict[int, bytes]:
    """The sandbox's own files, by the descriptor that bubblewrap copies each from."""
    found = [e.content.encode() for e in launch.files if isinstance(e, Seed)]
    if len(found) > MAX_SEEDS:
        raise RuntimeError(f"{len(found)} files are to be the sandbox's own, over {MAX_SEEDS}")
    return dict(enumerate(found, FIRST_SEED_DESCRIPTOR))


def _is_read_only(entry: Entry) -> bool:
    return isinstance(entry, Mask | Text | Blob) or (isinstance(entry, Bind) and not entry.writable)


def _user_namespace_of(uid: int) -> int:
    """A user namespace that shows the host's root as `uid`, for an idmapped mount."""
    ready, done = os.pipe(), os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        syscalls.die_with_parent(parent)
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for kind in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{kind}", "w", encoding="ascii") as file:
            file.write(f"0 {uid} 1")
    descriptor = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)
    return descriptor


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("keyhole", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64)


class _Steps:
    """Where a test wants the helper to die, or to halt, and what it wants the system to refuse."""

    def __init__(self, faults: str) -> None:
        self.faults = frozenset(faults.split(","))

    def reached(self, step: str) -> None:
        if step in self.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        if f"{HALT}{step}" in self.faults:
            os.kill(os.getpid(), signal.SIGSTOP)


def _framed(data: bytes) -> bytes:
    return struct.pack("=I", len(data)) + data


def send(control: socket.socket, data: bytes) -> None:
    """One message, length first."""
    control.sendall(_framed(data))


def receive(control: socket.socket) -> bytes:
    """One message; the end of the connection is the end of us."""
    (size,) = struct.unpack("=I", _exactly(control, 4))
    if size > MAX_MESSAGE:
        raise SystemExit(EXIT_FAILED)
    return _exactly(control, size)


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            raise SystemExit(EXIT_FAILED)
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main())
