"""Tries every known way out from inside; run as the command of a sandbox of its own.

Used by `keyhole doctor`, the self-test before a first run, and the tests. It runs on a bare
interpreter and imports nothing of Keyhole's; in a container that is the holder's interpreter, which
has few modules more than those named here. Each row has the attempt, whether the wall held, and the
observation; rows named `control-…` must succeed, so that a broken rig cannot pass.

Foreign addresses are of the documentation ranges and are only tried after `lo` was seen to be the
only interface.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial

_libc = ctypes.CDLL(None, use_errno=True)

DOCUMENTATION_4 = "192.0.2.1"
DOCUMENTATION_6 = "2001:db8::1"
SECONDS = 3.0

_NUMBERS = {
    "x86_64": {"unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
               "userfaultfd": 323, "mount": 165, "clone": 56, "ptrace": 101},
    "aarch64": {"unshare": 97, "setns": 268, "keyctl": 219, "bpf": 280, "perf_event_open": 241,
                "userfaultfd": 282, "mount": 40, "clone": 220, "ptrace": 117},
}  # fmt: skip
_IO_URING_SETUP, _CLONE3, _OPENAT2, _FCHMODAT2 = 425, 435, 437, 452
_NEWUSER, _NEWNET, _NEWNS, _NEWTIME = 0x10000000, 0x40000000, 0x00020000, 0x80
_UNSHARED_FILES = 0x00000400
_AF_VSOCK, _AF_PACKET, _AF_ALG = 40, 17, 38
_TIOCSTI = 0x5412
_MANAGEMENT = {
    "btrfs-snapshot": 0x50009417, "btrfs-subvolume": 0x5000940E, "btrfs-lookup": 0xD0009412,
    "xfs-bulkstat": 0x8040587F, "ext4-move-extent": 0xC028660F, "encryption-key": 0xC0506617,
    "f2fs-atomic-write": 0xF501, "bcachefs-subvolume": 0x4020BC10, "freeze": 0xC0045877,
}  # fmt: skip
"""Commands that manage a file system; the first would show the files that a mount hides."""
_FIONREAD, _FICLONE = 0x541B, 0x40049409
_PTRACE_SEIZE = 0x4206
_PR_SET_DUMPABLE = 4
_NONE = "none"
_X32_BIT = 0x40000000
_OPEN_TREE, _FSOPEN, _MOUNT_SETATTR = 428, 430, 442
_CLONE_TREE = 1

_ENGINES = (
    "/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock",
    "/run/containerd/containerd.sock", "/run/crio/crio.sock",
)  # fmt: skip
_KERNEL_FILES = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/rdma/release_agent",
)  # fmt: skip
"""Files by which the kernel runs a program of the host, or changes the whole system."""
_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")
"""The roots of control groups, of version 2 and version 1."""
_PROCESSES_MAX = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")

Row = tuple[str, bool, str]


def call(name: str, *args: int) -> str:
    """The result of a system call: the name of its error, or `done`."""
    number = _NUMBERS[os.uname().machine][name]
    return _result(_libc.syscall(number, *args))


def _result(value: int) -> str:
    return errno.errorcode.get(ctypes.get_errno(), "?") if value < 0 else "done"


def in_child(work: Callable[[], None]) -> str:
    """The result of a child that does this: `done`, `killed by N`, or its error."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"


def _done(seen: str) -> None:
    if seen != "done":
        raise OSError(seen)


def open_family(family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> str:
    """The result of opening a socket of a family."""
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "done"


def connect(family: int, address: tuple[str, int] | str, kind: int = socket.SOCK_STREAM) -> str:
    """The result of connecting; a connection that is cut at once counts as refused."""
    try:
        with socket.socket(family, kind) as attempt:
            attempt.settimeout(SECONDS)
            attempt.connect(address)
            attempt.send(b"keyhole probe\r\n\r\n")
            data = attempt.recv(1)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "answered" if data else "closed"


def resolve(name: str) -> str:
    """The address of a name, or the resolver's error."""
    try:
        return str(socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0])
    except OSError as error:
        return f"none ({error})"


