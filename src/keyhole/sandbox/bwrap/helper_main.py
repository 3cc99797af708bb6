"""The helper: makes the walls, hands over the door, waits, and becomes bubblewrap.

It is exec'd on its own, single-threaded, before any secret is loaded. It talks to its parent over
one socket. If anything fails, it exits before the first untrusted instruction: the command never
runs in a network that is not the empty one (I2).
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

from msgspec.structs import replace

from keyhole.confine import cgroup
from keyhole.sandbox import empty_network, sandbox_init
from keyhole.sandbox.bwrap import arguments as bwrap
from keyhole.sandbox.bwrap import namespaces
from keyhole.sandbox.bwrap.gathered_entries import TREE, gathered_entries
from keyhole.sandbox.bwrap.helper import FROM_TERMINAL, TOLD
from keyhole.sandbox.bwrap.kept_entries import kept_entries
from keyhole.sandbox.bwrap.kept_files import KeptOwner
from keyhole.sandbox.bwrap.staging import linked_entries, stage
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Entry,
    Mask,
    SeedFile,
    TextFile,
    entry_bytes,
    mount_targets,
)
from keyhole.sandbox.first_process import open_record
from keyhole.sandbox.launch import (
    ARGUMENTS_DESCRIPTOR,
    COMMANDS_DESCRIPTOR,
    CONFIG_DESCRIPTOR,
    FILTER_DESCRIPTOR,
    FIRST_SEED_DESCRIPTOR,
    HALT,
    INSIDE_DESCRIPTOR,
    MAX_SEEDS,
    RECORD_DESCRIPTOR,
    STATUS_DESCRIPTOR,
    Launch,
)
from keyhole.system import syscalls
from keyhole.system.faults import describe
from keyhole.system.namespaces import own_network, show_root_as

_LEAST_FREE = 64
"""The least number of a descriptor that is moved out of the way."""

MAX_MESSAGE = 64 * 1024 * 1024
"""Bytes of the launch; our own parent sends it, so this only bounds a mistake."""

EXIT_FAILED = 125


def main() -> int:
    """Run the helper: `helper_main.py CONTROL_FD STATUS_FD FAULT`."""
    parent = os.getppid()
    syscalls.die_with_parent(parent)
    _drop_pending(FROM_TERMINAL)
    os.chdir("/")
    control = socket.socket(fileno=int(sys.argv[1]))
    status = int(sys.argv[2])
    _keep_only(control.fileno(), status)
    step = _Steps(sys.argv[3])
    cgroup.enter_cgroup(parent)
    try:
        launch = None
        try:
            refusal = _begin(control, step)
        finally:
            # Also after a failure: the parent sends the launch before it reads the report.
            launch, commands = receive_launch(control)
        if refusal:
            namespaces.borrow_namespaces(launch.bwrap, refusal)
            syscalls.die_with_parent(parent)  # a change of identity may forget it
            _make_network(step)
        kept = {STATUS_DESCRIPTOR: status, COMMANDS_DESCRIPTOR: commands}
        if launch.record:
            kept[RECORD_DESCRIPTOR] = open_record(launch.record)
        _enter(control, kept, launch, parent, step)
    except (OSError, RuntimeError) as error:
        _tell(control, str(error))
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        _tell(control, f"an error in Keyhole itself, in the helper: {describe(error)}")
    return EXIT_FAILED


def _tell(control: socket.socket, why: str) -> None:
    """Report a failure to the parent, which shows it; the sandbox's terminal is not used for it."""
    with contextlib.suppress(OSError):
        send(control, json.dumps({"error": why}).encode())


