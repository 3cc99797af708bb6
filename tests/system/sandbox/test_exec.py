"""`keyhole exec`: a second command in a running sandbox, behind the same walls (I2)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.run.exec_endpoint import MAX_COMMANDS
from keyhole.control.exec_socket import ExecRequest, ExecStarted, request_exec
from keyhole.model.errors import Refused
from tests.rigs.sandbox.projects import Project, Ran, line_of, until_nobody_is_in
from tests.rigs.sandbox.screens import Screen
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

CTRL_C, CTRL_Z = "\x03", "\x1a"

WALLS = """
import json, os
status = dict(l.split(":", 1) for l in open("/proc/self/status") if ":" in l)
names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid")
print(json.dumps({
    "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in os.listdir("/proc/self/ns")},
    "status": {n: status[n].strip() for n in names},
    "group": open("/proc/self/cgroup").read(),
    "mounts": sorted(l.split(" ")[4] for l in open("/proc/self/mountinfo")),
    "variables": {n: v for n, v in os.environ.items() if n not in ("TERM", "COLORTERM")},
    "limits": open("/proc/self/limits").read(),
    "directory": os.getcwd(),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
    "count": len(os.listdir("/proc/self/fd")),
}), flush=True)
"""
STAYING = WALLS + "import sys; sys.stdin.read()\n"


class Held:
    """A sandbox that waits, and `keyhole exec` into it."""

    def __init__(self, project: Project, process: subprocess.Popen[bytes]) -> None:
        self.project = project
        self.process = process
        self.first: dict[str, Any] = json.loads(line_of(process.stdout))
        listed = json.loads(project("ps", "--json").out)
        (self.id,) = (each["id"] for each in listed if each["pid"] == process.pid)

    def __call__(self, *command: str, **more: Any) -> Ran:  # noqa: ANN401 - of a project
        return self.project("exec", self.id, "--", *command, **more)

    def shell(self, script: str, **more: Any) -> Ran:  # noqa: ANN401 - of a project
        return self("sh", "-c", script, **more)

    def start(self, *command: str, **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        return self.project.start("exec", self.id, "--", *command, **more)

    @property
    def runtime(self) -> Path:
        return self.project.home / "state" / "keyhole" / "run"


@contextlib.contextmanager
def held(project: Project, **more: Any) -> Iterator[Held]:  # noqa: ANN401 - of a project
    """A sandbox whose first command waits."""
    words = ("python3", "-I", "-S", "-c", STAYING)
    with project.running(*words, stdin=subprocess.PIPE, **more) as process:
        yield Held(project, process)


@pytest.fixture(scope="module")
def sandbox(plain: Project) -> Iterator[Held]:
    """One for all tests that leave it as it was."""
    with held(plain) as made:
        yield made
        _finish(made)


@pytest.mark.by_turns("both")
def test_a_further_command_runs_behind_the_same_walls(sandbox: Held) -> None:
    """I2: each wall is compared with that of the first command, which asserted them."""
    done = sandbox("python3", "-I", "-S", "-c", WALLS)
    assert done.code == 0, done
    found = json.loads(done.out)
    assert found == sandbox.first
    assert found["status"]["Seccomp"] == "2"  # the control: these are the facts that were meant
    assert found["status"]["CapEff"] == "0" * 16
    assert found["namespaces"]["net"] != os.readlink("/proc/self/ns/net")
    assert found["descriptors"] == ["0", "1", "2"]
    assert found["count"] == 4  # the fourth is the listing's own


def test_words_streams_and_exit_codes_are_as_of_a_run(sandbox: Held) -> None:
    done = sandbox.shell('cat; echo "$@" >&2; exit 7', text=b"typed\n")
    assert (done.code, done.out, done.err) == (7, "typed\n", "\n")
    assert sandbox("sh", "-c", 'echo "$1 $2"', "sh", "--", "-q").out == "-- -q\n"
    assert sandbox("kill-nothing").code == 127
    assert "not found in the sandbox" in sandbox("kill-nothing").err
    assert sandbox("/etc").code == 126
    assert sandbox.shell("kill -TERM $$").code == 128 + signal.SIGTERM


def test_a_beginning_of_the_id_will_do_and_an_unknown_one_is_refused(sandbox: Held) -> None:
    assert sandbox.project("exec", sandbox.id[:5], "--", "echo", "in").out == "in\n"
    for unknown in ("ffff", "no-such", "../../x", ""):
        done = sandbox.project("exec", unknown, "--", "true")
        assert done.code == 125
        assert f"no sandbox '{unknown}' runs; `keyhole ps` lists them" in done.err
    assert sandbox.project("exec", sandbox.id).code == 125


def test_it_starts_where_the_caller_is_or_where_the_run_was(sandbox: Held, ground: Path) -> None:
    below = sandbox.project.directory / "below"
    below.mkdir()
    sandbox.project.person.own(below)
    program = [str(sandbox.project.person.program), "exec", sandbox.id, "--", "pwd"]
    # The second directory is above the project.
    for directory, expected in ((below, below), (ground, sandbox.project.directory)):
        done = subprocess.run(
            program, cwd=directory, env=sandbox.project.env, capture_output=True, text=True,
            timeout=PATIENCE, check=True, **sandbox.project.person.become(),
        )  # fmt: skip
        assert done.stdout == f"{expected}\n"


LOOK = """
import os, signal, sys
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("terminals", [os.isatty(fd) for fd in (0, 1, 2)])
say("foreground", os.tcgetpgrp(0) == os.getpgrp() == os.getpid())
say("owner", os.open("/dev/tty", os.O_RDWR) > 2)
def show(*_):
    say("size", *reversed(os.get_terminal_size(0)))
