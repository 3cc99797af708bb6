"""A gateway that is up, a project and an origin, and the means to kill any of their processes.

Everything is started by the installed command, in a home of its own. What is left afterwards is
looked for where the kernel would show it: processes, namespaces, groups, mounts, files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import trustme

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.provision import grants_digest
from keyhole.confine import cgroup
from keyhole.control.client import ControlClient
from keyhole.control.values import ServicePlaceholder, SessionRequest
from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import Message, ok
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import (
    Project,
    Ran,
    holders_of_namespace,
    line_of,
    mounts_of,
    rest_of,
)
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

HOST = "api.example"
SECRET = "of-the-estate-0123456789abcdef"
TICK_SECONDS = 0.01

SERVICE = """
[services.api]
hosts = ["{host}"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "{source}"
allow = ["GET /v1/**"]
{more}
[upstream]
ca_file = "~/origin.pem"
[upstream.connect]
"{host}:443" = "{address}"
"""


class EstateService:
    """An origin that answers under /v1/, ticks without end under /v1/ticks, and remembers."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.seen: list[str] = []
        """The credentials that requests came with, in order."""
        self._origin = Origin(Service(self._answer), tls_for(self.authority, HOST))
        self.address = self._origin.address
        self.close = self._origin.close

    @property
    def busy(self) -> int:
        return len(self._origin.open)

    def _answer(self, message: Message) -> bytes | Iterator[bytes]:
        self.seen.append(str(message.one("authorization")))
        return _ticks() if message.target == "/v1/ticks" else ok(b"ok\n")


def _ticks() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:  # until the other side is gone, which raises
        yield b"5\r\ntick\n\r\n"
        time.sleep(TICK_SECONDS)


class Family:
    """A process and all that came of it, pinned: what is gone cannot be taken for another."""

    def __init__(self, *pids: int) -> None:
        self._pinned: dict[int, int] = {}
        waiting = list(pids)
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):
                self._pinned[pid] = os.pidfd_open(pid)
                waiting += children_of(pid)

    def until_gone(self) -> None:
        """Every one of them has ended."""
        for pid, pidfd in self._pinned.items():
            gone = select.select([pidfd], [], [], PATIENCE)[0]
            os.close(pidfd)
            assert gone, f"{pid} lives on: {_command_of(pid)}"
        self._pinned.clear()

    def __len__(self) -> int:
        return len(self._pinned)


@dataclasses.dataclass(frozen=True)
class Holding:
    descriptors: tuple[str, ...]
    """What each leads to, sorted; sockets without their numbers."""
    threads: int
    memory: int
    """Bytes that are resident."""

    @classmethod
    def of(cls, pid: int) -> Holding:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        found = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(entry).partition(":[")[0])
        return cls(
            tuple(sorted(found)), int(fields["Threads"]), int(fields["VmRSS"].split()[0]) * 1024
        )


