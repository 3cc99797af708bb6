"""The control operations of a long-lived gateway.

Implements `control`'s `Operations` in the control process. A session belongs to a process: it ends
with that process (pidfd) and with the channel that came with its door. The workers' data planes
have the doors, policies and secrets, and are called for them (`plane_calls.py`): the one that has a
session, or all of them at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keyhole import __version__
from keyhole.app.daemon.gateway_sessions import GatewaySessions
from keyhole.app.daemon.joined_reports import JoinedMetrics, join_checks, join_reloads
from keyhole.app.daemon.plane_calls import (
    ALL_RECEIPT_SECONDS,
    LOST,
    ONE_RECEIPT_SECONDS,
    call_plane,
    look_at_plane,
)
from keyhole.app.daemon.plane_messages import as_family
from keyhole.app.daemon.session_record import SessionRecord
from keyhole.app.remote.invitation import LIFETIME_SECONDS
from keyhole.app.session.session_events import new_session, refused_event, session_event
from keyhole.control import values
from keyhole.control.interface import NoSuchSession
from keyhole.control.operation_table import GRANT, OPENING
from keyhole.control.prometheus import Family, Sample
from keyhole.control.values import SessionPhase
from keyhole.model.errors import Refused
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keyhole.app.containers.door_receiver_client import DoorReceiverClient
    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess
    from keyhole.app.daemon.plane_messages import (
        DataPlaneStatus,
        SessionCounterList,
    )
    from keyhole.app.daemon.workers import Workers
    from keyhole.app.remote.receiver_client import RemoteReceiverClient
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
NOT_LISTENING = (
    "the gateway does not listen for other machines: start it with `keyhole up --listen HOST:PORT`"
)
NOT_TURNING = "it does not respond; what is shown here is what it told last"


class GatewayOperations:
    """The operations that the control API can ask of one gateway."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        register: SessionRegister,
        log: AuditLog,
        stop: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        """`log` is this process's own: each data plane has another. `stop` begins to end the
        gateway; `report` shows a line."""
        self._loop = loop
        self._workers = workers
        self.sessions = GatewaySessions(loop, workers, register, log, stop, report)
        self._log = log
        self._stop = stop
        self._since = int(time.time())
        self._known: dict[DaemonDataPlaneProcess, DataPlaneStatus] = {}
        self._metrics = JoinedMetrics()
        self._refused_peers = TokenBucket.full("strangers", REFUSED_PEERS_PER_SECOND, loop.time())
        self.protections: tuple[values.Protection, ...] = ()
        self.door_receiver: DoorReceiverClient | None = None
        """The receiver of a door that another tool makes."""
        self.remote: RemoteReceiverClient | None = None
        """The receiver of doors of other machines."""

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def peer_refused(self, refused: RefusedPeer) -> None:
        """A peer was refused."""
        if self._refused_peers.take(self._loop.time()).allowed:
            who = {"uid": refused.uid, "pid": refused.pid}
            self._log.record("", refused_event("control-refused", why=refused.why, **who))

    async def status(self) -> values.Status:
        """The gateway as a whole."""
        planes = self._workers.planes
        told = dict(zip(planes, await self._look_at_all("facts"), strict=True))
        known = {each: told[each] or self._known.get(each) for each in planes}
        self._known = {each: facts for each, facts in known.items() if facts is not None}
        facts = list(self._known.values())
        keeper = bool(facts) and all(each.keeper for each in facts)
        turning = all(told.values()) and bool(planes)
        more = (
            values.Protection("keeper", keeper, "" if keeper else "ended"),
            values.Protection("data-plane", turning, "" if turning else NOT_TURNING),
        )
        loads = self.sessions.loads()
        workers = tuple(
            values.WorkerView(
                self._workers.number(each),
                each.pid,
                told[each] is not None,
                loads[each],
                self._known[each].connections if each in self._known else 0,
            )
            for each in planes
        )
        return values.Status(
            __version__,
            os.getpid(),
            self._since,
            len(self.sessions.entries),
            sum(each.connections for each in facts),
            bool(facts) and all(each.admitting for each in facts) and not self.sessions.failed,
            (*self.protections, *more),
            planes[0].pid if planes else 0,
            sum(each.frozen for each in facts),
            workers,
        )

    async def health(self) -> values.Health:
        """Whether sandboxes can work now."""
        reports = []
        for each in await self._call_all("health"):
            refused = isinstance(each, Refused)
            failed = (values.HealthCheck("data-plane", False, each.message),) if refused else ()
            reports.append(failed or each.checks)
        checks = join_checks(reports)
        if self.door_receiver is not None:
            opened = any(each.state is SessionPhase.OPEN for each in self.sessions.entries.values())
            lacks = self.door_receiver.lacks or ("" if opened else "it was closed")
            checks.insert(2, values.HealthCheck("door", not lacks, lacks[:1000]))
        return values.Health(all(each.on for each in checks), tuple(checks))

    async def metrics(self) -> Iterable[Family]:
        """The gateway's counters."""
        for plane, report in zip(
            self._workers.planes, await self._look_at_all("metrics"), strict=True
        ):
            if report is not None:
                self._metrics.hear(plane, map(as_family, report.metrics))
        restarts = Family(
            "keyhole_data_plane_restarts_total",
            "counter",
            "Data planes that were lost and replaced.",
            [Sample(self._workers.restarts)],
        )
        return [*self._metrics.families(), restarts]

    async def list_sessions(self, page: SessionQuery) -> SessionPage:
        """Sessions by id."""
        found = sorted(each for each in self.sessions.entries if each > page.after)
        shown = found[: page.limit]
        more = shown[-1] if len(found) > len(shown) else None
        await self._refresh(shown)
        entries = self.sessions.entries
        views = [self._view(entries[each]) for each in shown if each in entries]
        return values.SessionPage(tuple(views), more)

    async def show_session(self, session: str) -> values.SessionView:
        """One of them."""
        self.sessions.find(session)
        await self._refresh([session])
        return self._view(self.sessions.find(session))

    def _view(self, entry: SessionRecord) -> values.SessionView:
        return entry.view(self._workers.number(entry.plane))

    async def open_session(
        self, opening: SessionRequest, door: ReceivedDoor | None, peer: Peer
    ) -> OpenedSession:
        """Have the session's policy and secrets read, and make its CA."""
        if self.sessions.ending:
            raise Refused(ENDING)
        if len(self.sessions.entries) + len(self.sessions.opening) >= self.sessions.most:
            raise Refused(f"the gateway has {self.sessions.most} sessions, which is its most")
        session = new_session()
        plane = self._workers.choose()
        self.sessions.opening[session] = plane
        asked = OPENING.write(replace(opening, door=()), "open")
        try:
            provided = await call_plane(plane, "open", {"session": session, "opening": asked})
            if self.sessions.ending or session not in self.sessions.opening:
                raise Refused(ENDING if self.sessions.ending else REVOKED_EARLY)
            if plane.gone.is_set():
                raise Refused(LOST)
            entry = SessionRecord(session, opening, peer, plane, provided.figures)
        except BaseException:
            plane.tell("drop", {"session": session, "why": ""})
            raise
        finally:
            self.sessions.opening.pop(session, None)
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
        await call_plane(entry.plane, "resume", {"session": session, "by": peer.pid})

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""
        await self.sessions.revoke([self.sessions.find(session)], peer.pid, ONE_RECEIPT_SECONDS)

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        """The kill switch, also for sessions that are being opened."""
        opening, entries = dict(self.sessions.opening), list(self.sessions.entries.values())
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
        view: GrantView = await call_plane(entry.plane, "grant", words)
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
        view: AskView = await call_plane(entry.plane, "answer", words)
        return view

    def watch(self, query: EventQuery) -> EventFeed:
        """A stream of events from now on."""
        entries = self.sessions.entries.values()
        opened = [(e.id, e.label) for e in entries if e.state is SessionPhase.OPEN]
        return self.sessions.board.watch(query, opened)

    async def reload(self, peer: Peer) -> values.Reloaded:
        """Read the policies again, and answer when the changes are in force."""
        self._log.record("", session_event("reload-asked", by=peer.pid))
        answers = await self._call_all("reload")
        for each in answers:
            if isinstance(each, Refused):
                raise each
        return join_reloads(answers)

    async def invite(self, opening: SessionRequest, peer: Peer) -> values.Invited:
        """Let one sandbox of another machine enrol."""
        remote = self.remote
        if remote is None:
            raise Refused(NOT_LISTENING)
        code = await remote.invite(opening)
        self._log.record("", session_event("invited", policy=opening.policy, by=peer.pid))
        return values.Invited(code, remote.address, LIFETIME_SECONDS)

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read the secret again where it is used."""
        event = session_event("secret-changed-said", secret=name, by=peer.pid)
        self._log.record("", event)
        for each in await self._call_all("secret_changed", {"name": name}):
            if isinstance(each, Refused):
                raise each

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin to end the gateway."""
        self._log.record("", session_event("stop-asked", by=peer.pid))
        self._stop()

    # ── of the data planes ────────────────────────────────────────────────────────────────────────

    async def _look_at_all(self, name: str) -> list[Any]:
        planes = self._workers.planes
        return list(await asyncio.gather(*(look_at_plane(each, name, {}) for each in planes)))

    async def _call_all(self, name: str, words: Mapping[str, Any] | None = None) -> list[Any]:
        """The answer of each, or why it refused."""

        async def call(plane: DaemonDataPlaneProcess) -> object:
            try:
                return await call_plane(plane, name, words or {})
            except Refused as refused:
                return refused

        return list(await asyncio.gather(*map(call, self._workers.planes)))

    async def _refresh(self, sessions: list[str]) -> None:
        entries = self.sessions.entries
        shares: dict[DaemonDataPlaneProcess, list[str]] = {}
        for each in sessions:
            shares.setdefault(entries[each].plane, []).append(each)

        async def refresh(plane: DaemonDataPlaneProcess, asked: list[str]) -> None:
            told: SessionCounterList | None = await look_at_plane(
                plane, "list", {"sessions": asked}
            )
            for each in told.sessions if told is not None else ():
                entry = entries.get(each.id)
                # A data plane speaks for its own sessions.
                if entry is not None and entry.plane is plane:
                    entry.figures = each

        await asyncio.gather(*(refresh(*each) for each in shares.items()))