def ask(name: str, server: str = "127.0.0.1") -> str:
    """The address of a name without the system's resolver, which an image may lack: one question
    (RFC 1035)."""
    labels = b"".join(bytes([len(x)]) + x for x in name.encode("ascii").split(b"."))
    question = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!x2H", 1, 1)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(SECONDS)
            client.connect((server, 53))
            client.send(question)
            answer = client.recv(4096)
    except OSError as error:
        return f"none ({errno.errorcode.get(error.errno or 0, type(error).__name__)})"
    code, count = answer[3] & 15, struct.unpack_from("!H", answer, 6)[0]
    return socket.inet_ntoa(answer[-4:]) if count and not code else f"none (code {code})"


def int80() -> None:
    """A 32-bit system call from a 64-bit process: `getpid` by interrupt 0x80."""
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def command(number: int) -> str:
    """The result of a command to a descriptor that is not open, on any file system: the kernel
    returns EBADF, and a filter decides before that."""
    return _result(_libc.ioctl(-1, ctypes.c_ulong(number), None))


def file_system_rows() -> list[Row]:
    """Commands to a file system that would show what is masked, or change more than one's files."""
    rows: list[Row] = []
    for name, number in _MANAGEMENT.items():
        seen = command(number)
        rows.append((f"ioctl-{name}", seen == "ENOTTY", seen))
    seen = command(_MANAGEMENT["btrfs-snapshot"] | 1 << 32)
    rows.append(("ioctl-high-bits", seen == "ENOTTY", seen))
    rows.append(("control-ioctl", command(_FICLONE) == "EBADF", "copies that share their blocks"))
    reading, writing = os.pipe()
    os.write(writing, b"seven b")
    waiting = ctypes.c_int(0)
    _libc.ioctl(reading, ctypes.c_ulong(_FIONREAD), ctypes.byref(waiting))
    rows.append(("control-fionread", waiting.value == 7, f"{waiting.value} bytes in a pipe"))
    os.close(reading)
    os.close(writing)
    return rows


