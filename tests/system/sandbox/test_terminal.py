"""Interactive programs work as without Keyhole, on a pty that is not the user's (I2)."""

from __future__ import annotations

import json
import shutil
import subprocess
import termios
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.sandbox.screens import Screen, on_a_terminal
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"

LOOK = """
import fcntl, os, signal, sys, termios
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("terminals", [os.isatty(fd) for fd in (0, 1, 2)])
say("foreground", os.tcgetpgrp(0) == os.getpgrp() == os.getpid())
def show(*_):
    say("size", *reversed(os.get_terminal_size(0)))
signal.signal(signal.SIGWINCH, show)
show()
try:
    fcntl.ioctl(0, termios.TIOCSTI, b"x")
    say("pushed")
except OSError as error:
    say("not pushed", error.errno)
sys.stdin.readline()
say("bye")
sys.exit(9)
"""

RAW = """
import os, sys, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"\\x1b[?1049hready")
keys = b""
while not keys.endswith(b"q"):
    keys += os.read(0, 10)
os.write(1, b"\\x1b[?1049l")
termios.tcsetattr(0, termios.TCSANOW, before)
print("keys", keys.hex())
"""


def test_a_terminal_is_a_terminal_inside_and_a_fresh_one(plain: Project) -> None:
    """I2: whoever held the user's own could type into the shell behind it (TIOCSTI).

    Control: keys that the person types do arrive, and the size follows the window's.
    """
    with on_a_terminal(plain, "python3", "-I", "-S", "-c", LOOK, rows=31) as screen:
        screen.until(r"terminals \[True, True, True\]")
        screen.until("foreground True")
        screen.until_raw()
        screen.until("size 31 80\r\n")
        screen.until("not pushed 1\r\n")
        screen.resize(50, 132)
        screen.until("size 50 132\r\n")
        screen.type("line\r")
        screen.until("bye\r\n")
        assert screen.wait() == 9
        assert screen.settings == screen.before


def test_keys_reach_a_full_screen_program_raw(plain: Project) -> None:
    """Ctrl-C, Ctrl-Z and Ctrl-\\ are only keys to a program that says so."""
    with on_a_terminal(plain, "python3", "-I", "-S", "-c", RAW) as screen:
        screen.until("ready")
        screen.type(f"{CTRL_C}{CTRL_Z}{CTRL_BACKSLASH}\x1b[Aq")
        assert screen.until(r"keys (\w+)")[1] == "031a1c1b5b4171"
        assert screen.wait() == 0
        assert screen.settings == screen.before


def test_a_pager_pages(plain: Project) -> None:
    if shutil.which("less") is None:
        pytest.skip("less is not installed")
    plain.write("long", "".join(f"line {number}\n" for number in range(200)))
    with on_a_terminal(plain, "less", "long") as screen:
        screen.until("line 0\\b")
        screen.type("G")
        screen.until("line 199\\b")
        screen.type("q")
        assert screen.wait() == 0
        assert screen.settings == screen.before


def test_ctrl_c_interrupts_the_command_and_not_keyhole(plain: Project) -> None:
    script = "trap 'echo caught; exit 33' INT; echo ready; while :; do sleep 0.1; done"
    with on_a_terminal(plain, "sh", "-c", script) as screen:
        screen.until("ready")
        screen.type(CTRL_C)
        screen.until("caught")
        assert screen.wait() == 33
        assert screen.settings == screen.before
    with on_a_terminal(plain, "sh", "-c", "echo ready; exec cat") as screen:
        screen.until("ready")
        screen.type(CTRL_C)
        assert screen.wait() == 128 + 2
        assert screen.settings == screen.before


def test_ctrl_z_suspends_the_command_with_its_children_and_fg_continues_them(
    plain: Project,
) -> None:
    with on_a_terminal(plain, "sh", "-c", "echo ready; cat; echo after") as screen:
        screen.until("ready")
        screen.until_raw()
        screen.type("zero\r")
        screen.until("zero\r\nzero\r\n")
        for round_ in ("one", "two"):
            screen.type(CTRL_Z)
            screen.until_stopped()
            # The shell gets its terminal back as it was.
            assert screen.settings == screen.before
            screen.go_on()
            screen.type(f"{round_}\r")
            screen.until(f"{round_}\r\n{round_}\r\n")
        screen.type(CTRL_D)
        screen.until("after")
        assert screen.wait() == 0
        assert screen.settings == screen.before