def children_of(pid: int) -> list[int]:
    """Its children now, of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return "ended just now"


class Inside:
    """`keyhole run -- sh`: a sandbox that does what it is told, line by line."""

    def __init__(self, estate: Estate) -> None:
        self.process = estate.project.start(
            "run", "--trust", "--", "sh", stdin=subprocess.PIPE, env=estate.env
        )
        self.namespace = self.ask("readlink /proc/self/ns/net").strip()
        self.family = Family(self.process.pid)
        # While it is held, no other namespace has its number.
        first = holders_of_namespace(self.namespace)[0]
        self._held = os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def say(self, command: str) -> None:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def line(self) -> str:
        """The next line that it prints."""
        return line_of(self.process.stdout)

    def ask(self, command: str) -> str:
        """Have it do something; what it prints, and at the end how it ended."""
        self.say(f"{command}; echo ' :'$?")
        lines = []
        while True:
            lines.append(self.line())
            text, end, code = lines[-1].rpartition(" :")
            if end:
                lines[-1] = text
                self.code = int(code)
                return "\n".join(lines)

    def get(self, path: str = "/v1/x") -> int:
        """Ask the service for something; curl's exit code."""
        self.ask(f"curl -sS -m 10 -o /dev/null https://{HOST}{path} 2>/dev/null")
        return self.code

    def stream(self) -> None:
        """Begin an answer that does not end, and wait until it flows; `streamed` hears its end."""
        self.say(f"curl -sSN https://{HOST}/v1/ticks 2>/dev/null; echo ' :'$?")
        while self.line() != "tick":
            pass

    def streamed(self) -> int:
        """How the stream ended: curl's exit code."""
        while " :" not in (line := self.line()):
            assert line in ("tick", "")
        return int(line.rpartition(" :")[2])

    def told(self) -> str:
        """What the supervisor told the person, up to its end."""
        said = rest_of(self.process.stderr).decode()
        assert "Traceback" not in said, said
        return said

    def until_told(self, words: str) -> None:
        """Wait until the supervisor has told something."""
        lines: list[str] = []
        while words not in "\n".join(lines):
            lines.append(line_of(self.process.stderr))

    def until_gone(self) -> None:
        """No process of it is left, nor anybody in its namespace."""
        self.process.wait(PATIENCE)
        self.family.until_gone()
        assert holders_of_namespace(self.namespace) == []
        os.close(self._held)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End it, however it stands."""
        self.process.kill()
        self.until_gone()


class Estate:
    """A project whose policy has one service, and a gateway that comes and goes."""

    def __init__(self, source: str = "file:~/secrets/api", more: str = "") -> None:
        self.ground = Path(tempfile.mkdtemp(prefix="keyhole-daemon-"))
        self.service = EstateService()
        self.project = Project.make(this_person(self.ground), 0)
        for name in ("secrets", "tmp", "runtime"):
            (self.project.home / name).mkdir(mode=0o700)
        self.secret(SECRET)
        pem = self.service.authority.cert_pem.bytes()
        (self.project.home / "origin.pem").write_bytes(pem)
        self.policy(source, more)
        self.env = {
            "XDG_RUNTIME_DIR": str(self.project.home / "runtime"),
            "TMPDIR": str(self.project.home / "tmp"),
        }
        self.runtime = self.project.home / "runtime" / "keyhole"
        self.state = self.project.home / "state" / "keyhole"
        self.client = ControlClient(self.runtime, PATIENCE)
        self._held: list[Inside] = []
        self.lines: list[socket.socket] = []
        """Of sessions that this process holds. A gateway that ends kills who holds on to one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._held:
            if each.process.poll() is None:
                each.process.kill()
        for line in self.lines:
            line.close()
        self("down")
        self.service.close()
        shutil.rmtree(self.ground)

    def __call__(self, *words: str, **more: Any) -> Ran:  # noqa: ANN401 - subprocess's own
        return self.project(*words, env=self.env, **more)

    def policy(self, source: str = "file:~/secrets/api", more: str = "") -> None:
        """Write the policy; `source` is where its secret is."""
        address = self.service.address
        self.project.policy(SERVICE.format(host=HOST, source=source, address=address, more=more))

    def secret(self, value: str) -> None:
        """Keep another secret, at once."""
        path = self.project.home / "secrets" / "new"
        path.write_text(value)
        path.chmod(0o600)
        path.rename(path.with_name("api"))

    def up(self, workers: int = 1) -> Ran:
        """`keyhole up`, which must succeed."""
        ran = self("up", "--workers", str(workers))
        assert ran.code == 0, ran
        return ran

    @property
    def gateway(self) -> int:
        """The gateway's control process."""
        return self.client.status().pid

    @property
    def data_plane(self) -> int:
        """The process that has the doors."""
        return self.client.status().data_plane

    @property
    def workers(self) -> list[int]:
        """All processes that have doors."""
        return [each.pid for each in self.client.status().workers]

    @property
    def keeper(self) -> int:
        """The keeper's."""
        (found,) = set(children_of(self.gateway)) - set(self.workers)
        return found

    def enter(self) -> Inside:
        """A sandbox of the gateway's."""
        made = Inside(self)
        self._held.append(made)
        return made

    def kill_gateway(self) -> None:
        """As the kernel does it; its data plane and its keeper die with it."""
        pid = self.gateway
        family = Family(pid)
        assert len(family) >= 3
        os.kill(pid, signal.SIGKILL)
        family.until_gone()

    def registered(self) -> list[str]:
        """The sessions that the gateway has written down for the next one."""
        return sorted(path.stem for path in (self.state / "sessions").glob("*.json"))

    def groups(self) -> list[str]:
        """Control groups that Keyhole made, by whomever."""
        places = cgroup.find_cgroup_directories()
        return [str(each) for place in places for each in Path(place.parent).glob("keyhole-*")]

    def until_sessions(self, count: int) -> None:
        """The gateway knows so many."""
        until(lambda: self.client.status().sessions == count)

    def assert_quiet(self) -> None:
        """A gateway is up, or none, and nothing of any sandbox is left."""
        if (self.runtime / "control.sock").exists():
            self.until_sessions(0)
        assert self.registered() == []
        assert list((self.project.home / "tmp").iterdir()) == []
        assert mounts_of(self.project) == []
        until(lambda: not self.service.busy)

    def assert_nothing_left(self) -> None:
        """After `keyhole down`: no file says that anything was ever there, but the logs."""
        assert self("down").code == 0
        self.assert_quiet()
        files = [path.name for path in self.runtime.rglob("*") if not path.is_dir()]
        assert files == ["control.lock"], files
        assert list((self.state / "quarantine").iterdir()) == []
        assert self("log", "verify").code == 0

    @property
    def places(self) -> HostPaths:
        """As the command finds them."""
        home = self.project.home
        return HostPaths(home, home / "config" / "keyhole", self.state, self.runtime)

    @functools.cached_property
    def opened_as(self) -> SessionRequest:
        """`opening`, as long as the policy stays."""
        return self.opening()

    def opening(self) -> SessionRequest:
        """What `keyhole run` would ask for here; the policy is accepted with it."""
        path = self.project.directory / "keyhole.toml"
        file = open_policy(path, self.places, FileCatalogue())
        examined = examine_policy(file, self.project.home, self.project.env["PATH"])
        AcceptanceStore(self.places.trust).accept(examined)
        return SessionRequest(
            policy=str(file.path),
            trusted=examined.digest,
            label="tested",
            granted=grants_digest(file.loaded.policy),
            stand_ins=(ServicePlaceholder("api", ("stand-in-0123456789",)),),
            search_path=self.project.env["PATH"],
            writable=(str(self.project.directory),),
        )

    def reasons(self) -> list[str]:
        """What was written down of sessions and of the gateway, in order."""
        return [event["reason"] for event in self.project.events() if event["kind"] == "session"]