signal.signal(signal.SIGWINCH, show)
show()
sys.stdin.readline()
say("bye")
sys.exit(9)
"""


@contextlib.contextmanager
def on_a_terminal(sandbox: Held, *command: str, rows: int = 24) -> Iterator[Screen]:
    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        return sandbox.start(*command, **ends)

    with Screen(start, rows) as it:
        yield it


def test_a_second_terminal_is_a_terminal_of_its_own(sandbox: Held) -> None:
    with on_a_terminal(sandbox, "python3", "-I", "-S", "-c", LOOK, rows=31) as screen:
        screen.until(r"terminals \[True, True, True\]")
        screen.until("foreground True")
        screen.until("owner True")
        screen.until_raw()
        screen.until("size 31 80\r\n")
        screen.resize(50, 132)
        screen.until("size 50 132\r\n")
        screen.type("line\r")
        screen.until("bye\r\n")
        assert screen.wait() == 9
        assert screen.settings == screen.before


def test_ctrl_c_and_ctrl_z_are_the_second_terminals_own(sandbox: Held) -> None:
    with on_a_terminal(sandbox, "sh", "-c", "echo ready; cat; echo after") as screen:
        screen.until("ready")
        screen.until_raw()
        screen.type(CTRL_Z)
        screen.until_stopped()
        assert screen.settings == screen.before
        screen.go_on()
        screen.type("words\r")
        screen.until("words\r\nwords")
        screen.type("\x04")
        screen.until("after")
        assert screen.wait() == 0
    with on_a_terminal(sandbox, "sh", "-c", "echo ready; exec cat") as screen:
        screen.until("ready")
        screen.until_raw()
        screen.type(CTRL_C)
        assert screen.wait() == 128 + signal.SIGINT
    assert sandbox.process.poll() is None


def test_signals_to_keyhole_reach_the_command(sandbox: Held) -> None:
    script = "trap 'echo caught; exit 33' TERM; echo ready; while :; do sleep 0.05; done"
    process = sandbox.start("sh", "-c", script)
    assert line_of(process.stdout) == "ready"
    process.send_signal(signal.SIGTERM)
    assert line_of(process.stdout) == "caught"
    assert _end(process) == 33


def test_a_command_ends_with_its_caller_and_what_it_detached_with_the_sandbox(
    plain: Project,
) -> None:
    """Positive control: before the caller is killed, both run."""
    script = "setsid sh -c 'echo $$; exec sleep 1000' & echo $$; exec sleep 1000"
    with held(plain) as sandbox:
        process = sandbox.start("sh", "-c", script)
        inside = {line_of(process.stdout), line_of(process.stdout)}
        assert set(sandbox.shell("pgrep -x sleep").lines) == inside
        process.kill()
        _end(process)
        until(lambda: len(sandbox.shell("pgrep -x sleep").lines) == 1)
        namespace = sandbox.first["namespaces"]["net"]
    until_nobody_is_in(namespace)
    left = sandbox.runtime / "exec" / f"{sandbox.id}.sock"
    assert left.exists()  # the run was killed; the next verb removes what it left
    assert sandbox("true").code == 125
    assert not left.exists()


REACHING = """
import ctypes, errno, json, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def trace(pid):
    done = libc.ptrace(16, pid, 0, 0)  # PTRACE_ATTACH
    return "traced" if done == 0 else errno.errorcode[ctypes.get_errno()]
def look(pid):
    try:
        return sorted(os.readlink(f"/proc/{pid}/fd/{n}")[:6] for n in os.listdir(f"/proc/{pid}/fd"))
    except OSError as error:
        return errno.errorcode[error.errno]
def memory(pid):
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        return "open"
    except OSError as error:
        return errno.errorcode[error.errno]
