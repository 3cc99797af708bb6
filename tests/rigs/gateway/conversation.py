"""A client's connection and an origin's without a socket: tests say what each side sends.

`Conversation.client` and `.origin` have `says` and `heard`; `.audit` has the events. TLS, the door
and the dialler are left out: one connection to the origin is in the pool from the beginning, and a
request that finds none there gets another, `.origins[-1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

import trustme

from keyhole.app.session.interception import SessionTrust, build_interception
from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.gateway.budgets import Commons
from keyhole.gateway.context import Destination, DoorContext
from keyhole.gateway.git.lfs import LargeFiles
from keyhole.gateway.http import judged_body
from keyhole.gateway.http.connection import ClientConnection
from keyhole.gateway.http.host import InspectedHost
from keyhole.gateway.http.searched import Searched
from keyhole.gateway.session import Session, SessionState
from keyhole.gateway.turn import UNBOUNDED, Turn
from keyhole.gateway.upstream.origin import OriginConnection
from keyhole.inject.preset import Preset
from keyhole.model.event import Event
from keyhole.model.host import Host
from keyhole.model.secret import Secret
from keyhole.policy.address import decide_address
from keyhole.policy.budget import GatewayLimits
from keyhole.policy.egress import decide_egress
from keyhole.policy.presets import join_presets
from keyhole.policy.rulebook import Rulebook
from keyhole.system.share_pool import SharePool
from tests.rigs.gateway.stage import AMPLE, SECRET, STAND_IN, service
from tests.rigs.gateway.talk import Message, Talk
from tests.rigs.policies import book

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from keyhole.gateway.channel_user import ChannelUser
    from keyhole.gateway.http.http1 import Http1Connection
    from keyhole.gateway.session import Interception
    from keyhole.gateway.slots import Slots
    from keyhole.gateway.tls import ClientChannel, OriginChannel
    from keyhole.gateway.upstream.http2 import Http2Origin
    from keyhole.gateway.upstream.origin import Origin
    from keyhole.system.dialler import Dialler

ADDRESS = ip_address("93.184.216.34")
OWN = service("own", "ok.example")


class Channel:
    """One side: what was sent to it, and how it was ended."""

    def __init__(self, user: ChannelUser, work: Callable[[], None]) -> None:
        self.user = user
        self.work = work
        self.sent = bytearray()
        self.ended = ""
        self.slow = False
        self.paused = False
        self.careful = False
        self.turn: Turn = UNBOUNDED
        self.unsent = 0
        self.transport = None
        self.protocol = ""
        self._queue: list[bytes] = []

    def is_open(self) -> bool:
        return not self.ended

    def is_quiet(self) -> bool:
        return not self.ended

    def queue(self, data: bytes | memoryview) -> None:
        self._queue.append(bytes(data))

    def flush(self) -> None:
        queued, self._queue = self._queue, []
        self.send(b"".join(queued))

    def flush_late(self) -> None:
        self.flush()

    def drop_queue(self) -> None:
        self._queue.clear()

    def send(self, data: bytes | memoryview) -> None:
        if not self.ended:
            self.sent += data

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def part(self) -> None:
        self.ended = self.ended or "parted"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    # ── for the test ──────────────────────────────────────────────────────────────────────────────

    def says(self, *pieces: bytes) -> None:
        """Have the gateway get each of these at once."""
        for data in pieces:
            self.user.received(memoryview(data))
            self.work()

    def ends(self, *, properly: bool = False) -> None:
        """End the stream, by TLS's goodbye if `properly`."""
        if properly:
            cast("OriginConnection", self.user).ended()
        self.user.lost(None)
        self.work()

    def heard(self) -> bytes:
        """The bytes that were sent since this was called last."""
        sent = bytes(self.sent)
        self.sent.clear()
        return sent


