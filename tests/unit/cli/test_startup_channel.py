"""A process that is started in the background is ended wherever its start is interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.containers.named_sandbox import NamedSandbox, SandboxRecord, new_volume
from keyhole.cli import new, startup_channel
from keyhole.cli.startup_channel import StartingUser, start
from keyhole.model.errors import SetupFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEPS = {
    "Popen": "import time; time.sleep(300)",
    "_converse": "import socket, sys, time\n"
    "line = socket.socket(fileno=int(sys.argv[-1]))\n"
    "line.recv(9)\n"
    "line.send(b'r')\n"
    "time.sleep(300)",
    "_give_up": "pass",
}
"""Each step that is interrupted, and a program that gets that far."""
STEPS["_next"] = STEPS["_converse"]
PERSON = StartingUser(lambda _: None, None)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Have Ctrl-C raise, in the background as well."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    made: list[subprocess.Popen[bytes]] = []
    launch = subprocess.Popen

    def popen(*words: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        made.append(launch(*words, **options))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return made


def interrupting(step: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """The step, with Ctrl-C just before it or just after it."""

    def interrupted(*words: Any, **options: Any) -> Any:  # noqa: ANN401
        if not after:
            signal.raise_signal(signal.SIGINT)
        found = step(*words, **options)
        if after:
            signal.raise_signal(signal.SIGINT)
        return found

    return interrupted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_at_any_step_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
    children: list[subprocess.Popen[bytes]],
    step: str,
    after: bool,
) -> None:
    """A process that is ready is ended as well, if its starter does not return; `_give_up` is
    interrupted by a second Ctrl-C.

    Control: without an interrupt, one that is ready lives on.
    """
    of = subprocess if step == "Popen" else startup_channel
    monkeypatch.setattr(of, step, interrupting(getattr(of, step), after=after))
    words = (sys.executable, "-I", "-c", STEPS[step])
    with open(os.devnull, "wb") as log, pytest.raises((KeyboardInterrupt, SetupFailed)):
        start(words, {}, log.fileno(), PERSON)
    [child] = children
    assert child.poll() is not None


def test_without_an_interrupt_it_lives_on(children: list[subprocess.Popen[bytes]]) -> None:
    words = (sys.executable, "-I", "-c", STEPS["_converse"])
    with open(os.devnull, "wb") as log:
        pid = start(words, {}, log.fileno(), PERSON)
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert [child.pid for child in children] == [pid]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["make_sandbox", "start_supervisor", "destroy_sandbox"])
def test_an_interrupted_new_removes_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, after: bool
) -> None:
    """Control: if nothing interrupts it, the record stays."""
    places = SimpleNamespace(sandboxes=tmp_path / "sandboxes")
    record = SandboxRecord("box", "docker", "i", "/e", "/p", "/d", (), new_volume("box"), 0)
    for name, made in (
        ("find_host_paths", lambda: places),
        ("accept_policy", lambda *_: None),
        ("_record", lambda *_: record),
        ("start_supervisor", lambda *_: None),
        ("destroy_sandbox", lambda named, _: named.remove()),
    ):
        monkeypatch.setattr(new, name, made)
    options = argparse.Namespace(command=(), name="box", policy=None, trust=None)
    assert new.run(options) == 0
    assert (places.sandboxes / "box/record").exists()
    NamedSandbox(places.sandboxes / "box").remove()
    if step == "destroy_sandbox":  # a second Ctrl-C
        monkeypatch.setattr(new, "start_supervisor", interrupting(lambda *_: None, after=False))
    monkeypatch.setattr(new, step, interrupting(getattr(new, step), after=after))
    with pytest.raises(KeyboardInterrupt):
        new.run(options)
    assert not list(places.sandboxes.iterdir())