def _drop_pending(signals: tuple[signal.Signals, ...]) -> None:
    """Unblock these signals, and drop those that are pending: they were for the parent."""
    for number in signals:
        signal.signal(number, signal.signal(number, signal.SIG_IGN))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _keep_only(*descriptors: int) -> None:
    """Close every other descriptor: the parent's are not for this process."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        os.set_inheritable(descriptor, False)  # nor for the programs that it starts
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _begin(control: socket.socket, step: _Steps) -> str:
    """Make an empty network (I2), before the launch arrives, since it is the same for every launch.

    If the system refuses that, it is reported, and the launch then names the bubblewrap that makes
    the network instead.
    """
    refusal = ""
    try:
        # 1. Namespaces. The mount namespace is made later: a copy of the host's mounts, kept while
        # a person thinks, would keep them busy.
        refusal = namespaces.make_namespaces(step.faults)
    finally:
        send(control, refusal.encode("utf-8", "surrogateescape"))
    if not refusal:
        _make_network(step)
    return refusal


def _make_network(step: _Steps) -> None:
    step.reached("namespaces")
    # 2. Every address in it will lead to the door.
    empty_network.bring_up_loopback()
    empty_network.make_everything_local()
    step.reached("network")


def receive_launch(control: socket.socket) -> tuple[Launch, int]:
    """Wait for the launch, and take the streams that come with it. Returns it, and the socket of
    further commands."""
    word, descriptors, _, _ = socket.recv_fds(control, len(TOLD), 5)
    if word != TOLD:
        raise SystemExit(EXIT_FAILED)  # the parent has ended, or changed its mind
    memory, commands, *streams = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    os.set_inheritable(commands, False)  # not for the programs that make the network
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        return Launch.from_json(file.read()), commands


def _enter(
    control: socket.socket, kept: dict[int, int], launch: Launch, parent: int, step: _Steps
) -> None:
    is_root = os.getuid() == 0
    owner_map = _user_namespace_of(launch.uid) if launch.maps_root else None
    syscalls.unshare(syscalls.CLONE_NEWNS)
    if not is_root:
        syscalls.keep_over_exec((syscalls.CAP_NET_ADMIN,))
    empty_network.load_ruleset(launch.nft)
    sockets = empty_network.open_door_sockets()
    sockets += empty_network.open_port_sockets(launch.ports)
    step.reached("capture")
    # 3. The files, by descriptor (I11). Files of the host that are still needed are read first: the
    # staged mounts cover /tmp, where Keyhole itself may be installed.
    with open(sandbox_init.__file__, "rb") as source:
        first = source.read()
    foreign = is_root and not launch.maps_root
    owner = KeptOwner(launch.uid, launch.gid) if foreign else None
    staged = stage(launch.files, owner_map, owner, launch.views)
    step.reached("files")
    # 4. The door is handed over; nothing runs until the gateway holds it and confirms.
    namespace = own_network()
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
    if os.getsid(0) != os.getpid():
        raise RuntimeError("the helper is in the user's session")
    syscalls.no_new_privileges()
    step.reached("identity")
    _become_bwrap(
        launch, staged, {FILTER_DESCRIPTOR: program, INSIDE_DESCRIPTOR: first}, kept, namespace
    )


def _become_bwrap(
    launch: Launch,
    staged: dict[int, str],
    given: dict[int, bytes],
    kept: dict[int, int],
    namespace: str,
) -> None:
    together = (TREE,) if gathered_entries(launch.files) else ()
    copies = linked_entries(launch.files, staged)
    links = tuple(launch.files[index].target for index in copies)
    files = tuple(copies.get(index, entry) for index, entry in enumerate(launch.files))
    launch = replace(launch, files=files)
    config = sandbox_init.InitConfig(
        namespace=namespace,
        command=launch.command,
        environment=launch.environment | {"PWD": launch.directory},
        interactive=launch.interactive,
        processes=launch.bounds.processes,
        memory=launch.bounds.memory,
        open_files=launch.bounds.open_files,
        targets=(*together, *mount_targets(launch.files), *links),
        read_only=(*together, *(e.target for e in launch.files if _is_read_only(e))),
        links=links,
    )
    words = os.fsencode("\0".join(bwrap.bwrap_arguments(launch, staged))) + b"\0"
    contents = given | {ARGUMENTS_DESCRIPTOR: words, CONFIG_DESCRIPTOR: config.packed()}
    contents |= seed_contents(launch)
    descriptors = kept | {number: _memory_file(content) for number, content in contents.items()}
    # First to numbers that no file is to have, then to the right ones; all others are closed.
    free = max(_LEAST_FREE, *(number + 1 for number in descriptors))
    high = {n: _above(fd, free) for n, fd in descriptors.items()}
    for number, descriptor in high.items():
        os.dup2(descriptor, number, inheritable=True)
    os.closerange(max(descriptors) + 1, os.sysconf("SC_OPEN_MAX"))
    argv = [launch.bwrap, "--args", str(ARGUMENTS_DESCRIPTOR), "--"]
    argv += [launch.python, "-I", "-S", f"/proc/self/fd/{INSIDE_DESCRIPTOR}"]
    os.execv(launch.bwrap, argv)  # noqa: S606 - an absolute path that the parent judged


def seed_contents(launch: Launch) -> dict[int, bytes]:
    """The files to write for the sandbox, by the descriptor that bubblewrap copies each from."""
    kept = kept_entries(launch.files)  # written by `staging.py`
    found = [
        entry_bytes(e)
        for i, e in enumerate(launch.files)
        if isinstance(e, SeedFile) and i not in kept
    ]
    if len(found) > MAX_SEEDS:
        raise RuntimeError(f"{len(found)} files are to be the sandbox's own, over {MAX_SEEDS}")
    return dict(enumerate(found, FIRST_SEED_DESCRIPTOR))


def _is_read_only(entry: Entry) -> bool:
    return isinstance(entry, Mask | TextFile | BinaryFile) or (
        isinstance(entry, Bind) and not entry.writable
    )


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
    descriptor = show_root_as(uid, child)
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


def _above(descriptor: int, least: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)


class _Steps:
    """The steps at which a test wants the helper to die or to halt, and the calls that the system
    is to refuse."""

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
    """Read one message. This process ends with the connection."""
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
