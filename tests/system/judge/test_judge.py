"""The judge: what it is, what ends it, and what is believed of one that was taken over (I2, I3)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.confine.judge_filter import build_judge_filter
from keyhole.judge import judge, judge_pool, judge_process, judge_protocol
from keyhole.judge.judge_pool import JudgePool
from keyhole.judge.judge_protocol import JudgeMessage
from keyhole.model.decision import Reason
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushFinding, PushUnjudged, UpstreamQuestion
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.sandbox.court import BRANCH, case_of, children, judged, simple, update
from tests.rigs.waiting import PATIENCE, until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.rigs.sandbox.people import Person

SOURCES = Path(judge.__file__).parents[2]


# ── what a judge is ───────────────────────────────────────────────────────────────────────────────


def test_a_judge_has_nothing_and_may_nothing(play: Callable[..., None]) -> None:
    """Its state as the kernel has it: filter, privileges, limits, files, environment."""

    async def test() -> None:
        others = children()
        place = JudgePool()
        place.prepare()
        (pid,) = children() - others
        there = Path(f"/proc/{pid}")
        status: dict[str, str] = {}

        def is_shut_in() -> bool:
            for line in (there / "status").read_text().splitlines():
                key, _, status[key] = line.partition(":\t")
            return status["Seccomp"] == "2"

        await until_in_loop(is_shut_in)
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["Threads"] == "1"
        limits = (there / "limits").read_text()
        for line in (
            f"Max address space {judge.MAX_MEMORY} {judge.MAX_MEMORY} bytes",
            f"Max cpu time {judge.MAX_CPU_SECONDS} {judge.MAX_CPU_SECONDS} seconds",
            "Max open files 5 5 files", "Max file size 0 0 bytes", "Max core file size 0 0 bytes",
            "Max processes 0 0 processes",
        ):  # fmt: skip
            assert line in " ".join(limits.split())
        if os.geteuid() == 0:
            assert (there / "environ").read_bytes() == b""
            links = {fd: os.readlink(there / "fd" / fd) for fd in os.listdir(there / "fd")}
            assert {fd: link.split(":")[0] for fd, link in links.items()} == {
                "0": "/dev/null", "1": "/dev/null", "2": "/dev/null", "3": "socket",
            }  # fmt: skip
            assert os.readlink(there / "cwd") == "/"
        assert os.stat(there).st_uid == 0, "not dumpable: others of the same user cannot look in"
        place.close()

    play(test)


def test_what_we_inherited_from_others_is_not_passed_on(play: Callable[..., None]) -> None:
    async def test() -> None:
        stray = os.dup(0)
        os.set_inheritable(stray, True)
        _, main, _, _ = simple()
        try:
            (found,) = await judged(None, case_of(update(None, main), tips=(main,)))
            assert found.change is RefChange.CREATE
        finally:
            os.close(stray)

    play(test)


PREPARE = """
import ctypes, mmap, os, resource, signal, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from keyhole.judge import judge
listener = socket.create_server(("127.0.0.1", 0))
plain = socket.socket()
left, right = socket.socketpair()
number = os.getpid()
parent = os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
listener.setblocking(False)
null = os.open("/dev/null", os.O_RDWR)
if sys.argv[2]:
    judge._shut_in(bytes.fromhex(sys.argv[2]))
