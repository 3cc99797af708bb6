"""A gateway is its user's alone: no sandbox of its and no other user has anything to ask (I2)."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.daemon.homes import ONE
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.rigs.daemon.homes import Home

pytestmark = pytest.mark.outside

NOBODY = 65534

TRY = """
import json, os, socket, sys
def connect(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        try:
            sock.sendall(b"GET /v1/status HTTP/1.1\\r\\nHost: keyhole\\r\\n\\r\\n")
        except BrokenPipeError:
            pass  # turned away before a byte was read; the answer is there
        return sock.recv(100).decode().split("\\r\\n")[0]
def attempt(work, *words):
    try:
        return work(*words)
    except OSError as error:
        return type(error).__name__
path, state, pid = sys.argv[1:]
print(json.dumps({
    "connect": attempt(connect, path),
    "runtime": bool(attempt(os.listdir, os.path.dirname(path)) != "PermissionError"),
    "log": attempt(lambda: open(state + "/gateway.log").read(1)) != "PermissionError",
    "audit": attempt(os.listdir, state + "/audit") != "PermissionError",
    "signal": attempt(os.kill, int(pid), 0) is None,
    "memory": attempt(lambda: open("/proc/" + pid + "/environ").read(1)) != "PermissionError",
}))
"""

NOTHING = dict.fromkeys(("runtime", "log", "audit", "signal", "memory"), False)


def test_a_sandbox_does_not_reach_the_gateway_that_serves_it(home: Home) -> None:
    """By construction: nothing of its place is in there. Control: its person does."""
    with home.agent(home.project(ONE)) as agent:
        assert home("status").code == 0
        for found in (
            agent.do("unix", str(home.socket)),
            agent.do("look", str(home.socket.parent)),
            agent.do("look", str(home.state)),
        ):
            assert found in ("FileNotFoundError", "PermissionError")
        assert str(home.state) not in json.dumps(agent.do("variables"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_can_do_nothing_to_a_gateway(home: Home) -> None:
    """Nor can root speak for a user. Control: the same things, done by its owner."""
    pid = json.loads(home("status", "--json").out)["pid"]
    own = _try(home, pid, home.person.uid)
    assert own["connect"] == "HTTP/1.1 200 OK"
    # What must not be dumped is root's in /proc.
    assert [name for name, could in own.items() if not could] == (
        [] if home.person.is_root else ["memory"]
    )
    assert _try(home, pid, NOBODY) == NOTHING | {"connect": "PermissionError"}
    if home.person.uid != 0:
        assert _try(home, pid, 0)["connect"] == "HTTP/1.1 403 Forbidden"


def _try(home: Home, pid: int, uid: int) -> dict[str, Any]:
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", TRY, str(home.socket), str(home.state), str(pid)],
        user=uid, group=uid, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE,
        check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found
