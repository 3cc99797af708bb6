"""The directory, the lock and the socket: nobody else can stand in, and one gateway is there."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.control import socket_directory
from keyhole.control.socket_directory import LOCK, SOCKET, claim_socket, open_directory
from keyhole.model.errors import ResourceUnusable
from tests.rigs.control.rig import Rig, open_descriptors
from tests.rigs.waiting import PATIENCE, until

ROOT = os.geteuid() == 0
OTHER_USER = 54321

HOLDER = """
import os, re, sys, pathlib
from keyhole.control.socket_directory import claim_socket
from keyhole.model.errors import ResourceUnusable
sys.stdin.readline()
try:
    mine = claim_socket(pathlib.Path(sys.argv[1]))
    listener = mine.listen()
    print("won", os.getpid(), flush=True)
except ResourceUnusable as held:
    print("lost", *re.findall("process ([0-9]+) holds", str(held)), flush=True)
sys.stdin.read()
"""


def start(directory: Path) -> subprocess.Popen[str]:
    """A process that claims the place when it is told, and holds it until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def tell(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    holder.stdin.write("go\n")
    holder.stdin.flush()


def heard(holder: subprocess.Popen[str]) -> list[str]:
    assert holder.stdout is not None
    return holder.stdout.readline().split()


def test_it_is_in_the_runtime_directory_or_else_in_the_state() -> None:
    state = Path("/home/you/.local/state/keyhole")
    assert socket_directory.socket_location(Path("/run/user/1000"), state) == Path(
        "/run/user/1000/keyhole"
    )
    for none in (None, Path("run"), Path()):
        assert socket_directory.socket_location(none, state) == state / "run"


# ── the directory ─────────────────────────────────────────────────────────────────────────────────


def test_directory_and_socket_are_for_their_owner_alone_whatever_the_umask(directory: Path) -> None:
    before = open_descriptors()
    old = os.umask(0)
    try:
        mine = claim_socket(directory)
        listener = mine.listen()
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / SOCKET).stat().st_mode) == 0o600
    assert stat.S_ISSOCK((directory / SOCKET).stat().st_mode)
    assert stat.S_IMODE((directory / LOCK).stat().st_mode) == 0o600
    listener.close()
    mine.release()
    mine.release()
    assert sorted(each.name for each in directory.iterdir()) == [LOCK]
    assert open_descriptors() == before


def test_missing_directories_above_are_made_for_their_owner_alone(directory: Path) -> None:
    os.close(open_directory(directory / "state" / "run", make=True))
    assert stat.S_IMODE((directory / "state").stat().st_mode) == 0o700
    with pytest.raises(FileNotFoundError):
        open_directory(directory / "nowhere" / "run", make=False)


def test_a_directory_that_cannot_be_made_is_named() -> None:
    """XDG_RUNTIME_DIR of a session that has ended; in /proc not even root can make one."""
    before = open_descriptors()
    with pytest.raises(ResourceUnusable, match=r"^/proc/nope: there is no such directory$"):
        claim_socket(Path("/proc/nope/keyhole"))
    assert open_descriptors() == before
    with pytest.raises(FileNotFoundError):
        open_directory(Path("/proc/nope/keyhole"), make=False)


def test_a_path_too_long_for_an_address_serves_as_well(directory: Path) -> None:
    """sun_path has 108 bytes; the state directory of a CI job may have more."""
    rig = Rig(directory / ("x" * 120))
    try:
        assert rig.client.status().version == "0.1.0"
    finally:
        rig.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o711, 0o1700 | 0o007])
def test_a_directory_that_is_open_to_others_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)
    before = open_descriptors()
    with pytest.raises(ResourceUnusable, match="chmod 700"):
        claim_socket(directory)
    assert open_descriptors() == before
    directory.chmod(0o700)
    claim_socket(directory).release()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_parent_that_others_can_write_is_refused_sticky_or_not(
    directory: Path, mode: int
) -> None:
    directory.parent.chmod(mode)
    with pytest.raises(ResourceUnusable, match="writable by others"):
        claim_socket(directory)
    assert not directory.exists()
    directory.parent.chmod(0o755)
    claim_socket(directory).release()


def test_further_up_a_sticky_directory_will_do_and_another_will_not(directory: Path) -> None:
    """As where temporary files go: nobody else can rename what is ours in it."""
    top = directory.parent
    top.chmod(0o1777)
    claim_socket(directory / "a" / "b").release()
    top.chmod(0o777)
    with pytest.raises(ResourceUnusable, match="writable by others"):
        claim_socket(directory / "a" / "b")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_link_on_the_way_is_refused(directory: Path, depth: int) -> None:
    """Attack: the directory is replaced by a link to one that somebody else reads."""
    real = directory.parent / "real"
    (real / "below").mkdir(mode=0o700, parents=True)
    real.chmod(0o700)
    directory.symlink_to(real)
    at = directory / "below" if depth else directory
    with pytest.raises(ResourceUnusable, match="is a link"):
        claim_socket(at)
    claim_socket(real / "below" if depth else real).release()


def test_what_is_no_directory_and_what_is_no_absolute_path_are_refused(directory: Path) -> None:
    directory.write_text("")
    with pytest.raises(ResourceUnusable, match="not a directory"):
        claim_socket(directory)
    for bad in (Path("keyhole"), directory / ".." / "keyhole"):
        with pytest.raises(ResourceUnusable, match="absolute"):
            claim_socket(bad)


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["directory", "parent", "grandparent"])
def test_what_belongs_to_another_user_is_refused(directory: Path, whose: str) -> None:
    at = directory / "a" / "b"
    at.mkdir(parents=True)
    for each in (directory, directory / "a", at):
        each.chmod(0o700)
    claim_socket(at).release()
    given = {"directory": at, "parent": at.parent, "grandparent": directory}[whose]
    os.chown(given, OTHER_USER, OTHER_USER)
    with pytest.raises(ResourceUnusable, match=f"uid {OTHER_USER}"):
        claim_socket(at)