def test_job_control_of_a_shell_works_outside(plain: Project) -> None:
    """`fg` of a real shell, which also hands the terminal over."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")

    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        started: subprocess.Popen[bytes] = subprocess.Popen(
            [bash, "--norc", "--noprofile", "-i"],
            cwd=plain.directory,
            env=plain.env | {"PS1": "prompt> ", "HISTFILE": ""},
            **plain.person.become(),
            **ends,
        )
        return started

    with Screen(start) as screen:
        screen.until("prompt> ")
        screen.type(f"{plain.person.program} run --trust -- sh -c 'echo rea''dy; cat'\r")
        screen.until("ready\r\n")
        screen.until_raw()
        screen.type("zero\r")
        screen.until("zero\r\nzero\r\n")
        screen.type(CTRL_Z)
        screen.until("Stopped")
        screen.until("prompt> ")
        screen.type("echo in the sh''ell\r")
        screen.until("in the shell")
        screen.until("prompt> ")
        screen.type("fg\r")
        screen.until(r"run --trust.*\n")
        screen.until_raw()
        screen.type("typed\r")
        screen.until("typed\r\ntyped\r\n")
        screen.type(CTRL_D)
        screen.until("prompt> ")
        screen.type("echo code $?\r")
        screen.until("code 0")
        screen.until("prompt> ")
        screen.type("exit\r")
        assert screen.wait() == 0


def test_a_shell_inside_has_job_control_of_its_own(plain: Project) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    with on_a_terminal(plain, "bash", "--norc", "--noprofile", "-i") as screen:
        screen.until(r"\$ ")
        # It says when it runs: until then the terminal is still the shell's line editor's.
        screen.type("sh -c 'echo re''ady; exec cat'\r")
        screen.until("ready\r\n")
        screen.type("x\n")
        screen.until("x\r\n")
        screen.type(CTRL_Z)
        screen.until("Stopped")
        screen.type("fg\r")
        screen.until("fg\r\n")
        screen.until("exec cat'\r\n")
        screen.type("y\n")
        screen.until("y\r\ny\r\n")  # cat has answered: the terminal is its own again
        screen.type(CTRL_C)
        screen.until(r"\$ ")
        screen.type("exit 4\r")
        assert screen.wait() == 4


def test_the_terminal_is_given_back_when_the_command_is_killed(plain: Project) -> None:
    script = "stty raw -echo; echo ready; kill -KILL $$"
    with on_a_terminal(plain, "sh", "-c", script) as screen:
        screen.until("ready")
        assert screen.wait() == 128 + 9
        assert screen.settings == screen.before
    with on_a_terminal(plain, "sh", "-c", "echo ready; exec sleep 1000") as screen:
        screen.until("ready")
        assert screen.settings[3] & termios.ICANON == 0  # the control: it was raw meanwhile
        screen.process.terminate()
        assert screen.wait() == 128 + 15
        assert screen.settings == screen.before


def test_a_run_whose_window_is_closed_ends_with_its_command_and_is_written_down(
    plain: Project,
) -> None:
    """I8: the command gets SIGHUP; no terminal is left to restore or to write to."""
    script = "trap 'exit 3' HUP; echo ready; while :; do sleep 0.1; done"
    with on_a_terminal(plain, "sh", "-c", script) as screen:
        screen.until("ready")
        screen.until_raw()
        screen.hang_up()
        assert screen.process.wait(PATIENCE) == 3
    ended = [each for each in json.loads(plain("log", "--json").out) if each["reason"] == "ended"]
    assert ended[-1]["details"]["code"] == 3


def test_a_terminal_and_a_pipe_can_be_mixed(plain: Project) -> None:
    """`keyhole run -- cmd | other`, and `echo x | keyhole run -- cmd`."""
    code = "import os; print([os.isatty(fd) for fd in (0, 1, 2)])"
    with Screen(
        lambda **ends: plain.start(
            "run",
            "--trust",
            "--",
            "python3",
            "-I",
            "-S",
            "-c",
            code,
            **(ends | {"stdout": subprocess.PIPE}),
        )
    ) as screen:
        assert screen.process.stdout is not None
        with screen.process.stdout as out:
            assert out.read() == b"[True, False, True]\n"
        assert screen.wait() == 0
        assert screen.settings == screen.before
    with Screen(
        lambda **ends: plain.start(
            "run",
            "--trust",
            "--",
            "sh",
            "-c",
            "cat; exit 3",
            **(ends | {"stdin": subprocess.PIPE, "preexec_fn": None}),
        )
    ) as screen:
        screen.process.communicate(b"given\n", timeout=PATIENCE)
        screen.until("given\r\n")
        assert screen.wait() == 3


def test_the_last_words_are_shown_however_many(plain: Project) -> None:
    with on_a_terminal(plain, "sh", "-c", "seq 20000; echo the end") as screen:
        assert screen.wait() == 0
        assert "20000\r\nthe end\r\n" in screen.seen


VFORKS = """
import ctypes, os, signal
if ctypes.CDLL(None).vfork() == 0:
    os.write(1, b"in the child\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Is where a shell is between vfork() and exec(), for as long as nobody continues it."""

SHELL = "PS1='$ ' exec bash --norc --noprofile -i"


@pytest.fixture
def shell(plain: Project) -> Iterator[Screen]:
    """An interactive shell on a terminal, as the person has one before Keyhole."""
    env = plain.env | {"KEYHOLE": str(plain.person.program), "VFORKS": VFORKS}

    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        words = ["sh", "-c", SHELL]
        return subprocess.Popen(
            words, cwd=plain.directory, env=env, **plain.person.become(), **ends
        )

    plain.run("true")  # accepted, and its walls tried
    with Screen(start) as screen:
        screen.until(r"\$ ")
        yield screen


def test_a_run_in_the_background_that_reads_nothing_goes_on(shell: Screen) -> None:
    """A shell stops a background job that makes the terminal raw.

    Control: the job is in the background all the time, and a program there that does change the
    terminal is stopped.
    """
    shell.type('"$KEYHOLE" run -q -- sh -c "sleep 0.3; echo en""ded" &\r')
    shell.until("ended")
    shell.type("wait; echo all-do'ne'; jobs\r")
    shell.until("all-done")
    shell.type("stty raw & sleep 0.5; jobs\r")
    shell.until("Stopped .*stty raw")


def test_a_background_run_takes_the_terminal_when_it_is_brought_to_the_foreground(
    shell: Screen,
) -> None:
    shell.type('"$KEYHOLE" run -q -- sh -c "echo be""gun; read line; echo got-\\$line" &\r')
    shell.until("begun")
    shell.type("jobs\r")
    shell.until("Running")
    shell.type("fg\r")
    shell.until(r"run -q [^\n]*\n")
    shell.until_raw()
    shell.type("a-line\r")
    shell.until("got-a-line")
    shell.until(r"\$ ")


def test_a_run_that_was_stopped_by_a_key_goes_on_in_the_background(shell: Screen) -> None:
    shell.type('"$KEYHOLE" run -q -- sh -c "echo be""gun; sleep 1; echo en""ded"\r')
    shell.until("begun")
    shell.until_raw()
    shell.type(CTRL_Z)
    shell.until("Stopped")
    shell.type("bg\r")
    shell.until("ended")
    shell.type("wait; echo all-do'ne'\r")
    shell.until("all-done")


def test_a_key_that_comes_while_a_program_is_started_stops_the_run_too(shell: Screen) -> None:
    """The command is not stopped then: it waits, uninterruptibly, for a child that is."""
    shell.type('"$KEYHOLE" run -q -- python3 -I -S -c "$VFORKS"\r')
    shell.until("in the child")
    shell.until_raw()
    shell.type(CTRL_Z)
    shell.until("Stopped")
    shell.type("kill -KILL %1; wait; echo all-do'ne'\r")
    shell.until("all-done")
