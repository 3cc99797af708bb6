"""Tries, from inside, every way out that is known; run as the command of a sandbox of its own.

Used by `keyhole doctor`, the self-test before a first run, and the tests. It runs on a bare
interpreter and imports nothing of Keyhole's. Each row says what was tried, whether the wall held,
and what was seen; rows named `control-…` must succeed, so that a broken rig cannot pass.

Foreign addresses are of the documentation ranges and are only tried after `lo` was seen to be the
only interface.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import signal
import socket
import sys
import tempfile
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
_NEWUSER, _NEWNET, _NEWNS = 0x10000000, 0x40000000, 0x00020000
_AF_VSOCK, _AF_PACKET, _AF_ALG = 40, 17, 38
_TIOCSTI = 0x5412
_PTRACE_SEIZE = 0x4206
_X32_BIT = 0x40000000

Row = tuple[str, bool, str]


def call(name: str, *args: int) -> str:
    """The error's name that a system call ends with, or `done`."""
    number = _NUMBERS[platform.machine()][name]
    return _result(_libc.syscall(number, *args))


def _result(value: int) -> str:
    return errno.errorcode.get(ctypes.get_errno(), "?") if value < 0 else "done"


def in_child(work: Callable[[], None]) -> str:
    """How a child that does this ends: `done`, `killed by N`, or the error it met."""
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


def open_family(family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> str:
    """What opening a socket of a family ends with."""
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "done"


def connect(family: int, address: tuple[str, int] | str, kind: int = socket.SOCK_STREAM) -> str:
    """What connecting ends with; a connection that is then cut counts as refused."""
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
    """The address of a name, or the resolver's word."""
    try:
        return str(socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0])
    except OSError as error:
        return f"none ({error})"


def int80() -> None:
    """A 32-bit system call from a 64-bit process: `getpid` by interrupt 0x80."""
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def system_call_rows() -> list[Row]:
    """What an empty namespace does not close and the filter must."""
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
    for name, flag in (("user", _NEWUSER), ("net", _NEWNET), ("mount", _NEWNS)):
        refused(f"new-{name}-namespace", call("unshare", flag), "EPERM")
    refused("clone-namespace", call("clone", _NEWUSER | _NEWNET, 0, 0, 0, 0), "EPERM")
    refused("setns", call("setns", 0, 0), "EPERM")
    refused("mount", call("mount", 0, 0, 0, 0, 0), "EPERM")
    for name in ("keyctl", "bpf", "perf_event_open", "userfaultfd"):
        refused(name, call(name, 0, 0, 0, 0, 0), "EPERM")
    for name, request in (("tiocsti", _TIOCSTI), ("tiocsti-high-bits", _TIOCSTI | 1 << 32)):
        letter = ctypes.create_string_buffer(b"x")
        result = _libc.ioctl(0, ctypes.c_ulong(request), letter)
        refused(name, _result(result), "EPERM")
    if platform.machine() == "x86_64":
        refused("32-bit-call", in_child(int80), "killed by SIGSYS")
        number = _X32_BIT | 39
        refused("x32-call", in_child(lambda: _libc.syscall(number)), "killed by SIGSYS")
    rows.append(("control-unix-socket", open_family(socket.AF_UNIX) == "done", "AF_UNIX"))
    rows.append(("control-child", in_child(lambda: None) == "done", "fork and wait"))
    return rows


def network_rows(targets: dict[str, object]) -> list[Row]:
    """Ways to an address that are not the door's."""
    rows: list[Row] = []

    def unreachable(name: str, seen: str) -> None:
        rows.append((name, seen not in ("answered", "done"), seen))

    unreachable("literal-address", connect(socket.AF_INET, (DOCUMENTATION_4, 443)))
    unreachable("literal-ipv6", connect(socket.AF_INET6, (DOCUMENTATION_6, 443)))
    unreachable("metadata-address", connect(socket.AF_INET, ("169.254.169.254", 80)))
    unreachable("udp-443", connect(socket.AF_INET, (DOCUMENTATION_4, 443), socket.SOCK_DGRAM))
    unreachable("host-loopback", connect(socket.AF_INET, ("127.0.0.1", int(str(targets["port"])))))
    abstract = "\0" + str(targets["abstract"])
    unreachable("abstract-socket", connect(socket.AF_UNIX, abstract))
    seen = resolve("denied.keyhole.example")
    rows.append(("unknown-name", seen.startswith("none"), seen))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname(), SECONDS):
            rows.append(("control-own-loopback", True, "a server of the sandbox's own answers"))
    if targets.get("allowed"):
        seen = resolve(str(targets["allowed"]))
        rows.append(("control-allowed-name", seen.startswith("198.1"), seen))
    return rows


def first_process_rows() -> list[Row]:
    """The one process inside that is not the sandbox's own, and whose end ends all others."""
    rows: list[Row] = []
    for name in ("mem", "maps", "fd/0", "environ"):
        seen = _tried(partial(os.open, f"/proc/1/{name}", os.O_RDONLY))
        rows.append((f"first-process {name}", seen in ("EACCES", "EPERM"), seen))
    seen = call("ptrace", _PTRACE_SEIZE, 1, 0, 0)
    rows.append(("first-process trace", seen in ("EPERM", "EACCES"), seen))
    own = os.fork()
    if own == 0:
        signal.pause()
    seen = call("ptrace", _PTRACE_SEIZE, own, 0, 0)
    os.kill(own, signal.SIGKILL)
    os.waitpid(own, 0)
    rows.append(("control-trace", seen == "done", "a child of one's own can be traced"))
    return rows


def limit_rows() -> list[Row]:
    """Limits that hold for this process and all that come after it."""
    rows: list[Row] = []
    limits = {
        "processes": resource.RLIMIT_NPROC,
        "memory": resource.RLIMIT_DATA,
        "open-files": resource.RLIMIT_NOFILE,
        "core": resource.RLIMIT_CORE,
    }
    for name, limit in limits.items():
        soft, hard = resource.getrlimit(limit)
        bounded = resource.RLIM_INFINITY not in (soft, hard)
        rows.append((f"limit-{name}", bounded, f"{hard} at most"))
    for path in ("/", "/dev", "/etc", "/usr"):
        seen = _tried(partial(os.mkdir, os.path.join(path, "keyhole-probe")))
        rows.append((f"read-only {path}", seen == "EROFS", seen))
    return rows


def set_id_rows() -> list[Row]:
    """Files that would run as their owner, by every call that sets a mode."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
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


def _tried(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "done"


def file_rows(targets: dict[str, object]) -> list[Row]:
    """Sockets, processes and kernel interfaces of the host."""
    rows: list[Row] = []
    for path in ("/sys/class/net", "/run/docker.sock", "/var/run/docker.sock", "/dev/vsock",
                 "/dev/net/tun", "/dev/kvm", "/proc/kcore"):  # fmt: skip
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
    rows += limit_rows()
    rows += set_id_rows()
    rows += file_rows(targets)
    json.dump([{"id": name, "held": held, "seen": seen} for name, held, seen in rows], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