def take(pid):
    done = libc.syscall(438, os.pidfd_open(pid), 8, 0)  # pidfd_getfd
    return "taken" if done >= 0 else errno.errorcode[ctypes.get_errno()]
child = os.fork()
if child == 0:
    os.dup2(0, 8)
    time.sleep(1000)
time.sleep(0.1)
own = {"memory": memory(child), "look": bool(look(child)), "trace": trace(child)}
os.kill(child, signal.SIGKILL)
first = {"memory": memory(1), "look": look(1), "take": take(1), "trace": trace(1)}
for number in range(1, 65):
    for _ in range(20):
        try:
            os.kill(1, number)
        except OSError:
            pass
print(json.dumps([own, first]))
"""


@pytest.mark.by_turns("both")
def test_code_inside_cannot_reach_the_process_that_starts_commands(plain: Project) -> None:
    """Neither trace it, nor read or take its descriptors, nor end it by any signal.

    Control: the same code reaches a process of its own.
    """
    with held(plain) as sandbox:
        done = sandbox("python3", "-I", "-S", "-c", REACHING)
        own, first = json.loads(done.out)
        assert own["memory"] == "open"
        assert own["look"]
        assert own["trace"] in ("traced", "EPERM")  # Yama lets a parent trace
        assert first["memory"] == "EACCES"
        assert first["look"] == "EACCES"
        assert first["take"] == "EPERM"
        assert first["trace"] == "EPERM"
        assert sandbox("echo", "still").out == "still\n"
        assert sandbox.process.poll() is None


HUNTING = """
import os, sys
seen = set()
me = os.getpid()
print("hunting", flush=True)
while not os.path.exists(sys.argv[1]):
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, 2, me):
            try:
                top = f"/proc/{name}/fd"
                found = {os.readlink(f"{top}/{n}")[:7] for n in os.listdir(top)}
                seen |= found
                if found:
                    open(f"/tmp/seen-{name}", "w").close()
            except OSError:
                pass
print(sorted(seen), flush=True)
"""


KEPT_STOPPED = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print(os.getpid(), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.by_turns("both")
def test_no_descriptor_of_the_set_up_is_seen_before_the_command_runs(sandbox: Held) -> None:
    """A hunter looks at the descriptors of every new process. Control: it sees their streams."""
    over = sandbox.project.directory / "over"
    hunter = sandbox.start("python3", "-I", "-S", "-c", HUNTING, str(over))
    assert line_of(hunter.stdout) == "hunting"
    for _ in range(5):
        script = "until [ -e /tmp/seen-$$ ]; do sleep 0.02; done"
        assert sandbox.shell(script, text=b"").code == 0
    over.touch()
    seen = line_of(hunter.stdout)
    assert _end(hunter) == 0
    assert "pipe:[" in seen
    assert "socket:" not in seen
    assert "/memfd:" not in seen


def test_code_inside_that_kills_or_stops_a_command_holds_no_caller(sandbox: Held) -> None:
    process = sandbox.start("sh", "-c", "echo $$; exec sleep 1000")
    pid = line_of(process.stdout)
    assert sandbox.shell(f"kill -9 {pid}").code == 0
    assert _end(process) == 137
    process = sandbox.start("sh", "-c", "echo $$; exec sleep 1000")
    pid = line_of(process.stdout)
    assert sandbox.shell(f"kill -STOP {pid}").code == 0
    process.kill()
    _end(process)
    until(lambda: sandbox.shell(f"kill -0 {pid} 2>/dev/null").code == 1)


def test_code_inside_that_keeps_a_command_stopped_does_not_hold_its_caller(sandbox: Held) -> None:
    """Control: a command that is stopped once gets the signal."""
    process = sandbox.start("sh", "-c", "echo $$; exec sleep 1000")
    pid = line_of(process.stdout)
    assert sandbox.shell(f"kill -STOP {pid}").code == 0
    process.send_signal(signal.SIGTERM)
    assert _end(process) == 128 + signal.SIGTERM
    process = sandbox.start("python3", "-c", KEPT_STOPPED)
    pid = line_of(process.stdout)
    stopping = f"while kill -STOP {pid} 2>/dev/null; do :; done"
    stopper = sandbox.start("sh", "-c", stopping)
    process.send_signal(signal.SIGTERM)
    assert _end(process) == 128 + signal.SIGTERM
    assert _end(stopper) == 0  # the command was ended for good


def test_a_process_left_behind_does_not_hold_the_caller(sandbox: Held) -> None:
    """It has the caller's pipe, and the caller ends with its own command."""
    with on_a_terminal(sandbox, "sh", "-c", "sleep 1000 & echo $!; exit 4") as screen:
        pid = screen.until(r"(\d+)\r\n")[1]
        assert screen.wait() == 4
    sandbox.shell(f"kill -9 {pid}")


