"""A program that locks itself down as the gateway does, then needs or tries one thing after the
other. Each is a generator: what it prepares, `yield`, and what it does, in a process of its own,
free for a control and locked down. `python locked.py DIRECTORY NAME…` prints what came of
it; run by the tests beside, since there is no way back from a lock-down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import resource
import signal
import socket
import ssl
import struct  # noqa: F401 - for attempts
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from keyhole.audit.log import AuditLog, LogBounds
from keyhole.certs.authority import Authority
from keyhole.confine.lockdown import lock_down
from keyhole.control.peer import OwnIdentity, Peer, identify
from keyhole.gateway.door.door import SO_NETNS_COOKIE
from keyhole.judge import judge_process
from keyhole.judge.judge_pool import JudgePool
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.host import Host
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushCase, PushUnjudged
from keyhole.sandbox import empty_network
from keyhole.system import syscalls
from keyhole.system.resolver import SystemResolver
from keyhole.vault.memory_guard import guard_memory
from keyhole.wire.receive_pack import RefCommand

Step = Callable[[], Iterator[None]]

HERE = Path(sys.argv[1]) if __name__ == "__main__" else Path()
STATE = HERE / "state"
GRANTED, OUTSIDE = HERE / "granted", HERE / "outside"
HOSTED, ANSWERED = "192.0.2.8", "192.0.2.7"

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *words: object) -> int:
    """A raw system call; OSError when it fails."""
    result = libc.syscall(number, *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return int(result)


def beside(work: Callable[[], object]) -> int:
    """A process of ours that works until we end; its number."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            syscalls.die_with_parent(parent)
            work()
        finally:
            os._exit(0)
    return child


# ── what a gateway needs ──────────────────────────────────────────────────────────────────────────


def serves_tls() -> Iterator[None]:
    listener = socket.create_server(("127.0.0.1", 0))
    yield
    authority, host = Authority.create("t"), Host.parse("ok.example")

    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readexactly(1 << 20))[::-1])
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, sock=listener, ssl=authority.leaf(host))
        trusting = ssl.create_default_context(cadata=authority.pem.decode())
        at = listener.getsockname()
        reader, writer = await asyncio.open_connection(*at, ssl=trusting, server_hostname=host.name)
        writer.write(b"a" + bytes((1 << 20) - 1))
        assert (await reader.read())[-1:] == b"a"
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def loads_the_hosts_roots() -> Iterator[None]:
    yield
    ssl.create_default_context()


def writes_and_rotates_its_log() -> Iterator[None]:
    yield
    event = Event(EventKind.DNS, Verdict.DENY, "no-rule", host="a.example", details=(("n", "x"),))
    with AuditLog(STATE / "audit", bounds=LogBounds(file=4096, total=40_000)) as log:
        for _ in range(5):
            for _ in range(40):
                log.record("s", event)
            log.flush()
    found = list((STATE / "audit").iterdir())
    assert 1 < len(found) < 6, found


def keeps_files() -> Iterator[None]:
    """A quarantine is a file without a name; others are replaced by renaming."""
    yield
    with tempfile.TemporaryFile(dir=STATE, buffering=0) as file:
        file.write(b"pack")
        os.posix_fallocate(file.fileno(), 0, 1 << 16)
        assert os.pread(file.fileno(), 4, 0) == b"pack"
        assert "(deleted)" in os.readlink(f"/proc/self/fd/{file.fileno()}")
    os.close(os.open(STATE, os.O_TMPFILE | os.O_RDWR, 0o600))
    for name in ("a", "b"):
        (STATE / name).mkdir()
    made = STATE / "a" / "x"
    with made.open("x") as file:
        file.write("new")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.flush()
        os.fsync(file.fileno())
    made.rename(STATE / "b" / "y")
    os.truncate(STATE / "b" / "y", 1)
    assert (STATE / "b" / "y").read_text() == "n"
    (STATE / "b" / "y").unlink()
    for name in ("a", "b"):
        (STATE / name).rmdir()


def reads_what_it_may() -> Iterator[None]:
    yield
    assert (GRANTED / "policy").read_text() == "version = 1"
    Path("/etc/hosts").read_bytes()
    assert Path("/dev/null").read_bytes() == b""


def watches_files() -> Iterator[None]:
    yield
    watch = libc.inotify_init1(os.O_CLOEXEC)
    assert watch >= 0
    assert libc.inotify_add_watch(watch, bytes(STATE), 0x100) >= 0
    (STATE / "seen").touch()
    assert b"seen" in os.read(watch, 4096)
    (STATE / "seen").unlink()


