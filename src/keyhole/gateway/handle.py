"""An open door: accepts, decides who may pass, and ends what it let in.

Made by `Gateway.open_door`. Whatever the sandbox does to it, it does to itself: accepting stops
while the sandbox is over its limits, and only so many connections are taken per tick.
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from keyhole.gateway import connection, refusal
from keyhole.gateway.door import Door, namespace_cookie
from keyhole.gateway.gate import JudgeRequest, gate_for
from keyhole.gateway.granting import Granting
from keyhole.gateway.inspected import Inspected
from keyhole.gateway.inspection import Inspection
from keyhole.gateway.nameserver import NameServer, TcpNameServer, UdpNameServer
from keyhole.gateway.session import Session, SessionState
from keyhole.gateway.side import reset
from keyhole.gateway.tunnel import Bound, Tunnel
from keyhole.gateway.turn import Turn
from keyhole.inject.surgery import Surgery
from keyhole.model.decision import Decision, Reason, Route, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass, replace
from keyhole.policy.egress import decide_egress
from keyhole.policy.grants import Ungrantable
from keyhole.policy.request import Request, decide_request
from keyhole.wire.httpfield import folded, overrides_method
from keyhole.wire.httphead import HTTP_PORT, Head
from keyhole.wire.httprequest import Treatment

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.gateway.arrival import Arrival
    from keyhole.gateway.budgets import Commons
    from keyhole.gateway.session import Figures, Interception
    from keyhole.gateway.slots import Slots
    from keyhole.model.host import Host
    from keyhole.policy.budget import BudgetUse
    from keyhole.policy.grants import Grant
    from keyhole.system.dialler import Dialler
    from keyhole.system.places import Places

ACCEPTS_PER_TICK = 16
"""Connections taken from one door before the loop looks at the others."""

MIN_PAUSE = 0.02
"""Seconds that a door over its rate is left alone: a few connections at a time, not one."""

EXHAUSTED_PAUSE = 0.1
"""Seconds to wait when all slots are taken, or the system has no descriptor left."""

DIALS_AT_ONCE = 16
"""Origins that one session resolves and dials at a time."""

MAX_INSPECTIONS = 256
"""Hosts whose memory of lines and decisions is kept, some 200 KiB each: under a wildcard the
sandbox chooses the names (I9). One that was forgotten is made anew."""

DNS_PORT = 53

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Shared:
    """What all doors of a gateway share."""

    loop: asyncio.AbstractEventLoop
    upstream: Dialler
    slots: Slots
    commons: Commons
    fetches: Places
    """For those that are read in a thread."""


class DoorHandle:
    """A door while it is open."""

    def __init__(
        self, shared: Shared, door: Door, session: Session, closed: Callable[[DoorHandle], None]
    ) -> None:
        self._shared = replace(shared, upstream=shared.upstream.for_session())
        self._loop = shared.loop
        self._door = door
        self.cookie = namespace_cookie(door.tcp)
        self._state = SessionState(session, shared.loop.time())
        self._state.turn = Turn(shared.loop)
        self._names = NameServer(shared.loop, self._state, shared.commons.questions)
        self._granting = Granting(shared.loop, self._state, self._grant_over)
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)
        self._on_close = closed
        self._tunnels: dict[Tunnel, asyncio.Task[None]] = {}
        self._inspected: dict[Arrival, asyncio.Task[object]] = {}
        self._inspections: dict[tuple[Host, int], Inspection] = {}
        self._talks: dict[TcpNameServer, asyncio.Task[object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._open = True
        self._accepting = False
        self._put_off: set[socket.socket] = set()
        """Listeners whose connections wait for the session's turn."""
        for listener in door.listeners:
            listener.setblocking(False)
        self._udp = UdpNameServer(shared.loop, door.udp, self._names)
        self.resume()

    @property
    def session(self) -> Session:
        """Whose door it is, as it was handed over last."""
        return self._state.session

    @property
    def usage(self) -> tuple[int, int]:
        """Bytes sent and received in the session so far."""
        return self._state.up, self._state.down

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        """What was used of each service's budget."""
        return self._state.budgets()

    @property
    def kept(self) -> int:
        """Connections to origins that wait for the next request."""
        return sum(inspection.kept for inspection in self._inspections.values())

    @property
    def figures(self) -> Figures:
        """What the session has done so far."""
        return self._state.figures

    def change(self, session: Session) -> None:
        """What the session may do, and with which credentials, from now on.

        What both policies allow goes on, and is searched for old and new secrets (I7); the next
        request of any connection goes by the new one. What the new one does not allow is cut. A
        door that cannot be changed is closed: half a change would leave open what was taken away.
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
        if self._timer is None:
            self.resume()

    def _change(self, session: Session) -> None:
        self._state.change(session, self._loop.time())
        retired, self._inspections = self._inspections, {}
        for inspection in retired.values():
            inspection.retire()
        self._state.grants.reconcile(session.book)
        for tunnel in list(self._tunnels):
            tunnel.change(self._granting.decide_again(tunnel.bound))
        for inspected in list(self._inspected):
            self._change_inspected(inspected, session)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What a person granted and lasts; `expires` is by the clock of `granting.now`."""
        return self._granting.views()

    def grant(self, host: Host, port: int, seconds: float, uses: int) -> Grant:
        """Tunnel connections to a host beside the policy: so many, so long. Raises Ungrantable.

        The address is judged as any other's (I4). A grant of the same replaces the one before.
        """
        if not self._open:
            raise Ungrantable("the session is over")
        return self._granting.grant(host, port, seconds, uses)

    def _grant_over(self, concerns: Callable[[Bound], bool]) -> None:
        for tunnel in [each for each in self._tunnels if concerns(each.bound)]:
            tunnel.cut(refusal.GRANT_EXPIRED)

    def _change_inspected(self, inspected: Arrival, session: Session) -> None:
        bound, interception = inspected.bound, session.interception
        decision = decide_egress(session.book, bound.host, bound.port)
        if interception is None or decision.route is not Route.INSPECT:
            inspected.cut(refusal.POLICY_CHANGED)
        else:
            inspected.change(Bound(bound.host, bound.port, decision), interception)

    def close(self) -> None:
        """Close the door now: no new connection, and every open one is cut."""
        if not self._open:
            return
        self._open = False
        self._pause()
        self._granting.close()
        self._udp.close()
        self._door.close()
        for tunnel in list(self._tunnels):
            tunnel.cut(refusal.DOOR_CLOSED)
        for inspected in list(self._inspected):
            inspected.cut(refusal.DOOR_CLOSED)
        for inspection in self._inspections.values():
            inspection.retire()
        for talk, task in list(self._talks.items()):
            task.cancel()
            talk.abort()
        self._on_close(self)

    def sweep(self, now: float, idle_timeout: float) -> None:
        """Cut what has been silent for too long."""
        for tunnel in [t for t in self._tunnels if t.is_stale(now, idle_timeout)]:
            tunnel.cut(refusal.IDLE)
        for inspected in [i for i in self._inspected if i.is_stale(now, idle_timeout)]:
            inspected.cut(refusal.IDLE)
        for inspected in list(self._inspected):
            inspected.end_if_slow(now)
        for inspection in self._inspections.values():
            inspection.sweep(now)

    # ── accepting ─────────────────────────────────────────────────────────────────────────────────

    def resume(self) -> None:
        """Accept again: a place is free, or a pause is over."""
        self._timer = None
        if self._open and not self._accepting:
            self._accepting = True
            for listener in self._door.listeners:
                self._loop.add_reader(listener, self._acceptable, listener)

    def _pause(self, seconds: float | None = None) -> None:
        """Leave new connections in the kernel's queue, which is bounded too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepting:
            self._accepting = False
            for listener in self._door.listeners:
                self._loop.remove_reader(listener)
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self.resume)

    def _acceptable(self, listener: socket.socket) -> None:
        turn = self._state.turn
        if turn.left > 0:
            began = perf_counter()
            self._accept_some(listener)
            turn.spend(began)
        elif listener not in self._put_off:
            # Behind what waits: connections that use up each turn must not keep others out.
            self._put_off.add(listener)
            turn.later(partial(self._accept_later, listener))

    def _accept_later(self, listener: socket.socket) -> None:
        self._put_off.discard(listener)
        if self._accepting:
            self._accept_some(listener)

    def _accept_some(self, listener: socket.socket) -> None:
        state = self._state
        for _ in range(ACCEPTS_PER_TICK):
            now = self._loop.time()
            wait = state.connects.wait(now)
            if wait:
                state.over_rate(state.connects, now)
                self._pause(max(MIN_PAUSE, wait))
                return
            common = self._shared.commons.connects
            if common is not None and (wait := common.wait(now)):
                state.over_rate(common, now)
                self._pause(max(MIN_PAUSE, wait))
                return
            if not state.may_open():
                state.over_count(now)
                self._pause()
                return
            if not self._shared.slots.take(state.open):
                self._pause(EXHAUSTED_PAUSE)
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
                self._pause(EXHAUSTED_PAUSE)
            return None
        sock.setblocking(False)
        return sock

    def _admit(self, sock: socket.socket) -> bool:
        """Decide one connection; False: it is to be reset."""
        state = self._state
        session = state.session
        try:
            # 1. Who asks is a kernel fact (I5).
            if namespace_cookie(sock) != self.cookie:
                state.record(Event(EventKind.CONNECT, Verdict.DENY, refusal.FOREIGN_NAMESPACE))
                return False
            # 2. The address that the program meant.
            address, port = sock.getsockname()[:2]
        except OSError:
            return False
        # 3. Is anything admitted at all?
        if not session.admitting():
            details = (("port", port),)
            state.record(
                Event(
                    EventKind.CONNECT,
                    Verdict.DENY,
                    refusal.NOT_ADMITTING,
                    host=address,
                    details=details,
                )
            )
            return False
        if port == DNS_PORT:
            self._answer_dns(sock)
            return True
        # 4. The address stands for a name, or for nothing (I4).
        host = state.names.name(address)
        if host is None:
            state.refused(Decision(reason=Reason.LITERAL_ADDRESS), address, port)
            return False
        # 5. Policy.
        decision = self._granting.decide(host, port)
        if not decision.allowed:
            state.refused(decision, host.name, port)
            return False
        bound = Bound(host, port, decision)
        if decision.route is Route.TUNNEL or port == HTTP_PORT:
            # In the clear there is nothing to end TLS of, and never a credential.
            self._tunnel(sock, bound)
            return True
        if session.interception is None:
            state.refused_as(refusal.INSPECTION_OFF, decision.rule, host.name, port)
            return False
        self._inspect(sock, bound, session.interception)
        return True

    # ── what was let in ───────────────────────────────────────────────────────────────────────────

    def _tunnel(self, sock: socket.socket, bound: Bound) -> None:
        shared = self._shared
        judge = self._judge_plain(bound) if bound.decision.route is Route.INSPECT else None
        gate = gate_for(bound.host, bound.port, judge)
        tunnel = Tunnel(self._loop, self._state, bound, gate, self._tunnel_ended)
        task = self._loop.create_task(
            connection.serve(self._loop, shared.upstream, self._dials, tunnel, sock)
        )
        self._tunnels[tunnel] = task
        task.add_done_callback(lambda done: self._served(done, tunnel, sock))

    def _served(self, task: asyncio.Task[None], tunnel: Tunnel, sock: socket.socket) -> None:
        """The set-up is over; when it failed, so is the connection."""
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._loop.call_exception_handler({"message": "a fault of ours", "exception": fault})
        if fault is not None or task.cancelled():
            tunnel.cut(refusal.INTERNAL)
            if tunnel.client.transport is None:
                sock.close()

    def _tunnel_ended(self, tunnel: Tunnel) -> None:
        task = self._tunnels.pop(tunnel, None)
        if task is not None and not task.done() and task is not asyncio.current_task(self._loop):
            task.cancel()
        self._left()

    def _judge_plain(self, bound: Bound) -> JudgeRequest:
        """A service's requests in the clear: reads, with no credential of anybody's (I6)."""
        state, surgery = self._state, Surgery((), ())

        def judge(head: Head) -> str | None:
            path, query = head.path
            if head.method not in ("GET", "HEAD"):
                return Reason.METHOD_REFUSED
            # The bytes go on as they are, so what would be taken off elsewhere is refused here.
            names = {*head.names, *map(folded, head.names)}
            if any(map(overrides_method, names)):
                return Reason.METHOD_OVERRIDE
            taken_off = any(surgery.treat(name) is Treatment.DROP for name in names)
            if taken_off or surgery.query(query) != query:
                return refusal.CREDENTIAL_IN_THE_CLEAR
            state.requested += 1
            now = self._loop.time()
            common = self._shared.commons.requests
            for bucket in (state.requests, common) if common is not None else (state.requests,):
                limited = bucket.take(now)
                if not limited.allowed:
                    return limited.reason
            if not state.session.admitting():
                return refusal.NOT_ADMITTING
            request = Request(head.word, path, query)
            decision = decide_request(state.session.book, bound.host, bound.port, request)
            if not decision.allowed:
                return decision.reason
            meter = state.meters.get(decision.service or "")
            refused = meter.pass_by(now) if meter is not None else None
            return refused.reason if refused is not None else None

        return judge

    def _inspection(self, bound: Bound, interception: Interception) -> Inspection:
        """How requests to a host are judged and dressed at present."""
        key = (bound.host, bound.port)
        inspection = self._inspections.pop(key, None)
        if inspection is None:
            inspection = Inspection(
                self._state.session.book,
                interception,
                self._state.large_files,
                self._state.searched,
                bound.host,
                bound.port,
            )
        self._inspections[key] = inspection  # the last one used is the last one forgotten
        if len(self._inspections) > MAX_INSPECTIONS:
            self._inspections.pop(next(iter(self._inspections))).retire()
        return inspection

    def _inspect(self, sock: socket.socket, bound: Bound, interception: Interception) -> None:
        inspected = Inspected(
            self._shared,
            self._dials,
            self._state,
            bound,
            self._inspection,
            interception,
            self._inspected_ended,
        )
        inspected.sock = sock
        attach = self._loop.connect_accepted_socket(lambda: inspected, sock)
        task = self._inspected[inspected] = self._loop.create_task(attach)
        task.add_done_callback(lambda done: self._inspecting(done, inspected, sock))

    def _inspecting(
        self, task: asyncio.Task[object], inspected: Inspected, sock: socket.socket
    ) -> None:
        if task.cancelled() or task.exception() is not None:
            sock.close()
            inspected.cut(refusal.INTERNAL)

    def _inspected_ended(self, inspected: Arrival) -> None:
        task = self._inspected.pop(inspected, None)
        if task is not None and not task.done():
            task.cancel()
        self._left()

    def _answer_dns(self, sock: socket.socket) -> None:
        talk = TcpNameServer(self._loop, self._names, self._talk_ended)
        attach = self._loop.connect_accepted_socket(lambda: talk, sock)
        task = self._talks[talk] = self._loop.create_task(attach)
        task.add_done_callback(lambda done: self._attached(done, talk, sock))

    def _attached(
        self, task: asyncio.Task[object], talk: TcpNameServer, sock: socket.socket
    ) -> None:
        if task.cancelled() or task.exception() is not None:
            sock.close()
            self._talk_ended(talk)

    def _talk_ended(self, talk: TcpNameServer) -> None:
        if self._talks.pop(talk, None) is not None:
            self._left()

    def _left(self) -> None:
        """A connection is gone, and its place is free."""
        self._state.open -= 1
        self._shared.slots.free()
        if self._timer is None:
            self.resume()
