"""A gateway in a process of its own, with its audit log on disk, as `keyhole run` has one."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks.players import duties, modelbodies
from benchmarks.players.client import NAMES
from benchmarks.players.peer import answer, receive
from benchmarks.players.project import launch_of
from keyhole.app.session.interception import SessionTrust, build_interception
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.certs.authority import Authority
from keyhole.certs.roots import system_bundle
from keyhole.confine.seccomp import build_filter
from keyhole.gateway.door.door import Door
from keyhole.gateway.gateway import Gateway
from keyhole.gateway.session import Interception, Session
from keyhole.model.secret import Secret
from keyhole.policy.build import PolicyContext
from keyhole.policy.load import PolicyText, load
from keyhole.policy.rulebook import Rulebook
from keyhole.sandbox.bwrap.bwrap_start import RunningBubblewrap, start_sandbox
from keyhole.sandbox.handover import StandardStreams
from keyhole.system.resolver import SystemResolver
from keyhole.system.serving_memory import prepare_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.model.event import Event

STARTS_AT_ONCE = 4

LIMITS = "connections = 10000\nconnections_per_second = 10000000\nupload = '900GiB'\n"
"""Out of the way: what is measured is the way of the bytes, not the bucket that slows a flood."""

REQUEST_LIMITS = """\
requests_per_second = 10000000
concurrent_requests = 10000
body = '900GiB'
download = '900GiB'
audit_per_second = 10000000
"""
INJECTION = """\
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "store:bench"
"""
WIDE = LogBounds(session=1 << 40)
"""A line for each request, as Envoy writes one; by itself the log counts a flood instead."""


class Host:
    """What the measurement asks for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
        self._loop = loop
        self._log = log
        self._gateway = Gateway(loop, SystemResolver(loop))
        self._running: list[RunningBubblewrap] = []
        self._doors = 0

    def open(self, descriptors: list[int], port: int) -> None:
        """Open a door from which every measured name leads to an origin on loopback."""
        connect = "".join(f'"{name}:443" = "127.0.0.1:{port}"\n' for name in NAMES)
        allow = ", ".join(f'"{name}"' for name in NAMES)
        text = f"[egress]\nallow = [{allow}]\n[limits]\n{LIMITS}[upstream.connect]\n{connect}"
        self._open([socket.socket(fileno=fd) for fd in descriptors], text)

    def intercept(self, descriptors: list[int], port: int, authority: str, *, secret: bool) -> str:
        """Open a door to a service whose requests are inspected; gives the session's CA.

        The origin is on loopback, and its certificate is signed by `authority`. Without a secret,
        none is written into requests or searched for in answers.
        """
        allow = ", ".join(f'"{rule}"' for rule in duties.RULES)
        service = f"allow = [{allow}]\n{INJECTION if secret else ''}"
        return self._intercept(descriptors, port, authority, service, secret=secret)

    def models(self, descriptors: list[int], port: int, authority: str) -> str:
        """The same for a service of models, whose bodies are judged but at one path."""
        service = f'use = "anthropic"\nallow_also = ["POST {modelbodies.PASSED}"]\n'
        return self._intercept(
            descriptors, port, authority, f'{service}secret = "store:bench"', modelbodies.HOST
        )

    def _intercept(
        self,
        descriptors: list[int],
        port: int,
        authority: str,
        service: str,
        host: str = duties.HOST,
        *,
        secret: bool = True,
    ) -> str:
        text = f"""
[services.api]
hosts = ["{host}"]
{service}
[limits]
{LIMITS}{REQUEST_LIMITS}
[upstream.connect]
"{host}:{duties.PORT}" = "127.0.0.1:{port}"
"""
        session_ca = Authority.create("bench")
        trust = SessionTrust(session_ca, TrustedRoots(system_bundle(), authority.encode()))
        secrets = {"api": Secret(duties.SECRET)} if secret else {}
        stand_ins = {"api": (duties.PLACEHOLDER,)}
        self._open(
            [socket.socket(fileno=fd) for fd in descriptors],
            text,
            lambda book: build_interception(book, secrets, stand_ins, trust),
        )
        return session_ca.pem.decode()

    async def sandboxes(self, directory: str, count: int) -> None:
        """Start sandboxes that sleep, each with a door and a session of its own."""
        launch = launch_of(Path(directory), "sleep", "infinity")
        program = build_filter()
        turns = asyncio.Semaphore(STARTS_AT_ONCE)
        null = os.open(os.devnull, os.O_RDWR)

        async def ready() -> bytes:
            return program

        async def one() -> None:
            async with turns:
                running = await start_sandbox(
                    launch,
                    StandardStreams(null, null, 2),
                    lambda sockets: self._open(sockets, '[egress]\nallow = ["ok.example"]\n'),
                    ready(),
                )
                self._running.append(running)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
        os.close(null)

    def settle(self) -> None:
        """Let go of what is no longer used, so that memory can be compared."""
        gc.collect()

    def close(self) -> None:
        """End the sandboxes and close the doors."""
        for running in self._running:
            running.kill()
        self._gateway.close()

    def _open(
        self,
        sockets: list[socket.socket],
        text: str,
        interception: Callable[[Rulebook], Interception] | None = None,
    ) -> None:
        # Each session has parsed its own policy, as sessions of different projects have.
        world = PolicyContext(FileCatalogue(), lambda _: None, ())
        loaded = load(PolicyText("bench.toml", b"version = 1\n" + text.encode()), None, world)
        self._doors += 1
        name = f"session{self._doors}"
        book = Rulebook(loaded.policy)
        self._log.begin(name, loaded.policy.limits.audit_per_second)

        def record(event: Event) -> None:
            self._log.record(name, event)

        session = Session(
            name,
            book,
            record,
            lambda: self._log.admitting,
            _silent,
            interception(book) if interception else None,
        )
        self._gateway.open_door(Door.of(sockets, {}), session)


def _verbs_of(host: Host) -> tuple[Callable[..., object], ...]:
    return host.open, host.intercept, host.models, host.sandboxes, host.settle


def _silent(line: str) -> None:
    """Nobody reads what a session of a measurement would tell a person."""


async def _serve(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    with (
        tempfile.TemporaryDirectory() as directory,
        AuditLog(Path(directory) / "audit", bounds=WIDE) as log,
    ):
        host = Host(loop, log)
        verbs = {f.__name__: f for f in _verbs_of(host)}
        try:
            while True:
                asked.clear()
                loop.add_reader(control, asked.set)
                await asked.wait()
                loop.remove_reader(control)
                question = receive(control)
                if question is None:
                    return
                verb, arguments = question
                found = verbs[verb](**arguments)
                if isinstance(found, Coroutine):
                    task = loop.create_task(found)
                    # Nobody asks a second time before the answer: it is the end.
                    loop.add_reader(control, task.cancel)
                    await asyncio.wait([task])
                    loop.remove_reader(control)
                    if task.cancelled():
                        return
                    found = task.result()
                answer(control, found)
        finally:
            host.close()


def main() -> None:
    """Serve doors until the asker is gone."""
    prepare_memory()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
