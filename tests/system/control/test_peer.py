"""Who is let in: the gateway's own user, from the gateway's own network namespace (I2, I5)."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.control import peer
from keyhole.control.client import ControlClient, ControlFailed
from keyhole.control.peer import OwnIdentity, Peer, RefusedPeer, identify, pin_by_number
from keyhole.system.processes import started_ticks
from tests.rigs.control.namespaces import own_namespace
from tests.rigs.control.rig import Rig, open_descriptors
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

ROOT = os.geteuid() == 0
OTHER_USER = 54321

needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")


# It becomes somebody else itself: their interpreter may be out of their reach.
_PROGRAM = """
import ctypes, os, socket, sys
how, path = sys.argv[1:]
here = os.open(path, os.O_PATH) if how == "other, by descriptor" else None
if how.startswith("other"):
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
if how == "elsewhere":
    flags = 0x40000000 if os.geteuid() == 0 else 0x50000000  # CLONE_NEWNET, CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(f"{path}/control.sock" if here is None else f"/proc/self/fd/{here}/control.sock")
    sock.sendall(b"POST /v1/revoke-all HTTP/1.1\\r\\nHost: keyhole\\r\\n\\r\\n")
except BrokenPipeError:
    pass
except OSError as error:
    sys.exit(type(error).__name__)
print(sock.recv(65536).decode())
"""


def ask_as(rig: Rig, how: str) -> str:
    """What a process hears that asks as `same`, as an `other` user or from `elsewhere`."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, how, str(rig.directory)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_same_user_on_the_same_network_is_let_in(rig: Rig) -> None:
    """The positive control of the others."""
    assert ask_as(rig, "same").startswith("HTTP/1.1 200 ")
    assert len(rig.gateway.calls) == 1
    assert not rig.gateway.strangers


@needs_root
def test_another_user_cannot_even_reach_the_socket(rig: Rig) -> None:
    assert ask_as(rig, "other") == "PermissionError\n"
    assert not rig.gateway.calls


@needs_root
def test_another_user_who_reaches_it_is_turned_away_before_a_byte_is_read(rig: Rig) -> None:
    """Modes may be changed by mistake; the kernel's word on the peer stays."""
    for path in (rig.directory, rig.directory / "control.sock"):
        path.chmod(0o777)
    assert ask_as(rig, "other, by descriptor").startswith("HTTP/1.1 403 ")
    assert not rig.gateway.calls
    (stranger,) = rig.gateway.strangers
    assert (stranger.why, stranger.uid) == ("another user", OTHER_USER)


@needs_root
def test_root_is_nobody_to_the_gateway_of_another_user(rig: Rig) -> None:
    rig.call(lambda: setattr(rig.server, "_own", OwnIdentity(OTHER_USER, own_namespace())))
    with pytest.raises(ControlFailed, match="own user"):
        rig.client.status()
    assert rig.gateway.strangers[0].uid == 0


def test_a_process_in_a_sandboxs_network_is_turned_away(rig: Rig) -> None:
    """I2: the same user, the socket in reach by its path, and yet the kernel tells it apart."""
    assert ask_as(rig, "elsewhere").startswith("HTTP/1.1 403 ")
    assert not rig.gateway.calls
    assert [each.why for each in rig.gateway.strangers] == ["another network namespace"]


def test_strangers_leave_no_descriptor_and_take_no_place(rig: Rig) -> None:
    rig.client.status()
    rig.settled()
    before = open_descriptors()
    for _ in range(5):
        ask_as(rig, "elsewhere")
    rig.settled()
    assert open_descriptors() == before
    assert rig.client.status().sessions == 1


# ── the process is pinned ─────────────────────────────────────────────────────────────────────────


def pair(directory: Path) -> tuple[socket.socket, socket.socket, socket.socket]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "s"))
    listener.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(directory / "s"))
    return listener, client, listener.accept()[0]


