"""The control operations of a long-lived gateway.

Implements `control`'s `Operations` in the control process. A session belongs to a process: it ends
with that process (pidfd) and with the channel that came with its door. The data plane has the
doors, policies and secrets, and is called for them (`plane_calls.py`).

When a data plane is ended, all its sessions are closed and get the reason.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole import __version__
from keyhole.app.daemon.gateway_sessions import GatewaySessions
from keyhole.app.daemon.plane_calls import (
    ALL_RECEIPT_SECONDS,
    LOST,
    ONE_RECEIPT_SECONDS,
    PlaneCalls,
)
from keyhole.app.daemon.plane_messages import as_family
from keyhole.app.daemon.session_record import SessionRecord
from keyhole.app.session.session_events import new_session, refused_event, session_event
from keyhole.control import values
from keyhole.control.interface import NoSuchSession
from keyhole.control.operation_table import GRANT, OPENING
from keyhole.control.prometheus import Family, Sample
from keyhole.control.values import SessionPhase
from keyhole.model.errors import Refused
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from keyhole.app.containers.door_receiver_client import DoorReceiverClient
    from keyhole.app.daemon.data_plane_process import DataPlaneSupervisor
    from keyhole.app.daemon.plane_messages import (
        DataPlaneStatus,
        SessionCounterList,
    )
    from keyhole.app.session.session_register import SessionRegister
    from keyhole.audit.log import AuditLog
    from keyhole.control.event_feed import EventFeed
    from keyhole.control.peer import Peer, RefusedPeer
    from keyhole.control.received_door import ReceivedDoor
    from keyhole.control.values import (
        AnswerRequest,
        AskView,
        EventQuery,
        GrantRequest,
        GrantView,
        OpenedSession,
        SessionPage,
        SessionQuery,
        SessionRequest,
    )

PREPARED_SECONDS = 60.0
"""How long a session may wait for its door: twice what a sandbox's set-up may take."""

REFUSED_PEERS_PER_SECOND = 10
"""Events of refused peers; a loop of connections must not fill the log (I9)."""

ENDING = "the gateway is about to end"
REVOKED_EARLY = "all sessions were revoked while this one was opened"
DOOR_NOT_OPEN = "the session's door is not open"
NOT_TURNING = "it does not respond; what is shown here is what it told last"


