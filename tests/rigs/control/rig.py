"""A control server on a loop of its own thread, what it was asked, and ways to ask it badly."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import uvloop

from keyhole.control import prometheus, values
from keyhole.control.client import ControlClient
from keyhole.control.event_feed import EventFeed, EventFeeds
from keyhole.control.interface import NoSuchSession
from keyhole.control.peer import RefusedPeer
from keyhole.control.received_door import DoorSockets
from keyhole.control.server import ControlServer
from keyhole.control.socket_directory import SOCKET, claim_socket
from keyhole.model.errors import Refused
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from pathlib import Path

    from keyhole.control.peer import Peer
    from keyhole.control.received_door import ReceivedDoor

KNOWN = "5e55104d0123"
UNKNOWN = "000000000000"
OPENING = values.SessionRequest(
    "/home/you/keyhole.toml", "sha256:" + "0" * 64, "claude", "sha256:" + "1" * 64
)
T = TypeVar("T")


def view(session: str) -> values.SessionView:
    """A session as a person sees it."""
    return values.SessionView(
        session, values.SessionPhase.OPEN, "claude", "/home/you/keyhole.toml", 4242,
        1_800_000_000, None,
        1, 7, 2, 100, 200, ("gh",), ("github",),
        (values.GrantView("billing.example", 1_800_000_600, 3),),
        (values.BudgetView("requests", 7, 100),),
    )  # fmt: skip


ASK = values.AskView(
    id="abc123",
    session=KNOWN,
    kind="requests",
    state=values.AskStanding.PENDING,
    host="api.example",
    port=443,
    service="api",
    method="GET",
    path="/v1/x",
    ref="",
    rule="GET /v1/x",
    marks=("the name looks like api.example",),
    asked=int(time.time()),
    expires=int(time.time()) + 120,
    waiting=2,
)
"""A question of the known session."""


@dataclass
class FakeGateway:
    """Does nothing and writes down what it was asked to do."""

    ids: list[str] = field(default_factory=lambda: [KNOWN])
    calls: list[tuple[object, ...]] = field(default_factory=list)
    strangers: list[RefusedPeer] = field(default_factory=list)
    doors: list[DoorSockets] = field(default_factory=list)
    namespaces: list[bytes] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    prepared: dict[str, tuple[int, int]] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    """While it is there and not set, `reload` waits."""
    broken: Exception | None = None
    samples: int = 1
    streams: bool = False
    """Whether a stream goes on after its first event."""
    feeds: EventFeeds = field(default_factory=lambda: EventFeeds(lambda: None))

    def peer_refused(self, refused: RefusedPeer) -> None:
        self.strangers.append(refused)

    async def status(self) -> values.Status:
        if self.broken is not None:
            raise self.broken
        protections = (values.Protection("seccomp", True),)
        return values.Status("0.1.0", os.getpid(), 1_800_000_000, 1, 0, True, protections)

    async def health(self) -> values.Health:
        lacking = values.HealthCheck("origin.example:443", False, "upstream-unreachable: timed out")
        return values.Health(False, (values.HealthCheck("door", True), lacking))

    async def metrics(self) -> Iterable[prometheus.Family]:
        samples = (
            prometheus.Sample(n, (("reason", f'no-rule "{n}"'),)) for n in range(self.samples)
        )
        return [prometheus.Family("keyhole_decisions_total", "counter", "Decisions.", samples)]

    async def list_sessions(self, page: values.SessionQuery) -> values.SessionPage:
        found = [each for each in sorted(self.ids) if each > page.after]
        shown = found[: page.limit]
        more = shown[-1] if len(found) > len(shown) else None
        return values.SessionPage(tuple(map(view, shown)), more)

    async def show_session(self, session: str) -> values.SessionView:
        return view(self._known(session))

    async def open_session(
        self, opening: values.SessionRequest, door: ReceivedDoor | None, peer: Peer
    ) -> values.OpenedSession:
        self.calls.append(("open_session", opening, peer.process))
        if opening.label == "refuse":
            raise Refused("this policy was not accepted; `keyhole policy trust` asks")
        if opening.label == "wait":
            assert self.hold is not None
            await self.hold.wait()
        self.watched.append(peer.watch())
        state = values.SessionPhase.PREPARED
        if door is not None:
            state = values.SessionPhase.OPEN
            self._take(door)
        else:
            self.prepared[KNOWN] = peer.process
        return values.OpenedSession(KNOWN, state, "PEM\n", ("a note",))

    async def open_door(self, session: str, door: ReceivedDoor, peer: Peer) -> None:
        if self.prepared.get(session) != peer.process:
            raise NoSuchSession
        self._take(door)

    async def stop_session(self, session: str, peer: Peer) -> None:
        self.calls.append(("stop_session", self._known(session), peer.pid))

    async def resume_session(self, session: str, peer: Peer) -> None:
        self.calls.append(("resume_session", self._known(session), peer.pid))

    async def revoke_session(self, session: str, peer: Peer) -> None:
        self.calls.append(("revoke_session", self._known(session), peer.pid))

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        self.calls.append(("revoke_all", peer.pid))
        return values.Revoked(len(self.ids))

    async def grant(self, session: str, grant: values.GrantRequest, peer: Peer) -> values.GrantView:
        self.calls.append(("grant", self._known(session), grant, peer.pid))
        return values.GrantView(str(grant.host), 1_800_000_000 + grant.seconds, grant.uses)

    async def list_asks(self) -> values.AskList:
        return values.AskList((ASK,))

    async def answer_ask(
        self, session: str, ask: str, answer: values.AnswerRequest, peer: Peer
    ) -> values.AskView:
        self._known(session)
        self.calls.append(("answer_ask", session, ask, answer, peer.pid))
        if ask != ASK.id:
            raise Refused("no question waits")
        return ASK

    def watch(self, query: values.EventQuery) -> EventFeed:
        event = values.WatchEvent(values.WatchKind.ASK, 1, KNOWN, ASK)
        feed = self.feeds.open(query, [event])
        if not self.streams:
            feed.close()
        return feed

    async def invite(self, opening: values.SessionRequest, peer: Peer) -> values.Invited:
        self.calls.append(("invite", opening.policy, peer.pid))
        return values.Invited("keyhole-code", "192.0.2.1:7443", 600)

    async def reload(self, peer: Peer) -> values.Reloaded:
        self.calls.append(("reload", peer.pid))
        if self.hold is not None:
            await self.hold.wait()
        kept = values.PolicyReload(
            "/home/you/keyhole.toml", values.ReloadOutcome.KEPT, "line 3: no"
        )
        return values.Reloaded((kept,))

    async def secret_changed(self, name: str, peer: Peer) -> None:
        self.calls.append(("secret_changed", name, peer.pid))

    async def stop_gateway(self, peer: Peer) -> None:
        self.calls.append(("stop_gateway", peer.pid))

    def _known(self, session: str) -> str:
        if session not in self.ids:
            raise NoSuchSession
        return session

    def _take(self, door: ReceivedDoor) -> None:
        self.namespaces.append(door.namespace)
        self.doors.append(door.take())

    def close(self) -> None:
        """Close all that was taken."""
        for door in self.doors:
            for each in (door.tcp, door.udp, door.tcp6):
                if each is not None:
                    each.close()
        for descriptor in self.watched:
            os.close(descriptor)
        self.doors.clear()
        self.watched.clear()


class Rig:
    """A running server in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.gateway = FakeGateway()
        self.loop = uvloop.new_event_loop()
        self.faults: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        place = claim_socket(directory)
        self.server = self.call(
            lambda: ControlServer(self.loop, place, place.listen(), self.gateway)
        )
        self.client = ControlClient(directory, PATIENCE)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the loop."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def connect(self) -> socket.socket:
        """A connection of the test's own."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE)
        sock.connect(str(self.directory / SOCKET))
        return sock

    def talk(self, *pieces: bytes, descriptors: Sequence[int] = (), end: bool = False) -> bytes:
        """Send bytes, the descriptors with the first; all that comes back until the end."""
        with self.connect() as sock:
            try:
                for piece in pieces:
                    rights = array.array("i", descriptors)
                    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                    sent = sock.sendmsg([piece], beside) if piece else 0
                    sock.sendall(piece[sent:])
                    descriptors = ()
                if end:
                    sock.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have answered before it heard all
            return drain(sock)

    def settled(self) -> None:
        """Wait until the server has nothing under way, nor anybody waiting to be accepted."""
        self.talk(b"", end=True)  # who connected before was accepted before
        until(lambda: self.call(lambda: not self.server._conversations))

    def close(self) -> None:
        """End it; nothing may have been raised out of a callback."""
        self.wait(self.server.close())
        self.gateway.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not self.faults, self.faults


def drain(sock: socket.socket) -> bytes:
    """All that comes until the end."""
    received = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return received
        if not more:
            return received
        received += more


def open_descriptors() -> dict[str, str]:
    """What this process has open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def request(
    method: str, target: str, body: bytes | None = None, head: str = "Host: keyhole\r\n"
) -> bytes:
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b"")


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer.split(b" ", 2)[1])