def test_the_process_is_pinned_on_old_kernels_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.5 there is no SO_PEERPIDFD."""
    listener, client, accepted = pair(tmp_path)
    own = OwnIdentity(os.geteuid(), own_namespace())
    new = identify(accepted, own)
    monkeypatch.setattr(peer, "SO_PEERPIDFD", 32000)
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is asserted
        accepted.getsockopt(socket.SOL_SOCKET, 32000)
    assert raised.value.errno == errno.ENOPROTOOPT
    old = identify(accepted, own)
    assert isinstance(new, Peer)
    assert isinstance(old, Peer)
    assert new.process == old.process == (os.getpid(), old.started)
    for each in (new, old):
        watched = each.watch()
        assert not os.get_inheritable(watched)
        os.close(watched)
        each.close()
    for sock in (listener, client, accepted):
        sock.close()


@pytest.mark.parametrize("option", [peer.SO_PEERPIDFD, 32000])
def test_a_process_that_has_ended_is_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    """Its number may be somebody else's by now."""
    monkeypatch.setattr(peer, "SO_PEERPIDFD", option)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    subprocess.run(
        [sys.executable, "-I", "-c",
         "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])",
         str(tmp_path / "s")],
        timeout=PATIENCE, check=True,
    )  # fmt: skip
    accepted = listener.accept()[0]
    before = open_descriptors()
    refused = identify(accepted, OwnIdentity(os.geteuid(), own_namespace()))
    assert isinstance(refused, RefusedPeer)
    assert refused.why == "a process that has ended"
    assert open_descriptors() == before
    accepted.close()
    listener.close()


@needs_root
def test_a_number_that_another_users_process_has_now_is_not_pinned() -> None:
    with subprocess.Popen(
        ["/bin/sleep", "60"], user=OTHER_USER, group=OTHER_USER, extra_groups=[]
    ) as other:
        until(lambda: os.stat(f"/proc/{other.pid}").st_uid == OTHER_USER)
        before = open_descriptors()
        with pytest.raises(ProcessLookupError):
            pin_by_number(other.pid, OTHER_USER + 1)
        assert open_descriptors() == before
        os.close(pin_by_number(other.pid, OTHER_USER))
        other.kill()


def test_a_name_with_parentheses_does_not_change_when_a_process_started() -> None:
    """Attack: a process that calls itself `) 1 2 3` writes its own line in /proc."""
    program = (
        "open('/proc/self/comm', 'w').write(') S 1 1 1 (x'); "
        "fields = open('/proc/self/stat').read().rpartition(')')[2].split(); "
        "print(fields[19], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as named:  # fmt: skip
        assert named.stdout is not None
        assert started_ticks(named.pid) == int(named.stdout.readline())
        named.kill()
    assert started_ticks(named.pid) is None


# ── the client's side ─────────────────────────────────────────────────────────────────────────────


def test_the_client_does_not_use_a_directory_that_others_can_change(rig: Rig) -> None:
    """Attack: somebody else's socket, which would be told what to do and be given doors."""
    rig.directory.chmod(0o755)
    with pytest.raises(ControlFailed, match="chmod 700"):
        rig.client.status()
    rig.directory.chmod(0o700)
    assert rig.client.status()


@needs_root
def test_the_client_does_not_talk_to_another_users_process(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    program = (
        "import os, socket, sys\n"
        "listener = socket.socket(fileno=int(sys.argv[1]))\n"
        "os.setresuid(54321, 54321, 54321)\n"
        "listener.listen()\n"  # whoever listens is who SO_PEERCRED names
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "control.sock"))
        with subprocess.Popen(
            [sys.executable, "-I", "-c", program, str(listener.fileno())],
            pass_fds=[listener.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other:  # fmt: skip
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            with pytest.raises(ControlFailed, match="another user's process"):
                ControlClient(directory, 5).status()
            other.communicate(timeout=PATIENCE)
