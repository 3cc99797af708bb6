"""A run at a gateway that is up is like any other to whoever started it: signals and terminal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.projects import line_of
from tests.rigs.sandbox.screens import on_a_terminal
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.rigs.daemon.homes import Home

pytestmark = pytest.mark.outside

CTRL_C, CTRL_Z = "\x03", "\x1a"

WAIT = """
import signal, time
# Tests that run in the background are started with some signals ignored, which is passed on.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_its_code(quarters: Home, number: int) -> None:
    project = quarters.project()
    with project.running("python3", "-I", "-c", WAIT) as process:
        assert line_of(process.stdout) == "ready"
        assert process.pid in quarters.sessions()
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    assert quarters.sessions() == {}
    said = project.shell("exit 7")
    assert (said.code, "audit head" in said.err) == (7, True)


def test_a_terminal_is_as_in_a_run_of_its_own(quarters: Home) -> None:
    """Size, Ctrl-Z, `fg` and Ctrl-C; a person's verbs reach a session that is suspended."""
    project = quarters.project()
    script = "stty size; echo ready; cat"
    with on_a_terminal(project, "sh", "-c", script, rows=31) as screen:
        screen.until("31 80\r\n")
        screen.until("ready")
        screen.until_raw()
        # A shell that has started `cat` by vfork and is stopped before its exec is not seen to be.
        screen.type("zero\r")
        screen.until("zero\r\nzero\r\n")
        screen.type(CTRL_Z)
        screen.until_stopped()
        assert screen.settings == screen.before
        session = quarters.sessions()[screen.process.pid]["id"]
        assert quarters("revoke", session).code == 0
        screen.go_on()
        screen.until("the session was revoked")
        screen.type("one\r")
        screen.until("one\r\none\r\n")
        screen.type(CTRL_C)
        assert screen.wait() == 128 + signal.SIGINT
        assert screen.settings == screen.before
    events = quarters.reasons(session)
    assert [reason for reason, _ in events] == ["started", "closed", "ended"]
    assert events[-1][1] == {"code": 130}