def system_call_rows() -> list[Row]:
    """Rows for system calls that an empty network namespace does not stop and the filter must."""
    rows = []

    def refused(name: str, seen: str, *expected: str) -> None:
        rows.append((name, seen in expected, seen))

    refused("vsock", open_family(_AF_VSOCK), "EAFNOSUPPORT")
    refused("packet-socket", open_family(_AF_PACKET, socket.SOCK_RAW), "EAFNOSUPPORT", "EPERM")
    refused("crypto-socket", open_family(_AF_ALG, socket.SOCK_SEQPACKET), "EAFNOSUPPORT")
    refused("raw-socket", open_family(socket.AF_INET, socket.SOCK_RAW, 1), "EPERM")
    refused("ping-socket", open_family(socket.AF_INET, socket.SOCK_DGRAM, 1), "EACCES", "EPERM")
    refused("netlink-other", open_family(socket.AF_NETLINK, socket.SOCK_RAW, 9), "EAFNOSUPPORT")
    parameters = ctypes.create_string_buffer(120)
    refused("io-uring", _result(_libc.syscall(_IO_URING_SETUP, 1, parameters)), "ENOSYS")
    refused("clone3", _result(_libc.syscall(_CLONE3, 0, 0)), "ENOSYS")
    # Outside, the first gives the rights that the others need.
    kinds = {"user": _NEWUSER, "net": _NEWNET, "mount": _NEWNS, "time": _NEWTIME}
    for name, flag in kinds.items():
        refused(f"new-{name}-namespace", call("unshare", flag), "EPERM")
    refused("clone-namespace", call("clone", _NEWUSER | _NEWNET, 0, 0, 0, 0), "EPERM")
    refused("setns", call("setns", 0, 0), "EPERM")
    refused("mount", call("mount", 0, 0, 0, 0, 0), "EPERM")
    refused("new-mount", _result(_libc.syscall(_FSOPEN, b"tmpfs", 0)), "EPERM", "ENOSYS")
    tree = _libc.syscall(_OPEN_TREE, -100, b"/", _CLONE_TREE)
    refused("clone-mount", _result(tree), "EPERM", "ENOSYS")
    nothing = ctypes.create_string_buffer(32)
    changed = _libc.syscall(_MOUNT_SETATTR, -100, b"/", 0, nothing, 32)
    refused("change-mount", _result(changed), "EPERM", "ENOSYS")
    for name in ("keyctl", "bpf", "perf_event_open", "userfaultfd"):
        refused(name, call(name, 0, 0, 0, 0, 0), "EPERM")
    for name, request in (("tiocsti", _TIOCSTI), ("tiocsti-high-bits", _TIOCSTI | 1 << 32)):
        letter = ctypes.create_string_buffer(b"x")
        result = _libc.ioctl(0, ctypes.c_ulong(request), letter)
        refused(name, _result(result), "EPERM")
    rows += file_system_rows()
    if os.uname().machine == "x86_64":
        refused("32-bit-call", in_child(int80), "killed by SIGSYS")
        number = _X32_BIT | 39
        refused("x32-call", in_child(lambda: _libc.syscall(number)), "killed by SIGSYS")
    rows.append(("control-unix-socket", open_family(socket.AF_UNIX) == "done", "AF_UNIX"))
    shared = in_child(lambda: _done(call("unshare", _UNSHARED_FILES)))
    rows.append(("control-unshare", shared == "done", "a process may leave what it shares"))
    rows.append(("control-child", in_child(lambda: None) == "done", "fork and wait"))
    return rows


def network_rows(targets: dict[str, object]) -> list[Row]:
    """Rows for ways to an address that do not go through the door."""
    rows: list[Row] = []

    def unreachable(name: str, seen: str) -> None:
        rows.append((name, seen not in ("answered", "done"), seen))

    unreachable("literal-address", connect(socket.AF_INET, (DOCUMENTATION_4, 443)))
    unreachable("literal-ipv6", connect(socket.AF_INET6, (DOCUMENTATION_6, 443)))
    unreachable("metadata-address", connect(socket.AF_INET, ("169.254.169.254", 80)))
    unreachable("link-local-address", connect(socket.AF_INET, ("169.254.1.1", 443)))
    unreachable("udp-443", connect(socket.AF_INET, (DOCUMENTATION_4, 443), socket.SOCK_DGRAM))
    unreachable("host-loopback", connect(socket.AF_INET, ("127.0.0.1", int(str(targets["port"])))))
    abstract = "\0" + str(targets["abstract"])
    unreachable("abstract-socket", connect(socket.AF_UNIX, abstract))
    found = ask if targets.get("contained") else resolve
    seen = found("denied.keyhole.example")
    rows.append(("unknown-name", seen.startswith("none"), seen))
    seen = ask("denied.keyhole.example", DOCUMENTATION_4)
    rows.append(("name-server-elsewhere", seen.startswith("none"), seen))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(SECONDS)
            client.connect(server.getsockname())
            rows.append(("control-own-loopback", True, "a server of the sandbox's own answers"))
    if targets.get("allowed"):
        seen = found(str(targets["allowed"]))
        rows.append(("control-allowed-name", seen.startswith("198.1"), seen))
    return rows