"""

ESCAPES = {
    "open a file": "os.open('/etc/passwd', os.O_RDONLY)",
    "list a directory": "os.listdir('/')",
    "look at a file": "os.stat('/etc/passwd')",
    "make a socket": "socket.socket()",
    "connect": "plain.connect(listener.getsockname())",
    "accept": "listener.accept()",
    "send elsewhere": "left.sendto(b'x', b'')",
    "send a descriptor": "socket.send_fds(left, [b'x'], [null])",
    "fork": "os.fork() or os._exit(0)",
    "start a thread": "threading.Thread(target=len, args=('',)).start()",
    "exec": "os.execv('/bin/sh', ['sh', '-c', 'exit 7'])",
    "spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "trace the parent": "libc.ptrace(0x4206, parent, 0, 0)",
    "kill the parent": "os.kill(parent, 0)",
    "signal itself": "os.kill(number, 0)",
    "read a process's memory": "libc.process_vm_readv(number, None, 0, None, 0, 0)",
    "map memory to run": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "make memory runnable": "libc.mprotect(None, 0, 7)",
    "map a file": "mmap.mmap(null, 1)",
    "look at its limits": "resource.getrlimit(resource.RLIMIT_CPU)",
    "change its own state": "libc.prctl(4, 1, 0, 0, 0)",
    "make a namespace": "libc.unshare(0)",
    "use io_uring": "libc.syscall(425, 0, None)",
    "use bpf": "libc.syscall(321, 0, None, 0)",
    "make a file in memory": "os.memfd_create('x')",
    "duplicate a descriptor": "os.dup(0)",
    "control a device": "os.isatty(0)",
    "change a file's size": "os.ftruncate(null, 0)",
    "learn who it is": "os.getppid()",
}


@pytest.mark.parametrize("attempt", ESCAPES)
def test_no_way_out_is_survived(attempt: str, person: Person) -> None:
    """Each ends the process that tries; without the filter, the same process goes on (I2)."""
    python = person.program.with_name("python")
    program = f"{PREPARE}\ntry:\n    {ESCAPES[attempt]}\nexcept OSError:\n    pass\nos._exit(7)"
    if attempt == "exec":
        program = program.replace("os._exit(7)", "os._exit(8)")
    codes = []
    for rules in ("", build_judge_filter().hex()):
        done = subprocess.run(
            [python, "-I", "-c", program, _readable(person), rules],
            cwd="/", env={}, capture_output=True, check=False, timeout=PATIENCE, **person.become(),
        )  # fmt: skip
        codes.append(done.returncode)
    assert codes == [7, -signal.SIGSYS]


def test_what_a_judge_needs_is_survived(person: Person) -> None:
    """The control of the rig above: reading, writing and memory do not end it."""
    program = f"""{PREPARE}
data = bytearray(64 << 20)
data += bytes(64 << 20)
del data
os.write(left.fileno(), b"x")
assert os.read(right.fileno(), 1) == b"x"
os.pread(null, 1, 0)
os._exit(7)
"""
    done = subprocess.run(
        [person.program.with_name("python"), "-I", "-c", program, _readable(person),
         build_judge_filter().hex()],
        cwd="/", env={}, capture_output=True, check=False, timeout=PATIENCE, **person.become(),
    )  # fmt: skip
    assert done.returncode == 7


def test_memory_is_bounded(person: Person) -> None:
    program = f"{PREPARE}\ntry:\n    bytes(judge.MAX_MEMORY)\nexcept MemoryError:\n    os._exit(7)"
    for rules, code in (("", 0), (build_judge_filter().hex(), 7)):
        done = subprocess.run(
            [person.program.with_name("python"), "-I", "-c", f"{program}\nos._exit(0)",
             _readable(person), rules],
            cwd="/", env={}, capture_output=True, check=False, timeout=PATIENCE, **person.become(),
        )  # fmt: skip
        assert done.returncode == code


def _readable(person: Person) -> str:
    """Where this person finds Keyhole's sources: beside their own interpreter, or ours."""
    copy = person.directory / "environment" / "src"
    return str(copy if copy.exists() else SOURCES)


