"""An open door: accepts connections, decides on them, and ends them.

Made by `Gateway.open_door`. A sandbox can only harm itself here: accepting stops while the sandbox
is over its limits, and only so many connections are taken per tick.
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.gateway.asking import AskContext, SessionAsks
from keyhole.gateway.context import Destination, DoorContext
from keyhole.gateway.door import connection
from keyhole.gateway.door.door import Door, namespace_cookie
from keyhole.gateway.door.gate import gate_for
from keyhole.gateway.door.granting import Granting
from keyhole.gateway.door.host_port import HostPortTunnel, may_use, serve_host_port
from keyhole.gateway.door.listeners import ACCEPTS_PER_TICK, Listeners
from keyhole.gateway.door.nameserver import NameServer, TcpNameServer, UdpNameServer
from keyhole.gateway.door.plain import PlainJudge
from keyhole.gateway.door.published import PublishedPorts
from keyhole.gateway.door.signing import SigningTalk
from keyhole.gateway.door.synthetic import SyntheticNames
from keyhole.gateway.door.tunnel import Tunnel
from keyhole.gateway.git.lfs import LargeFiles
from keyhole.gateway.http.connection import ClientConnection
from keyhole.gateway.http.host import InspectedHost
from keyhole.gateway.http.searched import Searched
from keyhole.gateway.session import DECOY_RULE, Session, SessionState
from keyhole.gateway.sockets import is_there, reset
from keyhole.gateway.tasks import Tasks
from keyhole.gateway.tls import ClientChannel
from keyhole.gateway.turn import Turn
from keyhole.http.plain import HTTP_PORT
from keyhole.model.decision import Decision, EgressDecision, Reason, Route, Verdict
from keyhole.model.errors import Refused
from keyhole.model.event import Event, EventKind
from keyhole.policy.egress import decide_egress
from keyhole.policy.signing import SIGNING_ADDRESS

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from keyhole.gateway.session import Figures
    from keyhole.model.host import Host
    from keyhole.policy.asks import AskSubject
    from keyhole.policy.budget import BudgetUse, PeriodSpending
    from keyhole.policy.grants import Grant

MIN_PAUSE = 0.02
"""Seconds for which a door over its rate accepts nothing, so that it then accepts several at
once."""

EXHAUSTED_PAUSE = 0.1
"""Seconds to wait when all slots are taken, or the system has no descriptor left."""

DIALS_AT_ONCE = 16
"""Origins that one session resolves and dials at a time."""

MAX_HOSTS = 256
"""Hosts with cached lines and decisions, some 200 KiB each: under a wildcard the sandbox chooses
the names (I9). A dropped one is built again."""

DNS_PORT = 53

_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class DoorHandle:
    """A door while it is open."""

    def __init__(
        self,
        shared: DoorContext,
        door: Door,
        session: Session,
        closed: Callable[[DoorHandle], None],
    ) -> None:
        self._shared = replace(shared, upstream=shared.upstream.for_session())
        self._loop = shared.loop
        self._door = door
        self.cookie = namespace_cookie(door.tcp)
        self._state = SessionState(session, shared.loop.time())
        self._state.turn = Turn(shared.loop)
        self._state.memory = shared.memory
        self._state.freeze = self._freeze
        self._synthetic = SyntheticNames()
        self._names = NameServer(
            shared.loop, self._state, self._synthetic, shared.commons.questions
        )
        self._granting = Granting(shared.loop, self._state, self._grant_over)
        if session.announce is not None:
            state = self._state
            context = AskContext(
                lambda: state.session.book,
                lambda event: state.session.record(event),
                state.reports,
                self._granting.grant,
                session.announce,
            )
            state.asking = SessionAsks(shared.loop, context)
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)
        self._on_close = closed
        self._tasks = Tasks(shared.loop)
        self._tunnels: dict[Tunnel, asyncio.Task[object]] = {}
        self._connections: dict[ClientConnection, asyncio.Task[object]] = {}
        self._hosts: dict[tuple[Host, int], InspectedHost] = {}
        self._large_files = LargeFiles()
        self._searched = Searched(session.book, session.interception)
        self._talks: dict[TcpNameServer | SigningTalk, asyncio.Task[object]] = {}
        self._open = True
        self._listeners = Listeners(shared.loop, self._state, door.listeners, self._accept_some)
        self._published = PublishedPorts(self._shared, self._state, door) if door.inner else None
        self._udp = UdpNameServer(shared.loop, door.udp, self._names)
        self._listeners.resume()

    @property
    def session(self) -> Session:
        """The session of the door, in its present state."""
        return self._state.session

    @property
    def usage(self) -> tuple[int, int]:
        """Bytes sent and received in the session so far."""
        return self._state.up, self._state.down

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        """The use of each service's budget."""
        return self._state.budgets()

    def know_spending(self, spending: Mapping[str, PeriodSpending]) -> None:
        """What all sessions of the user have spent, by service."""
        self._state.know_spending(spending)

    @property
    def kept(self) -> int:
        """The number of idle connections to origins."""
        return sum(host.pool.size for host in self._hosts.values())

    @property
    def figures(self) -> Figures:
        """The session's counters."""
        return self._state.figures

    def repeated_refusals(self) -> Iterator[tuple[str, int]]:
        """Each line about a refusal that was reported once and came more often, and how often."""
        return self._state.reports.repeated()

    def change(self, session: Session) -> None:
        """Apply another policy and other credentials from now on.

        Streams that both policies allow go on, and are searched for old and new secrets (I7); the
        next request of any connection is judged by the new policy. Streams that the new policy does
        not allow are cut. A door that cannot be changed is closed: half a change could leave open
        what was revoked.
        """
        if session.id != self.session.id:
            raise ValueError("a door is of one session")
        if not self._open:
            return
        try:
            self._change(session)
        except BaseException:
            self.close()
            raise
        self._listeners.resume()

    def _change(self, session: Session) -> None:
        self._state.change(session, self._loop.time())
        self._searched.change(session.book, session.interception)
        retired, self._hosts = self._hosts, {}
        for host in retired.values():
            host.pool.retire()
        self._state.grants.reconcile(session.book)
        for tunnel in list(self._tunnels):
            if tunnel.approval is None:  # what waits is decided when it was answered
                tunnel.change(self._granting.decide_again(tunnel.destination))
        for client in list(self._connections):
            self._change_connection(client, session)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The grants that have not ended; `expires` is by the clock of `granting.now`."""
        return self._granting.views()

    def grant(self, host: Host, port: int, seconds: float, uses: int) -> Grant:
        """Tunnel connections to a host beside the policy: so many, so long. Raises Refused.

        The address is judged as any other's (I4). A grant of the same replaces the one before.
        """
        if not self._open:
            raise Refused("the session is over")
        return self._granting.grant(host, port, seconds, uses)

    def _grant_over(self, concerns: Callable[[Destination], bool]) -> None:
        for tunnel in [each for each in self._tunnels if concerns(each.destination)]:
            tunnel.cut(Reason.GRANT_EXPIRED)

    def _change_connection(self, client: ClientConnection, session: Session) -> None:
        host, port = client.destination.host, client.destination.port
        decision = decide_egress(session.book, host, port)
        if session.interception is None or decision.route is not Route.INSPECT:
            client.cut(Reason.POLICY_CHANGED)
        else:
            client.change(Destination(host, port, decision))

    def close(self) -> None:
        """Close the door now: no new connection, and every open one is cut."""
        if not self._open:
            return
        self._open = False
        self._listeners.close()
        self._granting.close()
        if self._state.asking is not None:
            self._state.asking.close()
        self._udp.close()
        if self._published is not None:
            self._published.close()
        self._door.close()
        for tunnel in list(self._tunnels):
            tunnel.cut(Reason.DOOR_CLOSED)
        for client in list(self._connections):
            client.cut(Reason.DOOR_CLOSED)
        for host in self._hosts.values():
            host.pool.retire()
        for talk, task in list(self._talks.items()):
            task.cancel()
            talk.abort()
        self._on_close(self)

    @property
    def asking(self) -> SessionAsks | None:
        """The questions that wait for a person; None if nobody is ever asked."""
        return self._state.asking

    @property
    def frozen(self) -> bool:
        """Whether nothing passes until a person resumes the session."""
        return self._state.frozen

    def thaw(self) -> bool:
        """Let connections pass again; returns whether the session was frozen."""
        frozen, self._state.frozen = self._state.frozen, False
        return frozen

    def _freeze(self) -> None:
        """A decoy was sent: cut what is open, as soon as the loop has left the connection that
        carried it. New connections are refused from now on."""
        self._loop.call_soon(self._cut_frozen)

    def _cut_frozen(self) -> None:
        if not self._open:
            return
        for tunnel in list(self._tunnels):
            tunnel.cut(Reason.FROZEN)
        if self._published is not None:
            self._published.freeze()
        for client in list(self._connections):
            client.freeze()
        for talk in [each for each in self._talks if isinstance(each, SigningTalk)]:
            talk.abort()
        retired, self._hosts = self._hosts, {}
        for host in retired.values():
            host.pool.retire()

    def sweep(self, now: float, idle_timeout: float) -> None:
        """Cut connections that have been silent for too long."""
        for tunnel in [t for t in self._tunnels if t.is_stale(now, idle_timeout)]:
            tunnel.cut(Reason.IDLE)
        if self._published is not None:
            self._published.sweep(now)
        for client in list(self._connections):
            client.sweep(now, idle_timeout)
        for host in self._hosts.values():
            host.pool.sweep(now)

    # ── accepting ─────────────────────────────────────────────────────────────────────────────────

    def _accept_some(self, listener: socket.socket) -> None:
        state = self._state
        for _ in range(ACCEPTS_PER_TICK):
            now = self._loop.time()
            wait = state.connects.wait(now)
            if wait:
                state.over_rate(state.connects, now)
                self._listeners.pause(max(MIN_PAUSE, wait))
                return
            common = self._shared.commons.connects
            if common is not None and (wait := common.wait(now)):
                state.over_rate(common, now)
                self._listeners.pause(max(MIN_PAUSE, wait))
                return
            if not state.may_open():
                state.over_count(now)
                self._listeners.pause()
                return
            if not self._shared.slots.take(state.open):
                self._listeners.pause(EXHAUSTED_PAUSE)
                return
            sock = self._accept(listener)
            if sock is None:
                self._shared.slots.free()
                return
            state.connects.take(now)
            if common is not None:
                common.take(now)
            state.open += 1
            if not self._admit(sock):
                reset(sock)
                sock.close()
                self._left()

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._listeners.pause(EXHAUSTED_PAUSE)
            return None
        sock.setblocking(False)
        return sock

    def _admit(self, sock: socket.socket) -> bool:
        """Decide one connection; False: the caller resets it."""
        state = self._state
        session = state.session
        try:
            # 1. The sandbox's identity is a kernel fact (I5).
            if namespace_cookie(sock) != self.cookie:
                state.record(Event(EventKind.CONNECT, Verdict.DENY, Reason.FOREIGN_NAMESPACE))
                return False
            # 2. The address that the program meant.
            address, port = sock.getsockname()[:2]
        except OSError:
            return False
        # 3. The gateway admits new connections at all.
        if not session.admitting():
            details = (("port", port),)
            state.record(
                Event(
                    EventKind.CONNECT,
                    Verdict.DENY,
                    Reason.NOT_ADMITTING,
                    host=address,
                    details=details,
                )
            )
            return False
        if port == DNS_PORT:
            self._answer_dns(sock)
            return True
        if state.frozen:
            named = self._synthetic.name(address)
            refusal = Decision(reason=Reason.FROZEN, rule=DECOY_RULE)
            state.refused(refusal, named.name if named else address, port)
            return False
        if (address, port) == SIGNING_ADDRESS and session.sign is not None:
            self._sign(sock)
            return True
        if address in _LOOPBACK and self._leads_to_host(port):
            self._pass_to_host(sock, port)
            return True
        # 4. The address belongs to a name, or the connection is refused (I4).
        host = self._synthetic.name(address)
        if host is None:
            state.refused(Decision(reason=Reason.LITERAL_ADDRESS), address, port)
            return False
        # 5. Policy.
        decision = self._granting.decide(host, port)
        destination = Destination(host, port, decision)
        if not decision.allowed:
            if self._ask(sock, destination):
                return True
            state.refused(decision, host.name, port)
            return False
        if decision.route is Route.TUNNEL or port == HTTP_PORT:
            # A plain connection has no TLS to terminate, and never gets a credential.
            self._tunnel(sock, destination)
            return True
        if session.interception is None:
            state.refused_as(Reason.INSPECTION_OFF, decision.rule, host.name, port)
            return False
        self._inspect(sock, destination)
        return True

    # ── what was let in ───────────────────────────────────────────────────────────────────────────

    def _ask(self, sock: socket.socket, destination: Destination) -> bool:
        """Hold a connection that no rule names until a person has answered; False: nobody is asked
        about it."""
        asking = self._state.asking
        if asking is None:
            return False
        subject = asking.host_subject(destination.host, destination.port, destination.decision)
        if subject is None:
            return False
        self._tunnel(sock, destination, partial(self._approve, sock, destination, subject))
        return True

    async def _approve(
        self, sock: socket.socket, destination: Destination, subject: AskSubject
    ) -> EgressDecision:
        """The decision on a connection that waits; the policy may have changed meanwhile."""
        asking, host, port = self._state.asking, destination.host, destination.port
        if asking is None:
            return destination.decision
        said = await asking.wait(subject, lambda: is_there(sock.fileno()))
        if not said.allowed:
            return EgressDecision(reason=said.reason, rule=said.rule)
        barred = self._state.barred()
        if barred is not None:
            return EgressDecision(reason=barred.reason, rule=barred.rule)
        decision = self._granting.decide(host, port)
        if decision.allowed:
            tunnelled = decision.route is Route.TUNNEL
            return decision if tunnelled else EgressDecision(reason=Reason.POLICY_CHANGED)
        if self._state.session.book.rules_of_name(host):
            return decision
        return EgressDecision(Verdict.ALLOW, said.reason, said.rule, Route.TUNNEL)

    def _tunnel(
        self,
        sock: socket.socket,
        destination: Destination,
        approval: Callable[[], Awaitable[EgressDecision]] | None = None,
    ) -> None:
        """`approval` waits for a person's answer, if no rule decides."""
        shared = self._shared
        inspected = destination.decision.route is Route.INSPECT
        judge = PlainJudge(shared, self._state, destination) if inspected else None
        gate = gate_for(
            destination.host, destination.port, judge, partial(self._watch_plain, destination)
        )
        tunnel = Tunnel(self._loop, self._state, destination, gate, self._tunnel_ended)
        tunnel.approval = approval

        def failed() -> None:
            tunnel.cut(Reason.INTERNAL)
            if tunnel.client.transport is None:
                sock.close()

        serve = connection.serve(self._loop, shared.upstream, self._dials, tunnel, sock)
        self._tunnels[tunnel] = self._tasks.start(serve, failed, failed)

    def _watch_plain(self, destination: Destination, head: bytes) -> Decision | None:
        """Look for decoys in a request in the clear, where no placeholder has a meaning."""
        state = self._state
        for owner in state.decoys_in(head):
            state.note_decoy(owner, destination.host.name)
        return Decision(reason=Reason.FROZEN, rule=DECOY_RULE) if state.frozen else None

    def _leads_to_host(self, port: int) -> bool:
        return bool(self._door.host_ports) and may_use(self._state, port)

    def _pass_to_host(self, sock: socket.socket, port: int) -> None:
        tunnel = HostPortTunnel(self._loop, self._state, port, self._tunnel_ended)

        def failed() -> None:
            tunnel.cut(Reason.INTERNAL)
            if tunnel.client.transport is None:
                sock.close()

        serve = serve_host_port(self._loop, tunnel, sock, self._shared.is_own_port)
        self._tunnels[tunnel] = self._tasks.start(serve, failed, failed)

    def _tunnel_ended(self, tunnel: Tunnel) -> None:
        task = self._tunnels.pop(tunnel, None)
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()
        self._left()

    def _find_host(self, destination: Destination) -> InspectedHost:
        """The host under the policy in force, from the cache; the least recently used one is
        dropped first."""
        key = (destination.host, destination.port)
        host = self._hosts.pop(key, None)
        if host is None:
            session = self._state.session
            if session.interception is None:
                raise ValueError("nothing is inspected in this session")
            host = InspectedHost(
                session.book,
                session.interception,
                self._large_files,
                self._searched,
                *key,
                self._state.judges,
            )
        self._hosts[key] = host
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.pop(next(iter(self._hosts))).pool.retire()
        return host

    def _inspect(self, sock: socket.socket, destination: Destination) -> None:
        client = ClientConnection(
            self._shared,
            self._dials,
            self._state,
            destination,
            self._find_host,
            lambda user: ClientChannel(user, sock),
            self._connection_ended,
        )

        def failed() -> None:
            sock.close()
            client.cut(Reason.INTERNAL)

        attach = self._loop.connect_accepted_socket(lambda: client.channel, sock)
        self._connections[client] = self._tasks.start(attach, failed, failed)

    def _connection_ended(self, client: ClientConnection) -> None:
        task = self._connections.pop(client, None)
        if task is not None:
            task.cancel()
        self._left()

    def _answer_dns(self, sock: socket.socket) -> None:
        talk = TcpNameServer(self._loop, self._names, self._talk_ended)

        def failed() -> None:
            sock.close()
            self._talk_ended(talk)

        attach = self._loop.connect_accepted_socket(lambda: talk, sock)
        self._talks[talk] = self._tasks.start(attach, failed, failed)

    def _sign(self, sock: socket.socket) -> None:
        talk = SigningTalk(self._loop, self._state, self._tasks, self._talk_ended)

        def failed() -> None:
            sock.close()
            self._talk_ended(talk)

        attach = self._loop.connect_accepted_socket(lambda: talk, sock)
        self._talks[talk] = self._tasks.start(attach, failed, failed)

    def _talk_ended(self, talk: TcpNameServer | SigningTalk) -> None:
        if self._talks.pop(talk, None) is not None:
            self._left()

    def _left(self) -> None:
        """A connection has ended, and its slot is free."""
        self._state.open -= 1
        self._shared.slots.free()
        self._listeners.resume()