def first_process_rows() -> list[Row]:
    """Rows for the first process, which alone is not the sandbox's own; all others end with it."""
    rows: list[Row] = []
    for name in ("mem", "maps", "fd/0", "environ", "root/", "cwd/"):
        seen = _tried(partial(os.open, f"/proc/1/{name}", os.O_RDONLY))
        rows.append((f"first-process {name}", seen in ("EACCES", "EPERM"), seen))
    seen = call("ptrace", _PTRACE_SEIZE, 1, 0, 0)
    rows.append(("first-process trace", seen in ("EPERM", "EACCES"), seen))
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as in a program of the image; ours are not
    own = os.fork()
    if own == 0:
        signal.pause()
    seen = call("ptrace", _PTRACE_SEIZE, own, 0, 0)
    os.kill(own, signal.SIGKILL)
    os.waitpid(own, 0)
    rows.append(("control-trace", seen == "done", "a child of one's own can be traced"))
    return rows


def limit_rows(*, contained: bool) -> list[Row]:
    """Rows for limits of this process and its children."""
    rows: list[Row] = []
    limits = {
        "processes": resource.RLIMIT_NPROC,
        "memory": resource.RLIMIT_DATA,
        "open-files": resource.RLIMIT_NOFILE,
        "core": resource.RLIMIT_CORE,
    }
    # An engine counts all processes of the sandbox together; where it cannot, the kernel does.
    if contained and (seen := _first_line(_PROCESSES_MAX)) != _NONE:
        del limits["processes"]
        rows.append(("limit-processes", seen.isdigit(), f"{seen} at most"))
    for name, limit in limits.items():
        soft, hard = resource.getrlimit(limit)
        bounded = resource.RLIM_INFINITY not in (soft, hard)
        rows.append((f"limit-{name}", bounded, f"{hard} at most"))
    for path in filter(os.path.isdir, ("/", "/dev", "/etc", "/usr")):  # an image may have no /usr
        seen = _tried(partial(os.mkdir, os.path.join(path, "keyhole-probe")))
        # An engine's /dev belongs to root, which is not mapped inside.
        held = seen == "EROFS" or (contained and path == "/dev" and seen == "EACCES")
        rows.append((f"read-only {path}", held, seen))
    return rows


def _first_line(paths: tuple[str, ...]) -> str:
    for path in paths:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            return file.readline().strip()
    return _NONE


def set_id_rows() -> list[Row]:
    """Rows for files that would run as their owner, by every call that sets a mode."""
    rows: list[Row] = []
    directory = _own_directory()
    path = os.path.join(directory, "plain")
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o755)
    rows.append(("control-chmod", _tried(lambda: os.chmod(path, 0o700)) == "done", "0700"))
    for name, bits in (("setuid", 0o4755), ("setgid", 0o2755)):
        made = os.path.join(directory, name)
        attempts: dict[str, Callable[[], object]] = {
            "chmod": partial(os.chmod, path, bits),
            "fchmod": partial(os.fchmod, descriptor, bits),
            "open": partial(os.open, made, os.O_CREAT | os.O_RDWR, bits),
            "tmpfile": partial(os.open, directory, os.O_TMPFILE | os.O_RDWR, bits),
            "mknod": partial(os.mknod, made + "-node", bits),
        }
        for how, work in attempts.items():
            seen = _tried(work)
            rows.append((f"{name}-by-{how}", seen in ("EPERM", "ENOTSUP"), seen))
        seen = _result(_libc.syscall(_FCHMODAT2, -100, path.encode(), bits, 0))
        rows.append((f"{name}-by-fchmodat2", seen in ("EPERM", "ENOSYS"), seen))
    seen = _result(_libc.syscall(_OPENAT2, -100, path.encode(), 0, 24))
    rows.append(("openat2", seen == "ENOSYS", seen))
    os.close(descriptor)
    return rows


def _own_directory() -> str:
    """A new directory in the sandbox's own memory; an image's /tmp may be closed to its user. The
    home comes last, because it may be kept."""
    for top in ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("HOME", "/")):  # noqa: S108
        path = f"{top}/keyhole-probe-{os.urandom(4).hex()}"
        if _tried(partial(os.mkdir, path, 0o700)) == "done":
            return path
    raise OSError("nothing inside can be written")