def test_an_ordinary_user_has_the_same_jail(person: Person) -> None:
    """No privilege and no user namespace is needed."""
    _, main, new, pushed = simple()
    program = f"""
import asyncio, os, sys
from keyhole.model.errors import UpstreamFailed
from keyhole.model.glob import Glob
from keyhole.policy.push_trial import PushCase
from keyhole.judge.judge_pool import JudgePool
from keyhole.wire.receive_pack import RefCommand
async def ask(question):
    raise UpstreamFailed("", "gone")
    yield b""
async def main():
    pack = os.memfd_create("pack")
    os.write(pack, bytes.fromhex({pushed.hex()!r}))
    pool = JudgePool()
    commands = (RefCommand({main.hex()!r}, {new.hex()!r}, {BRANCH!r}),)
    case = PushCase(commands, frozenset([{main.hex()!r}]), (), "sha1")
    (found,) = await pool.judge(pack, 0, case, ask)
    pool.close()
    print(found.change.name)
asyncio.run(main())
"""
    python = person.program.with_name("python")
    done = subprocess.run(
        [python, "-I", "-c", program],
        cwd="/", env={}, capture_output=True, text=True, check=False, timeout=PATIENCE,
        **person.become(),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("FAST_FORWARD\n", "")


# ── a judge that was taken over ───────────────────────────────────────────────────────────────────

FRAME = judge_protocol.frame
NEW = "22" * 20


def line(change: str = "1", proven: str = "proven", clean: str = "clean") -> bytes:
    return f"{change}\t{proven}\t{clean}\t\t".encode()


HOSTILE = {
    "nothing": b"",
    "half a word": FRAME(JudgeMessage.FOUND, line())[:-1],
    "a word that is not known": FRAME(JudgeMessage.FILTER, b"x"),
    "too much": judge_protocol.HEAD.pack(b"r", judge_protocol.MAX_SAID + 1),
    "no findings": FRAME(JudgeMessage.FOUND, b""),
    "findings of others": FRAME(JudgeMessage.FOUND, line() + b"\n" + line()),
    "a change that does not exist": FRAME(JudgeMessage.FOUND, line("9")),
    "fewer fields": FRAME(JudgeMessage.FOUND, b"1\tproven"),
    "more fields": FRAME(JudgeMessage.FOUND, line() + b"\t"),
    "a question of no kind": FRAME(JudgeMessage.QUESTION, b"refs\n" + NEW.encode() + b"\n"),
    "a question for nothing": FRAME(JudgeMessage.QUESTION, b"objects\n\n"),
    "a question of two lines": FRAME(JudgeMessage.QUESTION, b"objects\n" + NEW.encode()),
    "a question that is no oid": FRAME(JudgeMessage.QUESTION, b"objects\nmain\n"),
    "a question with a line in it": FRAME(
        JudgeMessage.QUESTION, b"objects\n" + NEW.encode() + b"\r\n"
    ),
    "wants without end": FRAME(
        JudgeMessage.QUESTION, f"objects\n{' '.join([NEW] * 8193)}\n".encode()
    ),
    "haves without end": FRAME(
        JudgeMessage.QUESTION, f"history\n{NEW}\n{' '.join([NEW] * 257)}".encode()
    ),
}  # fmt: skip


@pytest.fixture
def possess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has every judge say this, whatever it is told."""
    words = tmp_path / "words"

    def become(said: bytes, times: int = 1) -> None:
        words.write_bytes(said * times)
        program = f"""
import os, socket
control = socket.socket(fileno=3)
with open({str(words)!r}, "rb") as file:
    control.sendall(file.read())
control.shutdown(socket.SHUT_WR)
while os.read(3, 65536):
    pass
"""
        monkeypatch.setattr(judge_process, "_PROGRAM", program)

    return become


@pytest.mark.parametrize("said", HOSTILE)
def test_a_judge_that_was_taken_over_finds_nothing(
    play: Callable[..., None], possess: Callable[..., None], said: str
) -> None:
    async def test() -> None:
        possess(HOSTILE[said])
        with pytest.raises(PushUnjudged, match=r"ended before|out of its mind"):
            await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)))
        # Control: the same rig, saying what a judge would.
        possess(FRAME(JudgeMessage.FOUND, line()))
        (found,) = await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)))
        assert found == PushFinding(BRANCH, RefChange.CREATE, None)

    play(test)


def test_what_it_says_of_a_path_is_denied_and_plain(
    play: Callable[..., None], possess: Callable[..., None]
) -> None:
    """Whatever is not said in the one right word denies (I3), and no text writes to a screen."""

    async def test() -> None:
        fields = b"2\tproved\tdirty\t\x1b[2J\xff\t" + b"y" * 9999
        possess(FRAME(JudgeMessage.FOUND, fields))
        (found,) = await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)))
        assert found == PushFinding(
            BRANCH, RefChange.FAST_FORWARD, "?[2J?", "y" * 300, unproven=True
        )
        for word, reason in (
            (JudgeMessage.UNSOUND, Reason.PUSH_MALFORMED),
            (JudgeMessage.FAILED, Reason.PUSH_UNJUDGED),
        ):
            possess(FRAME(word, b"\x1b[2J\xff"))
            with pytest.raises(PushUnjudged) as caught:
                await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)))
            assert caught.value.reason is reason
            assert caught.value.message.endswith("?[2J?")

    play(test)


def test_it_may_not_ask_without_end(
    play: Callable[..., None], possess: Callable[..., None]
) -> None:
    async def test() -> None:
        question = FRAME(JudgeMessage.QUESTION, b"objects\n" + NEW.encode() + b"\n")
        asked = 0

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            nonlocal asked
            asked += 1
            yield b""

        possess(question, judge_pool.MAX_QUESTIONS + 5)
        with pytest.raises(PushUnjudged, match="out of its mind"):
            await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)), ask)
        assert asked == judge_pool.MAX_QUESTIONS + 1

    play(test)


def test_a_judge_that_fails_says_what_it_met(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, a case that it cannot read."""

    async def test() -> None:
        monkeypatch.setattr(judge_protocol, "write_case", lambda *_: b"{}")
        with pytest.raises(PushUnjudged, match="the judge failed: KeyError"):
            await judged(None, case_of(RefCommand("0" * 40, NEW, BRANCH)))

    play(test)