def starts_threads() -> Iterator[None]:
    yield
    ready = threading.Barrier(8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(lambda _: ready.wait(20), range(8)))) == 8


def threads_are_held_too() -> Iterator[None]:
    yield
    told: list[str] = []

    def look() -> None:
        try:
            OUTSIDE.read_text()
        except PermissionError:
            told.append("refused")

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    if not told:
        return
    raise PermissionError(errno.EACCES, "in a thread")


def hands_descriptors_on() -> Iterator[None]:
    yield
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        socket.send_fds(left, [b"x"], [0])
        _, (copy,), _, _ = socket.recv_fds(right, 1, 1)
        os.close(copy)


def knows_who_asks() -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        path = str(STATE / "control.sock")
        listener.bind(path)
        listener.listen()
        client.connect(path)
        namespace = listener.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        own = OwnIdentity(os.geteuid(), namespace)
        yield
        accepted, _ = listener.accept()
        with accepted:
            peer = identify(accepted, own)
            assert isinstance(peer, Peer)
            assert peer.pid == os.getpid()
            peer.close()
        os.unlink(path)


def signals_itself() -> Iterator[None]:
    yield

    async def main() -> None:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def imports_late() -> Iterator[None]:
    """A compiled module that nothing has loaded yet."""
    assert "_lsprof" not in sys.modules
    yield
    __import__("_lsprof")


def keeps_its_memory_locked() -> Iterator[None]:
    """More than any limit that an ordinary user has."""
    held = guard_memory()
    yield
    data = bytearray(64 << 20)
    data[:: mmap.PAGESIZE] = bytes(len(data) // mmap.PAGESIZE)
    threading.Thread(target=len, args=("",)).start()
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    kept = held.locked and (unlimited or int(status["CapEff"], 16) >> 14 & 1)
    assert (int(status["VmLck"].split()[0]) > 64 << 10) == kept
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)


def has_pushes_judged() -> Iterator[None]:
    """By judges of another process, which are ended when their time is over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def keep() -> None:
        keeper = judge_process.JudgeSpawner()
        ours.close()
        while theirs.recv(1):
            control, pidfd = keeper.start()
            socket.send_fds(theirs, [b"x"], [control.fileno(), pidfd])
            control.close()
            os.close(pidfd)

    beside(keep)
    theirs.close()
    yield

    def start() -> tuple[socket.socket, int]:
        ours.send(b"s")
        _, (control, pidfd), _, _ = socket.recv_fds(ours, 1, 2)
        return socket.socket(fileno=control), pidfd

    async def main() -> None:
        tip = "11" * 20
        case = PushCase((RefCommand("0" * 40, tip, "refs/heads/x"),), frozenset([tip]), (), "sha1")
        pool = JudgePool(start=start)
        pool.prepare()
        (found,) = await pool.judge(None, 0, case, _never)
        assert found.change is RefChange.CREATE
        pool.prepare()
        pool.close()
        hurried = JudgePool(seconds=0.0, start=start)
        try:
            await hurried.judge(None, 0, case, _never)
        except PushUnjudged:
            hurried.close()
            return
        raise AssertionError("it was judged in no time")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _never(_: object):  # type: ignore[no-untyped-def] # noqa: ANN202
    await asyncio.Event().wait()
    yield b""


def resolves_names() -> Iterator[None]:
    """By the hosts file, and by a name server. In a namespace of its own, with an /etc of its own,
    so that no name leaves this machine."""
    etc = HERE / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{HOSTED} hosted.example\n")
    (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    subprocess.run(["/bin/mount", "--bind", etc, "/etc"], check=True)
    empty_network.bring_up_loopback()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    beside(lambda: _answer_names(server))
    server.close()
    yield

    async def main() -> list[str]:
        resolver = SystemResolver(asyncio.get_running_loop())
        names = map(Host.parse, ("hosted.example", "answered.example"))
        return [str((await resolver.resolve(name, "s1"))[0]) for name in names]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [HOSTED, ANSWERED]


def _answer_names(server: socket.socket) -> None:
    import dns.message
    import dns.rrset

    while True:
        data, peer = server.recvfrom(4096)
        asked = dns.message.from_wire(data)
        answer = dns.message.make_response(asked)
        (question,) = asked.question
        if question.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(question.name, 9, "IN", "A", ANSWERED))
        server.sendto(answer.to_wire(), peer)


# ── what it may not ───────────────────────────────────────────────────────────────────────────────


def attempt(code: str, before: str = "") -> Step:
    """Some text, run after some other; both see the names of this module."""

    def step() -> Iterator[None]:
        names = dict(globals())
        exec(before, names)  # noqa: S102 - of this very file
        yield
        exec(code, names)  # noqa: S102

    step.__doc__ = code
    return step


ABSTRACT = r"""
made, name = socket.socket(socket.AF_UNIX), '\0keyhole-%d' % os.getpid()
ready = os.pipe()
def serve():
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        os.write(ready[1], b'x')
        listener.accept()
        signal.pause()