def _tried(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "done"


def engine_rows() -> list[Row]:
    """Rows for what only a container has: /sys, control groups, the holder."""
    rows: list[Row] = []

    def closed(name: str, work: Callable[[], object]) -> None:
        seen = _tried(work)
        rows.append((name, seen in ("EPERM", "EACCES", "EROFS", "ENOENT"), seen))

    for path in _KERNEL_FILES:
        closed(f"write {path}", partial(os.open, path, os.O_WRONLY))
    for group in _GROUPS:
        if os.path.isdir(group):
            closed(f"new-group {group}", partial(os.mkdir, f"{group}/keyhole-probe"))
            closed(f"move-group {group}", partial(os.open, f"{group}/cgroup.procs", os.O_WRONLY))
    # If it could be killed, the sandbox would end; a run ends it from outside.
    closed("first-process end", partial(os.kill, 1, signal.SIGKILL))
    own = os.fork()
    if own == 0:
        signal.pause()
    seen = _tried(partial(os.kill, own, signal.SIGKILL))
    os.waitpid(own, 0)
    rows.append(("control-end", seen == "done", "a child of one's own can be ended"))
    path = os.path.join(_own_directory(), "written")
    seen = _tried(partial(os.open, path, os.O_WRONLY | os.O_CREAT))
    rows.append(("control-write", seen == "done", "a file of one's own can be written"))
    return rows


def file_rows(targets: dict[str, object]) -> list[Row]:
    """Rows for sockets, processes and kernel interfaces of the host."""
    rows: list[Row] = []
    names = _network_of_sys() if targets.get("contained") else []
    if names:  # of the sandbox's own network: an engine mounts /sys
        rows.append(("path /sys/class/net", set(names) <= {"lo"}, ", ".join(names)))
    for path in _ENGINES:
        # A socket cannot be opened, only connected to; here it must not even exist.
        seen = _tried(partial(os.lstat, path))
        rows.append((f"path {path}", seen in ("ENOENT", "EACCES"), seen))
    for path in ("/dev/vsock", "/dev/net/tun", "/dev/kvm", "/proc/kcore",
                 *(() if names else ("/sys/class/net",))):  # fmt: skip
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR if path.startswith("/dev") else os.O_RDONLY))
            rows.append((f"path {path}", False, "opened"))
            continue
        rows.append((f"path {path}", True, "cannot be opened"))
    host_pid = int(str(targets["pid"]))
    try:
        os.kill(host_pid, 0)
        rows.append(("host-process", host_pid <= _highest_own_pid(), "a process of that number"))
    except OSError as error:
        rows.append(("host-process", True, errno.errorcode.get(error.errno or 0, "?")))
    rows.append(("control-own-process", os.path.exists("/proc/self/status"), "/proc/self"))
    return rows


def _network_of_sys() -> list[str]:
    try:
        return sorted(os.listdir("/sys/class/net"))
    except OSError:
        return []


def _highest_own_pid() -> int:
    return max(int(name) for name in os.listdir("/proc") if name.isdigit())


def main() -> int:
    """Probe, and print the rows as JSON."""
    targets = json.loads(sys.argv[1])
    if targets.get("outside"):
        rows = system_call_rows()
        json.dump([{"id": n, "held": h, "seen": seen} for n, h, seen in rows], sys.stdout)
        return 0
    interfaces = [name for _, name in socket.if_nameindex()]
    rows = [("only-lo", interfaces == ["lo"], ", ".join(interfaces))]
    rows += system_call_rows()
    if interfaces == ["lo"]:
        rows += network_rows(targets)
    rows += first_process_rows()
    rows += limit_rows(contained=bool(targets.get("contained")))
    rows += set_id_rows()
    if targets.get("contained"):
        rows += engine_rows()
    rows += file_rows(targets)
    json.dump([{"id": name, "held": held, "seen": seen} for name, held, seen in rows], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