class Clock:
    """A loop that has a clock; what waits for nothing is run when the test has spoken."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.tasks: list[Task] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return cast("asyncio.TimerHandle", Timer())

    def create_task(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        self.tasks.append(Task(work))
        return cast("asyncio.Task[object]", self.tasks[-1])

    def work(self) -> None:
        """Run each task, which has nothing to wait for."""
        while self.tasks:
            self.tasks.pop(0).run()


class Timer:
    """Never fires."""

    def cancel(self) -> None: ...


class Task:
    """Runs to its end at once, when it runs; it may give turns away, and waits for nothing."""

    def __init__(self, work: Coroutine[object, object, object]) -> None:
        self._work = work
        self._done: Callable[[Task], None] = lambda _: None
        self._cancelled = False

    def add_done_callback(self, call: Callable[[Task], None]) -> None:
        self._done = call

    def run(self) -> None:
        if not self._cancelled:
            with contextlib.suppress(StopIteration):
                while True:
                    self._work.send(None)  # it has let others have their turn
        self._work.close()
        self._done(self)

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def exception(self) -> None:
        return None


class UndialledConnection(ClientConnection):
    """A connection whose origins are at hand."""

    __slots__ = ("connect",)
    connect: Callable[..., OriginConnection | Http2Origin]

    async def dial(
        self, host: InspectedHost, origin: Origin, *, http1: bool = False
    ) -> OriginConnection | Http2Origin:
        return self.connect(origin, http1=http1)


class Silence:
    """A socket by which nothing more comes."""

    def recv(self, _: int) -> bytes:
        return b""


@dataclass
class Conversation:
    """One connection of a client under a policy."""

    policy: str = OWN
    limits: str = AMPLE
    name: str = "ok.example"
    audit: list[Event] = field(default_factory=list)
    admitting: bool = True
    secrets: dict[str, str] = field(default_factory=lambda: {"own": SECRET})
    protocol: str = ""
    """What TLS has agreed on with the client."""
    origin_protocol: str = ""
    """The same with the origin, unless it is asked for a WebSocket."""
    clock: Clock = field(default_factory=Clock)
    presets: tuple[Preset, ...] = ()
    """Package indexes that join the policy."""

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        host = Host.parse(self.name)
        session, interception = self._session(self.policy)
        rules = session.book
        loop = cast("asyncio.AbstractEventLoop", self.clock)
        self.state = SessionState(session, self.clock.now)
        shared = DoorContext(
            loop,
            cast("Dialler", None),
            cast("Slots", None),
            Commons(GatewayLimits(), self.clock.now),
            cast("SharePool", None),
            SharePool(judged_body.PLACES),
            self.state.memory,
        )
        searched, judges = Searched(rules, interception), self.state.judges
        self.host = InspectedHost(rules, interception, LargeFiles(), searched, host, 443, judges)
        self.gone: list[ClientConnection] = []
        self._shared = shared
        self._destination = Destination(host, 443, decide_egress(rules, host, 443))
        self._open()
        self.audit.clear()
        self.origins: list[Channel] = []
        """Every connection to the origin."""
        self.origin = self.add_origin()

    def beside(self) -> Conversation:
        """Another connection of the same session to the same host."""
        other = copy.copy(self)
        other._open()
        return other

    def _open(self) -> None:
        self.connection = UndialledConnection(
            self._shared,
            asyncio.Semaphore(1),
            self.state,
            self._destination,
            lambda _: self.host,
            lambda user: cast("ClientChannel", Channel(user, self.clock.work)),
            self.gone.append,
        )
        self.connection.connect = self._connect
        self.client = cast("Channel", self.connection.channel)
        self.client.protocol = self.protocol
        self.connection.life = type(self.connection.life).SECURING
        self.connection.secured()
        self.http = cast("Http1Connection", self.connection.http)

    def _session(self, policy: str) -> tuple[Session, Interception]:
        rules = book(f"{policy}\n[limits]\n{self.limits}")
        if self.presets:
            rules = Rulebook(join_presets(rules.policy, self.presets)[0])
        interception = build_interception(
            rules,
            {name: Secret(value) for name, value in self.secrets.items()},
            dict.fromkeys(self.secrets, (STAND_IN,)),
            cast("SessionTrust", Leafless()),
        )
        session = Session(
            "s", rules, self.audit.append, lambda: self.admitting, self.lines.append, interception
        )
        return session, interception

    def change(self, policy: str) -> None:
        """Another policy is in force."""
        session, interception = self._session(policy)
        host, port = self.connection.destination.host, self.connection.destination.port
        self.host.pool.retire()
        self.state.change(session, self.clock.now)
        searched = Searched(session.book, interception)
        judges = self.state.judges
        self.host = InspectedHost(
            session.book, interception, LargeFiles(), searched, host, port, judges
        )
        self.connection.change(Destination(host, port, decide_egress(session.book, host, port)))
        self.clock.work()

    def _connect(self, origin: Origin, *, http1: bool = False) -> OriginConnection | Http2Origin:
        made = OriginConnection(
            origin, lambda user: cast("OriginChannel", Channel(user, self.clock.work)), None
        )
        channel = cast("Channel", made.channel)
        channel.protocol = "" if http1 else self.origin_protocol
        made.secured()
        self.origins.append(channel)
        reached = made if made.shared is None else made.shared
        book, host, port = self.state.session.book, origin.host, origin.port
        reached.address = decide_address(book, host, port, ADDRESS)
        return reached

    def add_origin(self) -> Channel:
        """One more connection to the origin, which waits for a request."""
        made = self._connect(self.host.origin)
        if isinstance(made, OriginConnection):
            self.host.pool.keep("own", made, self.clock.now)
        else:
            self.host.pool.share("own", made)
        return self.origins[-1]

    @property
    def peer(self) -> Channel | None:
        """The connection to the origin that the client's request under way has."""
        stream = self.http.stream
        if stream is None or stream.origin is None:
            return None
        return cast("Channel", cast("OriginConnection", stream.origin).channel)

    def asks(self, *requests: bytes) -> bytes:
        """The client sends these; what the origin hears of them."""
        self.client.says(*requests)
        return self.peer.heard() if self.peer else b""

    def told(self, *replies: bytes, method: str = "GET") -> Message:
        """The origin sends these to the client's request; the answer that the client gets."""
        peer = self.peer
        assert peer is not None
        peer.says(*replies)
        return self.answer(method)

    def answer(self, method: str = "GET") -> Message:
        """The answer that the client has got."""
        return self.answers(method)[0]

    def answers(self, *methods: str) -> list[Message]:
        """All that the client has got, as answers to requests with these methods."""
        talk = Talk(cast("socket.socket", Silence()), self.client.heard())
        found = [talk.answer(method) for method in methods]
        self.client.sent += talk.rest()
        return found

    @property
    def reasons(self) -> list[str]:
        """The reasons in the audit, in order."""
        return [str(event.reason) for event in self.audit]


class Leafless:
    """Stands for a session's CA, of which nothing is used."""

    roots = TrustedRoots(trustme.CA().cert_pem.bytes(), None)

    def __getattr__(self, name: str) -> object:
        return self

    def __call__(self, *_: object, **__: object) -> object:
        return self