class GatewayOperations:
    """The operations that the control API can ask of one gateway."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        planes: DataPlaneSupervisor,
        register: SessionRegister,
        log: AuditLog,
        stop: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        """`log` is this process's own: the data plane has another. `stop` begins to end the
        gateway; `report` shows a line."""
        self._loop = loop
        self._planes = planes
        self._plane_calls = PlaneCalls(planes)
        self.sessions = GatewaySessions(
            loop, planes, self._plane_calls, register, log, stop, report
        )
        self._log = log
        self._stop = stop
        self._since = int(time.time())
        self._known: DataPlaneStatus | None = None
        self._refused_peers = TokenBucket.full("strangers", REFUSED_PEERS_PER_SECOND, loop.time())
        self.protections: tuple[values.Protection, ...] = ()
        self.door_receiver: DoorReceiverClient | None = None
        """The receiver of a door that another tool makes."""

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def peer_refused(self, refused: RefusedPeer) -> None:
        """A peer was refused."""
        if self._refused_peers.take(self._loop.time()).allowed:
            who = {"uid": refused.uid, "pid": refused.pid}
            self._log.record("", refused_event("control-refused", why=refused.why, **who))

    async def status(self) -> values.Status:
        """The gateway as a whole."""
        plane = self._planes.now
        told = await self._plane_calls.look("facts", {})
        self._known = facts = told or self._known
        keeper = facts is not None and facts.keeper
        more = (
            values.Protection("keeper", keeper, "" if keeper else "ended"),
            values.Protection("data-plane", told is not None, "" if told else NOT_TURNING),
        )
        return values.Status(
            __version__,
            os.getpid(),
            self._since,
            len(self.sessions.entries),
            facts.connections if facts else 0,
            facts is not None and facts.admitting and not self.sessions.failed,
            (*self.protections, *more),
            plane.pid,
            facts.frozen if facts else 0,
        )

    async def health(self) -> values.Health:
        """Whether sandboxes can work now."""
        try:
            checks = [*(await self._plane_calls.call("health", {})).checks]
        except Refused as refused:
            checks = [values.HealthCheck("data-plane", False, refused.message)]
        if self.door_receiver is not None:
            opened = any(each.state is SessionPhase.OPEN for each in self.sessions.entries.values())
            lacks = self.door_receiver.lacks or ("" if opened else "it was closed")
            checks.insert(2, values.HealthCheck("door", not lacks, lacks[:1000]))
        return values.Health(all(each.on for each in checks), tuple(checks))

    async def metrics(self) -> Iterable[Family]:
        """The gateway's counters."""
        told = await self._plane_calls.call("metrics", {})
        restarts = Family(
            "keyhole_data_plane_restarts_total",
            "counter",
            "Data planes that were lost and replaced.",
            [Sample(self._planes.restarts)],
        )
        return [*map(as_family, told.metrics), restarts]

    async def list_sessions(self, page: SessionQuery) -> SessionPage:
        """Sessions by id."""
        found = sorted(each for each in self.sessions.entries if each > page.after)
        shown = found[: page.limit]
        more = shown[-1] if len(found) > len(shown) else None
        await self._refresh(shown)
        views = [
            self.sessions.entries[each].view() for each in shown if each in self.sessions.entries
        ]
        return values.SessionPage(tuple(views), more)

    async def show_session(self, session: str) -> values.SessionView:
        """One of them."""
        self.sessions.find(session)
        await self._refresh([session])
        return self.sessions.find(session).view()

    async def open_session(
        self, opening: SessionRequest, door: ReceivedDoor | None, peer: Peer
    ) -> OpenedSession:
        """Have the session's policy and secrets read, and make its CA."""
        if self.sessions.ending:
            raise Refused(ENDING)
        if len(self.sessions.entries) + len(self.sessions.opening) >= self.sessions.most:
            raise Refused(f"the gateway has {self.sessions.most} sessions, which is its most")
        session = new_session()
        plane = self._planes.now
        self.sessions.opening.add(session)
        asked = OPENING.write(replace(opening, door=()), "open")
        try:
            provided = await self._plane_calls.call("open", {"session": session, "opening": asked})
            if self.sessions.ending or session not in self.sessions.opening:
                raise Refused(ENDING if self.sessions.ending else REVOKED_EARLY)
            if plane.gone.is_set():
                raise Refused(LOST)
            entry = SessionRecord(session, opening, peer, plane, provided.figures)
        except BaseException:
            plane.tell("drop", {"session": session, "why": ""})
            raise
        finally:
            self.sessions.opening.discard(session)
        self.sessions.entries[session] = entry
        self._loop.add_reader(entry.pidfd, self.sessions.holder_ended, entry)
        entry.timer = self._loop.call_later(PREPARED_SECONDS, self.sessions.end, entry)
        if door is not None:
            await self.sessions.open_door(entry, door)
        return values.OpenedSession(session, entry.state, provided.ca, provided.notes)

    async def open_door(self, session: str, door: ReceivedDoor, peer: Peer) -> None:
        """Open the session's door, for the process that prepared it."""
        entry = self.sessions.find(session)
        if entry.process != peer.process or entry.state is not SessionPhase.PREPARED:
            raise NoSuchSession
        await self.sessions.open_door(entry, door)

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End it and its sandbox."""
        entry = self.sessions.find(session)
        await self.sessions.begin_stop([entry], peer.pid)
        await self.sessions.wait_ended(entry)

    async def resume_session(self, session: str, peer: Peer) -> None:
        """Let it go on, if it is frozen."""
        entry = self.sessions.find(session)
        if entry.state is not SessionPhase.OPEN:
            raise Refused(DOOR_NOT_OPEN)
        await self._plane_calls.call("resume", {"session": session, "by": peer.pid})

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""
        await self.sessions.revoke([self.sessions.find(session)], peer.pid, ONE_RECEIPT_SECONDS)

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        """The kill switch, also for sessions that are being opened."""
        opening, entries = list(self.sessions.opening), list(self.sessions.entries.values())
        # Sessions that are being opened are closed too.
        self.sessions.opening.clear()
        closed = sum(each.state is not SessionPhase.REVOKED for each in entries)
        await self.sessions.revoke(entries, peer.pid, ALL_RECEIPT_SECONDS, opening)
        return values.Revoked(closed)

    async def grant(self, session: str, grant: GrantRequest, peer: Peer) -> GrantView:
        """Allow one more host."""
        entry = self.sessions.find(session)
        if entry.state is not SessionPhase.OPEN:
            raise Refused(DOOR_NOT_OPEN)
        words = {"session": session, "grant": GRANT.write(grant, "grant"), "by": peer.pid}
        view: GrantView = await self._plane_calls.call("grant", words)
        return view

    async def list_asks(self) -> values.AskList:
        """The questions of all sessions that can be answered."""
        return self.sessions.board.pending()

    async def answer_ask(
        self, session: str, ask: str, answer: AnswerRequest, peer: Peer
    ) -> AskView:
        """Answer a question."""
        entry = self.sessions.find(session)
        if entry.state is not SessionPhase.OPEN:
            raise Refused(DOOR_NOT_OPEN)
        said = {"answer": answer.answer.value, "seconds": answer.seconds, "via": answer.via}
        words = {"session": session, "ask": ask, "by": peer.pid, **said}
        view: AskView = await self._plane_calls.call("answer", words)
        return view

    def watch(self, query: EventQuery) -> EventFeed:
        """A stream of events from now on."""
        entries = self.sessions.entries.values()
        opened = [(e.id, e.label) for e in entries if e.state is SessionPhase.OPEN]
        return self.sessions.board.watch(query, opened)

    async def reload(self, peer: Peer) -> values.Reloaded:
        """Read the policies again, and answer when the changes are in force."""
        reloaded: values.Reloaded = await self._plane_calls.call("reload", {"by": peer.pid})
        return reloaded

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read the secret again where it is used."""
        await self._plane_calls.call("secret_changed", {"name": name, "by": peer.pid})

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin to end the gateway."""
        self._log.record("", session_event("stop-asked", by=peer.pid))
        self._stop()

    # ── of the data plane ─────────────────────────────────────────────────────────────────────────

    async def _refresh(self, sessions: list[str]) -> None:
        if not sessions:
            return
        told: SessionCounterList | None = await self._plane_calls.look(
            "list", {"sessions": sessions}
        )
        if told is not None:
            for each in told.sessions:
                entry = self.sessions.entries.get(each.id)
                if entry is not None:
                    entry.figures = each