beside(serve)
os.read(ready[0], 1)
"""
FILTER = """
made = socket.socket()
code = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0))
at = ctypes.addressof(code)
"""

# An error, what is tried, and its text; `after` is run before it, and sees no wall yet.
_ATTEMPTS = r"""
# files
EACCES read a file outside: OUTSIDE.read_text()
EACCES list a directory outside: os.listdir(HERE)
EACCES write a file outside: OUTSIDE.write_text('')
EACCES make a file outside: (HERE / 'made').touch(); (HERE / 'made').unlink()
EACCES remove a file outside: (HERE / 'gone').unlink()
    after (HERE / 'gone').touch()
EACCES truncate a file outside: os.truncate(OUTSIDE, 0)
EACCES write what may be read: (GRANTED / 'policy').open('a')
EACCES write a system's file: open('/proc/self/comm', 'w')
EPERM open a file to others: OUTSIDE.chmod(0o666)
EPERM open what may be read to others: os.fchmod(os.open(GRANTED / 'policy', os.O_RDONLY), 0o666)
EXDEV link a file in: os.link(OUTSIDE, STATE / 'in'); (STATE / 'in').unlink()
EACCES move a file out: os.rename(STATE / 'out', HERE / 'out'); (HERE / 'out').unlink()
    after (STATE / 'out').touch()
EPERM make a link: os.symlink('/', STATE / 'l'); (STATE / 'l').unlink()
EPERM make a pipe: os.mkfifo(STATE / 'p'); (STATE / 'p').unlink()
EACCES write its own memory: os.open('/proc/self/mem', os.O_RDWR)
# programs and processes
EPERM run a program: subprocess.run(['/bin/true'], check=True, close_fds=False)
SIGSYS become a program: os.execv('/bin/true', ['true'])
SIGSYS become a program in memory: call(322, made, b'', None, None, 0x1000)
    after made = os.memfd_create('x')
EPERM fork: os.fork() or os._exit(0)
EPERM clone a process: call(56, 17, None, None, None, None) or os._exit(0)
ENOSYS clone a process as new programs do: call(435, words, len(words)) or os._exit(0)
    after words = struct.pack('=11Q', *[0] * 11)
SIGSYS trace a process: libc.ptrace(0x4206, other, 0, 0)
    after other = beside(signal.pause)
SIGSYS read a process's memory: libc.process_vm_readv(other, None, 0, None, 0, 0)
    after other = beside(signal.pause)
SIGSYS take a process's descriptor: call(438, handle, 0, 0)
    after other = beside(signal.pause); handle = os.pidfd_open(other)
SIGSYS compare processes: libc.syscall(312, other, os.getpid(), 0, 0, 0)
    after other = beside(signal.pause)
EACCES see a process's variables: open(f'/proc/{other}/environ').read()
    after other = beside(signal.pause)
EPERM kill a process: os.kill(other, 9)
    after other = beside(signal.pause)
EPERM kill a thread of a process: libc.tgkill(other, other, 9) and fail()
    after other = beside(signal.pause)
EPERM kill its group: os.killpg(0, 0)
EPERM kill all: os.kill(-1, 0)
    after os.setpgid(0, 0)
EPERM get hold of a process: os.pidfd_open(other)
    after other = beside(signal.pause)
ENOSYS send a signal by a descriptor: fcntl.fcntl(left, 8, other); fcntl.fcntl(left, 10, 9)
    after other = beside(signal.pause); left, right = socket.socketpair()
ENOSYS signal a group by a pidfd: call(424, handle, 0, None, 4)
    after other = beside(signal.pause); os.setpgid(other, 0); handle = os.pidfd_open(other)