# ── the lock ──────────────────────────────────────────────────────────────────────────────────────


def test_a_second_gateway_is_told_who_is_there(directory: Path) -> None:
    mine = claim_socket(directory)
    listener = mine.listen()
    before = open_descriptors()
    with pytest.raises(ResourceUnusable, match=f"process {os.getpid()} holds") as held:
        claim_socket(directory)
    assert "`keyhole down`" in str(held.value)
    assert open_descriptors() == before
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(directory / SOCKET))  # and the first is undisturbed
    listener.close()
    mine.release()
    claim_socket(directory).release()


def test_of_many_gateways_that_race_exactly_one_wins_and_the_others_name_it(
    directory: Path,
) -> None:
    """They all start where a killed one left its socket."""
    killed = start(directory)
    tell(killed)
    assert heard(killed)[0] == "won"
    killed.send_signal(signal.SIGKILL)
    killed.wait(PATIENCE)
    assert (directory / SOCKET).exists()
    racers = [start(directory) for _ in range(12)]
    try:
        for racer in racers:
            tell(racer)
        said = [heard(racer) for racer in racers]
        (winner,) = [pid for word, pid in said if word == "won"]
        assert [word for word, _ in said].count("lost") == len(racers) - 1
        assert {pid for word, pid in said if word == "lost"} == {winner}
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(directory / SOCKET))
    finally:
        for racer in [*racers, killed]:
            racer.communicate(timeout=PATIENCE)


def test_the_socket_of_a_killed_gateway_is_replaced_and_no_other(directory: Path) -> None:
    holder = start(directory)
    tell(holder)
    assert heard(holder)[0] == "won"
    left = (directory / SOCKET).stat().st_ino
    with pytest.raises(ResourceUnusable):
        claim_socket(directory)
    assert (directory / SOCKET).stat().st_ino == left
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    rig = Rig(directory)
    assert rig.client.status().pid == os.getpid()
    rig.close()


@pytest.mark.parametrize("name", [SOCKET, "control.sock.new"])
def test_what_is_no_socket_is_not_replaced(directory: Path, name: str) -> None:
    mine = claim_socket(directory)
    (directory / name).write_text("precious")
    with pytest.raises(ResourceUnusable, match="not a socket"):
        mine.listen()
    assert (directory / name).read_text() == "precious"
    (directory / name).unlink()
    mine.listen().close()
    mine.release()


def test_a_lock_file_that_is_a_link_or_no_file_is_refused(directory: Path) -> None:
    """Attack: to truncate what the link leads to."""
    directory.mkdir(mode=0o700)
    precious = directory.parent / "precious"
    precious.write_text("precious")
    (directory / LOCK).symlink_to(precious)
    with pytest.raises(ResourceUnusable, match="is a link"):
        claim_socket(directory)
    assert precious.read_text() == "precious"
    (directory / LOCK).unlink()
    os.mkfifo(directory / LOCK)
    with pytest.raises(ResourceUnusable, match="not a file"):
        claim_socket(directory)


def test_a_lock_file_that_was_removed_is_not_taken_for_the_one_that_has_the_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: between open and flock the file is replaced, and two would hold two locks."""
    real, opened = socket_directory._open_lock, []

    def replaced(at: int, path: Path) -> int:
        lock = real(at, path)
        opened.append(lock)
        if len(opened) == 1:
            os.unlink(directory / LOCK)
        return lock

    monkeypatch.setattr(socket_directory, "_open_lock", replaced)
    mine = claim_socket(directory)
    assert len(opened) == 2
    with pytest.raises(ResourceUnusable):
        claim_socket(directory)
    mine.release()


def test_a_child_that_was_forked_does_not_take_the_place_away(directory: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from keyhole.control.socket_directory import claim_socket\n"
        "mine = claim_socket(pathlib.Path(sys.argv[1])); listener = mine.listen()\n"
        "child = os.fork()\n"
        "mine.release() if child == 0 else os.waitpid(child, 0)\n"
        "child or os._exit(0)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert heard(holder) == ["ready"]
        assert (directory / SOCKET).exists()
        with pytest.raises(ResourceUnusable, match=f"process {holder.pid} holds"):
            claim_socket(directory)
        holder.communicate(timeout=PATIENCE)


def test_a_socket_of_somebody_else_in_its_place_is_not_removed_at_the_end(directory: Path) -> None:
    mine = claim_socket(directory)
    listener = mine.listen()
    (directory / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(directory / SOCKET))
        mine.release()
        assert (directory / SOCKET).exists()
    listener.close()


def test_who_holds_the_lock_is_not_known_is_said_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_directory, "HOLDER_SECONDS", 0.02)
    mine = claim_socket(directory)
    for said in ("", "no number", "0", "4194304000", "9" * 30):
        (directory / LOCK).write_text(said)
        with pytest.raises(ResourceUnusable, match="another process holds"):
            claim_socket(directory)
    mine.release()


def test_the_client_waits_for_nothing_when_the_socket_is_a_leftover(directory: Path) -> None:
    from keyhole.control.client import ControlClient, NoGateway

    holder = start(directory)
    tell(holder)
    heard(holder)
    holder.kill()
    holder.communicate(timeout=PATIENCE)
    until(lambda: (directory / SOCKET).exists())
    with pytest.raises(NoGateway):
        ControlClient(directory).status()
