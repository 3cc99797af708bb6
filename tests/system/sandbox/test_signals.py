"""What is sent to `keyhole` reaches the command; whoever dies, nothing opens and nobody is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.launch import HALT, STEPS
from tests.rigs.sandbox.projects import (
    holders_of_namespace,
    line_of,
    mounts_of,
    rest_of,
    until_nobody_is_in,
)
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

FAULT = "KEYHOLE_UNSAFE_FAULT"
NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")

WAIT_FOR_SIGNALS = f"""
import signal, sys
awaited = [signal.Signals[name] for name in {NAMES!r}]
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("ready", flush=True)
for _ in awaited:
    print(signal.sigwait(awaited).name, flush=True)
sys.exit(7)
"""

DOWNLOAD = """
import os, ssl, urllib.request
print(os.readlink("/proc/self/ns/net"), flush=True)
context = ssl.create_default_context(cafile="ca.pem")
with urllib.request.urlopen("https://origin.example/endless", context=context) as answer:
    while answer.read(1 << 20):
        print("more", flush=True)
"""

# A child that has left its session and its streams, as a daemon does.
DAEMON = "setsid sh -c 'exec sleep 1000 <&- >/dev/null 2>&1' &"


def test_signals_to_keyhole_reach_the_command(plain: Project) -> None:
    with plain.running("python3", "-I", "-S", "-c", WAIT_FOR_SIGNALS) as process:
        assert line_of(process.stdout) == "ready"
        for name in NAMES:
            process.send_signal(signal.Signals[name])
            assert line_of(process.stdout) == name
        assert process.wait(PATIENCE) == 7


def test_a_terminated_command_takes_everybody_with_it(plain: Project) -> None:
    """I2: daemons that it left inside end with it, and no mount or namespace stays."""
    script = f"{DAEMON} readlink /proc/self/ns/net; echo ready; exec sleep 1000"
    with plain.running("sh", "-c", script) as process:
        namespace, _ = line_of(process.stdout), line_of(process.stdout)
        assert len(holders_of_namespace(namespace)) >= 3
        process.terminate()
        assert process.wait(PATIENCE) == 128 + 15
        assert rest_of(process.stdout) == b""
    until_nobody_is_in(namespace)
    assert mounts_of(plain) == []


def test_a_command_that_ends_leaves_nobody_behind(plain: Project) -> None:
    done = plain.shell(f"{DAEMON} readlink /proc/self/ns/net; exit 5")
    assert done.code == 5
    until_nobody_is_in(done.lines[0])
    assert mounts_of(plain) == []


def test_a_command_ends_with_its_time(new_project: Callable[..., Project]) -> None:
    """I9: `limits.ttl`. Control: a command within it is not touched."""
    project = new_project('[limits]\nttl = "2s"\n')
    before = time.monotonic()
    with project.running("sh", "-c", "readlink /proc/self/ns/net; exec sleep 1000") as process:
        namespace = line_of(process.stdout)
        assert process.wait(PATIENCE) == 124
    assert time.monotonic() - before >= 2
    until_nobody_is_in(namespace)
    assert project.shell("exit 6").code == 6


def test_that_the_time_is_over_is_told_once(new_project: Callable[..., Project]) -> None:
    done = new_project('[limits]\nttl = "2s"\n').shell("exec sleep 1000")
    assert done.code == 124
    assert done.err.count("limits.ttl (2 s) is over") == 1


def test_when_keyhole_is_killed_everything_inside_ends(
    open_project: Callable[..., Project], origin: GitAndWeb
) -> None:
    """I2: in the middle of a transfer, with a daemon inside. Control: the transfer did flow."""
    project = open_project()
    command = ("sh", "-c", f'{DAEMON} exec python3 -I -c "$0"', DOWNLOAD)
    with project.running(*command) as process:
        namespace = line_of(process.stdout)
        assert line_of(process.stdout) == "more"
        assert len(holders_of_namespace(namespace)) >= 3
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        rest_of(process.stdout)
    until_nobody_is_in(namespace)
    assert mounts_of(project) == []
    # The origin is not held up by a connection that nobody reads.
    origin.until_idle()


@pytest.mark.parametrize("killed", ["helper", "gateway"])
def test_a_set_up_that_is_interrupted_runs_nothing_and_leaves_nothing(
    plain: Project, killed: str
) -> None:
    """I2: killed after each step. Control: without a fault the same command runs."""
    assert_nothing_is_run(plain, killed)
    assert plain("log", "verify").code == 0


def assert_nothing_is_run(plain: Project, killed: str, fault: str = "") -> None:
    """One of the two is killed after each step of a set-up. Control: the one without a fault."""
    prefix = f"{fault}{HALT}" if killed == "gateway" else fault
    plain.shell("rm -f ran-*")
    started = {
        step: plain.start("run", "--", "sh", "-c", f"touch ran-{step}", env={FAULT: prefix + step})
        for step in (*STEPS, "none")
    }
    if killed == "gateway":
        for step in STEPS:
            until_a_child_stops(started[step])
            started[step].kill()
    for step, process in started.items():
        # Until everybody who holds the streams is gone: the helper and whom it started, too.
        out, err = process.communicate(timeout=PATIENCE)
        if step == "none":
            assert process.returncode == 0, err
        elif killed == "gateway":
            assert process.returncode == -signal.SIGKILL, step
        else:
            assert process.returncode == 125, step
            assert b"nothing was run" in err, step
        assert out == b""
    ran = {name for name in os.listdir(plain.directory) if name.startswith("ran-")}
    assert ran == {"ran-none"}
    assert mounts_of(plain) == []


def until_a_child_stops(process: subprocess.Popen[bytes]) -> None:
    """Wait until the helper halts."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: process.poll() is not None or any(map(_is_stopped, children.read_text().split())))
    assert process.poll() is None


def _is_stopped(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