def test_after_a_revocation_no_further_command_starts_and_each_was_recorded(
    plain: Project,
) -> None:
    """I8: with its program, and without its words."""
    with held(plain) as sandbox:
        assert sandbox("true", "a-word-of-the-person").code == 0  # the control
        process = sandbox.start("sh", "-c", "echo ready; cat", stdin=subprocess.PIPE)
        assert line_of(process.stdout) == "ready"
        assert plain("revoke", sandbox.id).code == 0
        until(lambda: sandbox("true").code == 125)
        assert "nothing was run: its session is closed (revoked)" in sandbox("true").err
        assert process.poll() is None  # one that runs goes on, as the first command does
        assert plain("stop", sandbox.id).code == 0
        assert _end(process) == 137
        assert sandbox("true").code == 125
    events = [each for each in plain.events() if each["session"] == sandbox.id]
    found = [each["details"]["command"] for each in events if each["reason"] == "exec"]
    assert found == ["true", "sh"]
    assert "a-word-of-the-person" not in json.dumps(events)


def test_it_enters_a_sandbox_that_keyhole_up_serves(project: Project) -> None:
    assert project("up").code == 0
    try:
        with held(project) as sandbox:
            assert sandbox.shell("exit 5").code == 5
            assert project("revoke", sandbox.id).code == 0
            until(lambda: sandbox("true").code == 125)
            _finish(sandbox)
    finally:
        assert project("down").code == 0
    assert [
        each["details"]["command"] for each in project.events() if each["reason"] == "exec"
    ] == ["sh"]


@pytest.mark.by_turns("both")
def test_another_user_enters_nothing(sandbox: Held) -> None:
    """The directory is closed to others, and root's verbs do not enter a person's sandbox."""
    if os.geteuid() != 0 or sandbox.project.person.is_root:
        pytest.skip("needs two users")
    streams = [os.open(os.devnull, os.O_RDWR)] * 3
    request = ExecRequest(("true",), "", {}, interactive=False)
    with pytest.raises(Exception, match="belongs to uid"):
        request_exec(sandbox.runtime, sandbox.id, request, streams)
    os.close(streams[0])
    assert sandbox("true").code == 0  # the control


@pytest.fixture
def ask(sandbox: Held) -> Iterator[Callable[..., ExecStarted]]:
    """Asks as the verb does, from this process."""
    if sandbox.project.person.uid != os.geteuid():
        pytest.skip("asks as the person who runs the suite")
    null = os.open(os.devnull, os.O_RDWR)
    made: list[ExecStarted] = []

    def ask(*command: str, streams: tuple[int, ...] = (null, null, null)) -> ExecStarted:
        request = ExecRequest(command, "", {}, interactive=False)
        started = request_exec(sandbox.runtime, sandbox.id, request, streams)
        assert started is not None
        made.append(started)
        return started

    yield ask
    for each in made:
        each.connection.close()
        each.line.close()
        os.close(each.pidfd)
    os.close(null)


def test_further_commands_are_bounded(sandbox: Held, ask: Callable[..., ExecStarted]) -> None:
    """I9: and the place of one that has ended is free again."""
    started = [ask("sleep", "1000") for _ in range(MAX_COMMANDS)]
    with pytest.raises(Refused, match=f"{MAX_COMMANDS} commands of `keyhole exec` run there"):
        ask("true")
    started[0].connection.close()

    def starts() -> bool:
        with contextlib.suppress(Refused):
            return ask("true").line.recv(16) == b"0"
        return False

    until(starts)


def test_no_descriptor_but_a_terminal_a_pipe_or_null_is_passed_in(
    sandbox: Held, ask: Callable[..., ExecStarted], tmp_path: Path
) -> None:
    """A socket would lead to the host's network, a directory to its files."""
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    with socket.socket() as sock, open(tmp_path / "file", "w") as file:
        directory = os.open(tmp_path, os.O_RDONLY)
        for each in (sock.fileno(), file.fileno(), directory):
            for place in range(3):
                streams = [null, null, null]
                streams[place] = each
                with pytest.raises(Refused, match="neither a terminal nor a pipe"):
                    ask("true", streams=tuple(streams))
        assert ask("echo", "x", streams=(null, write_end, null)).line.recv(16) == b"0"  # control
        assert os.read(read_end, 10) == b"x\n"
        for each in (read_end, write_end, null, directory):
            os.close(each)


def _end(process: subprocess.Popen[bytes]) -> int:
    code = process.wait(PATIENCE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return code


def _finish(sandbox: Held) -> None:
    """Let the first command end by itself."""
    assert sandbox.process.stdin is not None
    sandbox.process.stdin.close()
    sandbox.process.stdin = None
    assert sandbox.process.wait(PATIENCE) == 0
