"""Attacks that once worked, each with the wall that stops it now."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

OUTLIVING = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, EXIT_EVENT = 0x4206, 0x40
if os.fork() == 0:
    os.setsid()
    traced = libc.ptrace(SEIZE, 1, None, ctypes.c_void_p(EXIT_EVENT))
    open("traced", "w").write(str(traced))
    time.sleep(2)
    open("outlived", "w").write("x")
    os._exit(0)
while not os.path.exists("traced"):
    time.sleep(0.01)
"""


def test_nothing_inside_outlives_the_run(new_project: Callable[..., Project]) -> None:
    """I2: process 1 cannot be held at its exit by a tracer of the same user."""
    project = new_project()
    assert project.run("python3", "-I", "-S", "-c", OUTLIVING).code == 0
    assert (project.directory / "traced").read_text() == "-1"
    ended = time.monotonic()
    while time.monotonic() < ended + 3:  # the attack writes after two seconds, if it lives
        assert not (project.directory / "outlived").exists()
        time.sleep(0.1)


def test_a_file_given_to_be_read_cannot_be_written_and_one_to_be_written_not_read(
    new_project: Callable[..., Project],
) -> None:
    """I11: a redirected file lies outside of every bind, whatever /proc/self/fd says."""
    project = new_project()
    given, taken = project.home / "script.sh", project.home / "out.log"
    given.write_text("echo from the script\n")
    taken.write_text("what was there before\n")
    for path in (given, taken):
        project.person.own(path)
    script = "cat; echo attack >> /proc/self/fd/0; timeout 1 cat /proc/self/fd/1 >&2; true"
    with given.open("rb") as stdin, taken.open("ab") as stdout:
        ran = project.run("sh", "-c", script, stdin=stdin, stdout=stdout)
    assert ran.code == 0
    assert given.read_text() == "echo from the script\n"
    assert taken.read_text() == "what was there before\necho from the script\n"
    assert "what was there before" not in ran.err


def test_a_cover_that_the_host_takes_away_ends_the_run(new_project: Callable[..., Project]) -> None:
    """I1, I11: a file replaced outside loses its mask inside, so nothing may go on inside."""
    project = new_project()
    project.write(".env", "SECRET=old\n")
    script = "echo started; while true; do cat .env; sleep 0.1; done"
    process = project.start("run", "--trust", "-q", "--", "sh", "-c", script)
    with process:
        assert line_of(process.stdout) == "started"
        fresh = project.write("fresh", "SECRET=fresh\n")
        fresh.rename(project.directory / ".env")
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    assert b"was replaced on the host" in err
    assert out.count(b"SECRET=fresh") <= 5  # what was read in the moment until the kernel told us


def test_a_file_that_is_not_covered_may_be_replaced(new_project: Callable[..., Project]) -> None:
    """The control: only covers end a run."""
    project = new_project()
    project.write("plain", "old")
    with project.running(
        "sh", "-c", "echo started; read line; cat plain", stdin=subprocess.PIPE
    ) as process:
        assert line_of(process.stdout) == "started"
        project.write("fresh", "new").rename(project.directory / "plain")
        out, _ = process.communicate(b"go\n", timeout=PATIENCE)
    assert (process.returncode, out) == (0, b"new")


def test_a_directory_made_to_look_like_a_repository_hides_nothing(
    new_project: Callable[..., Project],
) -> None:
    """I11: the report names what lies in it, and a quiet run reports as well."""
    project = new_project()
    files = "HEAD .vscode/tasks.json .envrc"
    script = f"mkdir -p objects refs .vscode; for f in {files}; do echo x > $f; done"
    ran = project.run("sh", "-c", script, flags=("-q",))
    assert ran.code == 0
    for name in (".envrc", ".vscode/tasks.json"):
        assert f"new: {project.directory}/{name}" in ran.err


def test_a_preloaded_library_does_not_reach_the_process_that_asserts(
    new_project: Callable[..., Project],
) -> None:
    """I2: the policy's variables are the command's alone."""
    project = new_project("[sandbox.env]\nLD_PRELOAD = '/nonexistent/keyhole.so'\n")
    ran = project.run("sh", "-c", "echo $LD_PRELOAD")
    assert ran.lines == ["/nonexistent/keyhole.so"]
    loader = [line for line in ran.err.splitlines() if "LD_PRELOAD" in line]
    assert len(loader) <= 1  # the shell's own; the first process would have complained too


def test_the_first_process_is_not_in_the_users_session(plain: Project) -> None:
    """I11: what is in it could open the user's terminal."""
    code = (
        "import json,os; print(json.dumps([os.getsid(1), open('/proc/1/stat').read().split()[6]]))"
    )
    session, terminal = plain.python(code)
    assert session == 1
    assert terminal == "0"


def test_a_first_process_that_stays_in_the_users_session_shows_it() -> None:
    """The control: a session begun outside has no number in the sandbox's process namespace."""
    bwrap = "bwrap --unshare-user --unshare-pid --as-pid-1 --dev-bind / /".split()
    stayed = subprocess.run(
        [*bwrap, sys.executable, "-c", "import os; print(os.getsid(1))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert stayed.stdout == "0\n"
