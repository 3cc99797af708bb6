"""Two machines: a gateway's host and a remote one, each in a network of its own, joined by a cable.

As root the networks are namespaces joined by veth; otherwise both machines are homes on this host
that reach each other by loopback. Everything is started by the installed command.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.rigs.daemon.estate import HOST, SECRET, SERVICE, EstateService
from tests.rigs.sandbox.projects import Ran, line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW_NET = 0x40000000
_ROOT = os.geteuid() == 0
KEYHOLE = str(Path(sys.executable).with_name("keyhole"))
_LIBC = ctypes.CDLL(None, use_errno=True)


class Machine:
    """A home, a project and a network."""

    def __init__(self, ground: Path, name: str, address: str) -> None:
        self.address = address if _ROOT else "127.0.0.1"
        self.home = ground / name
        self.project = self.home / "project"
        for each in (self.project, self.home / "runtime", self.home / "secrets"):
            each.mkdir(parents=True, mode=0o700)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "runtime"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
        }
        self._holder: subprocess.Popen[bytes] | None = None
        if _ROOT:
            words = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec cat"]
            self._holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert line_of(self._holder.stdout) == "up"

    @property
    def network(self) -> str:
        """The network's number, for `ip`."""
        assert self._holder is not None
        return str(self._holder.pid)

    def words(self, *words: str) -> list[str]:
        """A command on this machine."""
        enter = ["nsenter", f"--net=/proc/{self.network}/ns/net"] if self._holder else []
        return [*enter, KEYHOLE, *words]

    def __call__(self, *words: str, stdin: str = "") -> Ran:
        done = subprocess.run(
            self.words(*words), cwd=self.project, env=self.env, input=stdin.encode(),
            capture_output=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command that goes on; its streams are pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.words(*words), cwd=self.project, env=self.env, stdin=pipe, stdout=pipe,
            stderr=pipe,
        )  # fmt: skip

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes are of this machine's network."""
        if self._holder is None:
            yield
            return
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        its = os.open(f"/proc/{self.network}/ns/net", os.O_RDONLY)
        assert _LIBC.setns(its, _NEW_NET) == 0
        try:
            yield
        finally:
            assert _LIBC.setns(before, _NEW_NET) == 0
            os.close(before)
            os.close(its)

    def events(self) -> list[dict[str, Any]]:
        """What is written down here."""
        files = sorted((self.home / "state" / "keyhole" / "audit").glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(lines, key=lambda each: str(each["ts"]))

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate(timeout=PATIENCE)


class Cable:
    """A way from the remote machine to a gateway that can be cut, mended and listened to."""

    def __init__(self, remote: Machine, target: tuple[str, int]) -> None:
        self._remote, self._target = remote, target
        self.refusing = False
        self._open: set[socket.socket] = set()
        with remote.inside():
            self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                sock.close()
                continue
            threading.Thread(target=self._join, args=(sock,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        with self._remote.inside(), contextlib.suppress(OSError):
            far = socket.create_connection(self._target)
            with near, far:
                self._open |= {near, far}
                other = threading.Thread(target=_copy, args=(far, near), daemon=True)
                other.start()
                _copy(near, far)
                other.join()

    def cut(self) -> None:
        """Cut what is open; nothing gets through until it is mended."""
        self.refusing = True
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class RemoteShell:
    """`keyhole door … -- sh`: a remote sandbox that does what it is told, line by line."""

    def __init__(self, machines: Machines, gateway: str | None = None) -> None:
        code = machines.invite()
        where = gateway or machines.listening
        path = machines.remote.home / "code"
        path.write_text(code)
        self.process = machines.remote.start(
            "door", "--gateway", where, "--code-file", str(path), "--trust", "--", "sh"
        )
        assert self.ask("echo here") == ["here"]

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def ask(self, command: str) -> list[str]:
        """What it prints."""
        self.say(f"{command}; echo ' :'")
        lines: list[str] = []
        while True:
            try:
                lines.append(line_of(self.process.stdout))
            except AssertionError:
                self.process.kill()
                raise AssertionError(self.process.communicate()[1].decode()) from None
            if lines[-1].endswith(" :"):
                return [each for each in [*lines[:-1], lines[-1].removesuffix(" :")] if each]

    def get(self, path: str = "/v1/x") -> str:
        """Ask the service for something: HTTP's code, or 000."""
        words = (
            f"curl -sS -m 20 -o /dev/null -w '%{{http_code}}\\n' https://{HOST}{path} 2>/dev/null"
        )
        return self.ask(words)[0]

    def end(self) -> int:
        """Let it end by itself."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


class Machines:
    """Both of them, with a gateway that listens and an origin that it reaches."""

    def __init__(self, lifetime: str = "") -> None:
        """With a `lifetime`, certificates of remote sandboxes are valid for that long."""
        self._words = ["--certificate-lifetime", lifetime] if lifetime else []
        self._ground = Path(tempfile.mkdtemp(prefix="keyhole-remote-"))
        self.host = Machine(self._ground, "gateway", "192.0.2.1")
        self.remote = Machine(self._ground, "remote", "192.0.2.2")
        if _ROOT:
            self._join()
        with self.host.inside():
            self.service = EstateService()
        pem = self.service.authority.cert_pem.bytes()
        (self.host.home / "secrets" / "api").write_text(SECRET)
        (self.host.home / "secrets" / "api").chmod(0o600)
        policy = "version = 1\n" + SERVICE.format(
            host=HOST, source="file:~/secrets/api", address=self.service.address, more=""
        )
        for each in (self.host, self.remote):
            (each.home / "origin.pem").write_bytes(pem)
            (each.project / "keyhole.toml").write_text(policy)
        self.up()

    def _join(self) -> None:
        def ip(*words: str, enter: tuple[str, ...] = ()) -> None:
            subprocess.run([*enter, "ip", *words], check=True, timeout=PATIENCE)

        one, other = self.host.network, self.remote.network
        ip("link", "add", "name", "kh0", "netns", one, "type", "veth", "peer", "name", "kh1",
           "netns", other)  # fmt: skip
        for pid, name, address in ((one, "kh0", "192.0.2.1"), (other, "kh1", "192.0.2.2")):
            enter = ("nsenter", f"--net=/proc/{pid}/ns/net")
            ip("addr", "add", f"{address}/24", "dev", name, enter=enter)
            ip("link", "set", name, "up", enter=enter)

    def up(self) -> None:
        """Start the gateway."""
        where = f"{self.host.address}:0"
        ran = self.host("up", "--listen", where, "--workers", "2", *self._words)
        assert ran.code == 0, ran
        until(lambda: self.host("invite", "--trust", "--json").code == 0)
        found = json.loads(self.host("invite", "--trust", "--json").out)
        self.listening = str(found["gateway"])

    def invite(self) -> str:
        ran = self.host("invite", "--trust")
        assert ran.code == 0, ran
        return ran.out.strip()

    def cable(self) -> Cable:
        host, _, port = self.listening.rpartition(":")
        return Cable(self.remote, (host, int(port)))

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.host("ps", "--json").out)
        return found

    def kill_gateway(self) -> None:
        """As the kernel does it."""
        os.kill(json.loads(self.host("status", "--json").out)["pid"], signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.host("down")
        self.service.close()
        for each in (self.host, self.remote):
            each.close()
        shutil.rmtree(self._ground)
