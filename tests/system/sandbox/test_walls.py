"""Every line of "dead from inside" and "alive, and must be closed", tried from inside (I2).

The host itself reaches each target first, so that a wall is not held up by a target that is not
there. Foreign addresses are of the documentation ranges and tried from inside alone.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.sandbox import probe
from tests.rigs.sandbox.attempts import WAYS, check_no_way_lives
from tests.rigs.sandbox.projects import holders_of_namespace, line_of, until_nobody_is_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside


class Services:
    """What the host offers on loopback, by an abstract name and by a path; each says hello."""

    def __init__(self, directory: Path) -> None:
        self.abstract = f"keyhole-test-{secrets.token_hex(4)}"
        self.path = str(directory / "service.sock")
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._tcp.getsockname()[1]
        self._listeners = [self._tcp]
        for address in ("\0" + self.abstract, self.path):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            self._listeners.append(listener)
        os.chmod(self.path, 0o777)  # noqa: S103 - anybody may connect, but from inside
        for listener in self._listeners:
            threading.Thread(target=self._greet, args=(listener,), daemon=True).start()

    @property
    def targets(self) -> dict[str, object]:
        """As the probes want them."""
        return {
            "port": self.port, "abstract": self.abstract, "path": self.path, "pid": os.getpid(),
            "allowed": "origin.example",
        }  # fmt: skip

    def reached_from_the_host(self) -> list[bytes]:
        """The positive control."""
        said = []
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", self.port)),
            (socket.AF_UNIX, "\0" + self.abstract),
            (socket.AF_UNIX, self.path),
        ):
            with socket.socket(family) as client:
                client.connect(address)
                said.append(client.recv(5))
        return said

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    @staticmethod
    def _greet(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.sendall(b"hello")


@pytest.fixture
def walled(open_project: Callable[..., Project]) -> Project:
    """A project that can reach the origin, so that the door itself works."""
    return open_project()


@pytest.fixture
def services(walled: Project) -> Iterator[Services]:
    """The host's services; the pathname one lies in the project, which is bound."""
    made = Services(walled.directory)
    yield made
    made.close()


def test_every_wall_that_the_probe_tries_holds(walled: Project, services: Services) -> None:
    """I2; the rows named control-… are the probe's own positive controls."""
    assert services.reached_from_the_host() == [b"hello"] * 3
    code = Path(probe.__file__).read_text()
    rows = walled.python(code, json.dumps(services.targets))
    assert [row for row in rows if not row["held"]] == []
    tried = {row["id"] for row in rows}
    assert {
        "only-lo", "vsock", "io-uring", "raw-socket", "packet-socket", "ping-socket", "clone3",
        "new-user-namespace", "new-net-namespace", "new-time-namespace", "setns", "bpf", "tiocsti",
        "tiocsti-high-bits", "ioctl-btrfs-snapshot", "ioctl-freeze", "ioctl-high-bits",
        "control-ioctl",
        "literal-address", "literal-ipv6", "metadata-address", "udp-443", "host-loopback",
        "abstract-socket", "unknown-name", "path /run/docker.sock", "path /sys/class/net",
        "path /dev/net/tun", "host-process", "control-own-loopback", "control-allowed-name",
        "control-unix-socket", "control-unshare", "control-child",
    } <= tried  # fmt: skip


def test_no_other_way_is_open(walled: Project, services: Services) -> None:
    """I1, I2: what is dead from inside and the probe has no row for, and what there is to see."""
    assert services.reached_from_the_host() == [b"hello"] * 3
    secret = f"mark-{secrets.token_hex(8)}"
    environment = {"UNASKED": secret, "API_TOKEN": secret, "SSH_AUTH_SOCK": services.path}
    found = walled.python(WAYS, json.dumps(services.targets), env=environment)
    check_no_way_lives(found, secret)
    assert len(found["commands"]) <= 3
    assert not {"sys", "boot", "home", "mnt", "srv", "media"} & set(found["top"])
    # Of root's home no more than the way to Keyhole's own interpreter, where it lies there.
    home = Path(pwd.getpwuid(0).pw_dir)
    assert all(Path(sys.base_prefix).is_relative_to(home / name) for name in found["roots"])
    assert set(found["run"]) <= {"keyhole"}
    # `gitconfig` is there, and Keyhole's own: what is in it is looked at in test_git.py.
    assert not {"shadow", "ssh", "environment", "npmrc"} & set(found["etc"])
    assert not {"auth.conf", "auth.conf.d"} & set(found["apt"])
    assert services.path not in found["environment"].values()


def test_nobody_inside_is_root_and_what_they_write_is_the_owners(project: Project) -> None:
    """I2: seen from the host: a uid that is not root's, no capability, no new privileges.

    Control: the files that it writes belong to the project's owner, so it did write as somebody.
    """
    script = "mkdir d; echo x > d/f; id -u; readlink /proc/self/ns/net; echo ready; read end"
    with project.running("sh", "-c", script, stdin=-1) as process:
        inside, namespace, _ = (line_of(process.stdout) for _ in range(3))
        assert int(inside) != 0
        holders = holders_of_namespace(namespace)
        commands = {pid: _status(pid) for pid in holders if _command(pid).startswith("sh -c")}
        assert len(commands) == 1
        status = next(iter(commands.values()))
        assert "0" not in status["Uid"].split() + status["Gid"].split()
        assert status["Uid"].split()[0] == inside
        assert status["CapEff"] == status["CapBnd"] == "0" * 16
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        # bubblewrap's own processes, all that shares the namespace, are nobody's root either.
        assert not [pid for pid in holders if "0" in _status(pid)["Uid"].split()]
        process.stdin.write(b"\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        assert process.wait(60) == 0
    until_nobody_is_in(namespace)
    for path in (project.directory / "d", project.directory / "d" / "f"):
        assert (path.stat().st_uid, path.stat().st_gid) == (project.person.uid, project.person.gid)


def test_root_in_the_project_of_another_runs_as_that_other(
    open_project: Callable[..., Project], project: Project
) -> None:
    """I2: the project's owner is who the sandbox is, when root runs it."""
    if not project.person.is_root:
        pytest.skip("concerns root alone")
    other = 4_000_123
    for path in (project.directory, project.directory / "keyhole.toml"):
        os.chown(path, other, other)
    done = project.shell("id -u; echo x > written")
    assert done.lines == [str(other)], done
    assert (project.directory / "written").stat().st_uid == other


def _status(pid: int) -> dict[str, Any]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