ENOSYS limit another process: resource.prlimit(other, resource.RLIMIT_NOFILE, (9, 9))
    after other = beside(signal.pause)
# sockets
EAFNOSUPPORT make a Unix socket: socket.socket(socket.AF_UNIX)
ENOSYS make a pair that can be sent elsewhere: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
EPERM connect to an abstract socket: made.connect(name)
    after exec(ABSTRACT)
EACCES listen on TCP: socket.create_server(('127.0.0.1', 0))
EAFNOSUPPORT speak netlink other than routing: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
EAFNOSUPPORT make another kind of socket: socket.socket(40, socket.SOCK_STREAM)
ENOSYS speak another protocol: socket.socket(socket.AF_INET, 1, 262)
ENOSYS attach a filter: made.setsockopt(1, 26, struct.pack('=HxxxxxxQ', 1, at))
    after exec(FILTER)
# the kernel
SIGSYS make a namespace: libc.unshare(0)
SIGSYS enter a namespace: libc.setns(made, 0)
    after made = os.open('/proc/self/ns/net', os.O_RDONLY)
SIGSYS mount: libc.mount(None, None, None, 0, None)
SIGSYS change the root: libc.chroot(b'/')
SIGSYS use bpf: libc.syscall(321, 0, None, 0)
SIGSYS use perf: libc.syscall(298, None, 0, -1, -1, 0)
SIGSYS use the keyrings: libc.syscall(250, 0, -3, 0)
SIGSYS use userfaultfd: libc.syscall(323, 1)
ENOSYS use io_uring: call(425, 1, bytes(120))
SIGSYS use another table of system calls: libc.syscall(0x40000000 + 39)
# itself
ENOSYS be readable again: libc.prctl(4, 1, 0, 0, 0) and fail()
EPERM make memory that can be written and run: mmap.mmap(-1, 4096, prot=7)
EPERM make memory that can be run: mmap.mmap(-1, 4096, prot=5)
EPERM have written memory run: libc.mprotect(ctypes.c_void_p(at), 4096, 5) and fail()
    after libc.mmap.restype = ctypes.c_void_p; at = libc.mmap(None, 4096, 3, 0x22, -1, 0)
EPERM become someone: os.setresuid(*os.getresuid())
"""
ATTEMPTS: dict[str, tuple[str, Step]] = {
    name: (error, attempt(code, before))
    for error, name, code, before in re.findall(
        r"^([A-Z]+) (.+?): (.+)\n(?:    after (.+)\n)?", _ATTEMPTS, re.MULTILINE
    )
}
"""Each with what comes of it when it is locked down. The numbers are those of x86_64."""

NEEDS: tuple[Step, ...] = (
    serves_tls, loads_the_hosts_roots, writes_and_rotates_its_log, keeps_files,
    reads_what_it_may, watches_files, starts_threads, hands_descriptors_on, knows_who_asks,
    signals_itself, imports_late, keeps_its_memory_locked, has_pushes_judged, resolves_names,
)  # fmt: skip


def fail() -> None:
    """The error of the last call by way of `libc`."""
    raise OSError(ctypes.get_errno(), "")


def run(step: Step, *, locked: bool) -> str:
    """In a process of its own: `ok`, the name of an error or signal, or what went wrong."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(ours, _do(step, locked=locked).encode())
        os._exit(0)
    os.close(ours)
    with os.fdopen(theirs, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return told or "ok"


def _do(step: Step, *, locked: bool) -> str:
    try:
        going = step()
        next(going)
        if locked:
            lock_down([GRANTED], [STATE])
        next(going, None)
    except OSError as error:
        if error.errno is None:
            return traceback.format_exc()
        return errno.errorcode.get(error.errno, str(error))
    except BaseException:  # noqa: BLE001 - told to the test
        return traceback.format_exc()
    return "ok"


def main(names: list[str]) -> None:
    """All of them, or these; each free and locked down."""
    for each in (STATE, STATE / "audit", GRANTED):
        each.mkdir(exist_ok=True, mode=0o700)
    (GRANTED / "policy").write_text("version = 1")
    OUTSIDE.write_text("not yours")
    steps = {step.__name__: step for step in (*NEEDS, threads_are_held_too)}
    steps |= {name: step for name, (_, step) in ATTEMPTS.items()}
    found = {
        name: [run(steps[name], locked=locked) for locked in (False, True)]
        for name in (names or [name for name in steps if name != resolves_names.__name__])
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[2:])
