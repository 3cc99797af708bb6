"""The gateway that `keyhole up` starts, as installed, with a home of its own; and its sessions."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.players import duties
from benchmarks.players.gateway import INJECTION, LIMITS, REQUEST_LIMITS
from benchmarks.players.peer import cpu_seconds
from benchmarks.players.program import dying_with_us
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.provision import grants_digest
from keyhole.control.client import ControlClient, NoGateway
from keyhole.control.values import ServicePlaceholder, SessionRequest

if TYPE_CHECKING:
    from benchmarks.players.peer import Peer

PATIENCE = 30.0
_DOOR = ("tcp", "udp", "tcp6")


class Daemon:
    """One gateway and the sessions that this process holds at it."""

    def __init__(
        self,
        directory: Path,
        core: int | None,
        port: int,
        authority: str,
        workers: int = 1,
        more: str = "",
    ) -> None:
        """On one core, or on any of them. `more` is the rest of the policy."""
        directory.mkdir(mode=0o700)
        state, runtime = directory / "state" / "keyhole", directory / "run"
        runtime.mkdir(mode=0o700)
        places = HostPaths(directory, directory / "config", state, runtime / "keyhole")
        self.client = ControlClient(places.runtime)
        self._opening = _accepted(directory, places, port, authority, more)
        self._lines: list[socket.socket] = []
        self.audit = places.audit
        """Where its events are written."""
        env = self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "XDG_RUNTIME_DIR": str(runtime),
        }
        keyhole = str(Path(sys.executable).with_name("keyhole"))
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [*dying_with_us(), keyhole, "up", "--foreground", "--workers", str(workers)],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        if core is not None:
            # Before it has any thread or child, which inherit it.
            os.sched_setaffinity(self._process.pid, {core})
        self._wait()
        self.workers = [each.pid for each in self.client.status().workers]
        self.pid = self.workers[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            line.close()
        self._process.terminate()
        self._process.wait(PATIENCE)

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.status()
                return
            except NoGateway:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("no gateway came up; its error is above") from None
                time.sleep(0.05)

    @property
    def keeper(self) -> int:
        """The process beside it that reads policies and secrets."""
        control = self._process.pid
        children = Path(f"/proc/{control}/task/{control}/children").read_text().split()
        (found,) = {int(each) for each in children} - set(self.workers)
        return found

    def used(self) -> tuple[float, float]:
        """Processor time of the gateway's control process and workers, and of its keeper, until
        now."""
        gateway = sum(map(cpu_seconds, (self._process.pid, *self.workers)))
        return gateway, cpu_seconds(self.keeper)

    def served(self) -> float:
        """Processor time of the data plane alone, until now."""
        return sum(map(cpu_seconds, self.workers))

    def open(self, tenants: Peer, number: int) -> None:
        """A session whose door is in the namespace of that number, which is made."""
        opened = self.client.open_session(self._opening)
        door = tenants.fetch("make", number=number)[1]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        names = [*_DOOR[: len(door)], "line"]
        self.client.open_door(opened.id, names, [*door, theirs.fileno()])
        theirs.close()
        for each in door:
            os.close(each)
        self._lines.append(ours)
        tenants.ask("trust", number=number, authority=opened.ca)


def _accepted(
    directory: Path, places: HostPaths, port: int, authority: str, more: str
) -> SessionRequest:
    """A policy with one service, as a person has accepted it."""
    (directory / "origin.pem").write_text(authority)
    secret = directory / "secret"
    secret.write_text(duties.SECRET)
    secret.chmod(0o600)
    allow = ", ".join(f'"{rule}"' for rule in duties.RULES)
    path = directory / "keyhole.toml"
    path.write_text(f"""\
version = 1
[services.api]
hosts = ["{duties.HOST}"]
allow = [{allow}]
{INJECTION.replace("store:bench", "file:~/secret")}
[limits]
{LIMITS}{REQUEST_LIMITS}
[upstream]
ca_file = "~/origin.pem"
[upstream.connect]
"{duties.HOST}:{duties.PORT}" = "127.0.0.1:{port}"
{more}""")
    file = open_policy(path, places, FileCatalogue())
    examined = examine_policy(file, directory, os.environ["PATH"])
    AcceptanceStore(places.trust).accept(examined)
    return SessionRequest(
        policy=str(file.path),
        trusted=examined.digest,
        label="bench",
        granted=grants_digest(file.loaded.policy),
        stand_ins=(ServicePlaceholder("api", (duties.PLACEHOLDER,)),),
        search_path=os.environ["PATH"],
    )
