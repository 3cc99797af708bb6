"""No sandbox reaches the control socket: not by construction, and not by a hole in it (I2)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.rigs.control.rig import Rig, request, status_of
from tests.rigs.sandbox.people import open_ground, this_person
from tests.rigs.sandbox.projects import Project
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(
        shutil.which("bwrap") is None
        or shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None,
        reason="bubblewrap or nftables is not installed",
    ),
]

ASK = """
import os, socket, sys, time
print("inside", flush=True)
deadline = time.monotonic() + 20
while not os.path.exists(sys.argv[2]) and time.monotonic() < deadline:
    time.sleep(0.01)
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(sys.argv[1])
    try:
        sock.sendall(b"POST /v1/revoke-all HTTP/1.1\\r\\nHost: keyhole\\r\\n\\r\\n")
    except BrokenPipeError:
        pass  # turned away before a byte was read; the answer is there
    print(sock.recv(100).decode().split("\\r\\n")[0])
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def project() -> Iterator[Project]:
    with open_ground("control") as ground:
        yield Project.make(this_person(ground), 0)


def test_the_socket_is_not_in_a_sandbox(rig: Rig, project: Project) -> None:
    """By construction: nothing of the runtime directory is bound, nor does a variable name it."""
    runtime = {"XDG_RUNTIME_DIR": str(rig.directory.parent)}
    place = str(rig.directory / "control.sock")
    (project.directory / "go").touch()
    own = ("--own-gateway",)
    done = project.run("python3", "-I", "-c", ASK, place, "go", env=runtime, flags=own)
    assert done.lines == ["inside", "FileNotFoundError"], done
    assert "XDG_RUNTIME_DIR" not in project.shell("env", env=runtime, flags=own).out
    assert not rig.gateway.calls
    assert status_of(rig.talk(request("POST", "/v1/revoke-all"))) == 200


def test_a_socket_that_appears_within_a_sandboxs_reach_does_not_serve_it(project: Project) -> None:
    """A hole in the construction: a gateway is started with its socket in a tree that a running
    sandbox can write. The modes or the peer's network namespace keep it out."""
    place = project.directory / "run" / "control.sock"
    with project.start(
        "run", "--own-gateway", "--trust", "--", "python3", "-I", "-c", ASK, str(place), "go"
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"inside\n"
        rig = Rig(project.directory / "run")
        try:
            assert rig.client.status()
            (project.directory / "go").touch()
            heard = running.communicate(timeout=PATIENCE)[0].decode().strip()
            assert heard in ("PermissionError", "HTTP/1.1 403 Forbidden")
            assert not rig.gateway.calls
            if heard != "PermissionError":
                (stranger,) = rig.gateway.strangers
                # A sandbox of root's runs as somebody else, everybody else's as its user.
                own = os.geteuid() != 0
                assert stranger.why == ("another network namespace" if own else "another user")
        finally:
            rig.close()
