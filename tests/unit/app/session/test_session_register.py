"""What a dead gateway left is cleared up, and nobody else is ended by what lies there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.app.session.session_register import SUPERVISOR, SessionRegister

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ID = "0123456789ab"
SLEEPER = """
import sys, time
from keyhole.system.syscalls import name_process
name_process(sys.argv[1].encode())
print("ready", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def sleeper(name: str) -> Iterator[tuple[subprocess.Popen[bytes], tuple[int, int]]]:
    """A process that the kernel calls so; with its number and its start."""
    words = [sys.executable, "-c", SLEEPER, name]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with open(f"/proc/{process.pid}/stat", "rb") as file:
                started = int(file.read().rpartition(b")")[2].split()[19])
            yield process, (process.pid, started)
        finally:
            process.kill()


def test_a_run_is_ended_and_a_process_that_is_none_is_not(tmp_path: Path) -> None:
    """Attack: a gateway that was taken over writes down somebody else's process, whom the next
    `keyhole up` would kill. Control: one that holds a sandbox is ended."""
    register = SessionRegister(tmp_path)
    with sleeper("editor") as (editor, innocent), sleeper(SUPERVISOR.decode()) as (run, holder):
        register.enter(ID, "sh", innocent)
        register.enter(ID[::-1], "sh", holder)
        left = {each.pid: each.alive for each in register.clear()}
        assert left == {innocent[0]: False, holder[0]: True}
        assert run.wait(10) == -15
        assert editor.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_another_process_with_its_number_is_not_ended(tmp_path: Path) -> None:
    register = SessionRegister(tmp_path)
    with sleeper(SUPERVISOR.decode()) as (run, (pid, started)):
        register.enter(ID, "sh", (pid, started - 1))
        assert [each.alive for each in register.clear()] == [False]
        assert run.poll() is None


def test_whatever_lies_there_the_next_gateway_starts(tmp_path: Path) -> None:
    """I9: links, pipes, directories, endless files and words that are none."""
    register = SessionRegister(tmp_path)
    os.mkfifo(tmp_path / "000000000000.json")
    (tmp_path / "111111111111.json").symlink_to("/dev/zero")
    (tmp_path / "222222222222.json").mkdir()
    good = {"label": "sh", "pid": 2**22, "started": 1}
    odd = [
        "[" * 4000,
        "{}",
        "[]",
        json.dumps(good | {"pid": 1e400}),
        json.dumps(good | {"pid": -1}),
    ]
    for number, text in enumerate(odd):
        (tmp_path / f"33333333333{number}.json").write_text(text)
    (tmp_path / "\x1b[2J.json").write_text(json.dumps(good))
    (tmp_path / f"{ID}.json").write_text(json.dumps(good | {"label": "\x1b[2J" + "x" * 3000}))
    (left,) = register.clear()
    assert (left.session, left.alive, len(left.label)) == (ID, False, 64)
    assert left.label.isprintable()
    assert [each.name for each in tmp_path.iterdir()] == ["222222222222.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_another_user_wrote_is_not_believed(tmp_path: Path) -> None:
    register = SessionRegister(tmp_path)
    with sleeper(SUPERVISOR.decode()) as (run, process):
        register.enter(ID, "sh", process)
        os.chown(tmp_path / f"{ID}.json", 65534, 65534)
        assert register.clear() == []
        assert run.poll() is None
