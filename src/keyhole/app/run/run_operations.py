"""The control operations of a run with a gateway of its own.

Implements `control`'s `Operations` for one session. It runs in the process that holds the sandbox,
never in the data plane: it answers while that is stuck (I12).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

from keyhole import __version__
from keyhole.app.run.source_follower import stored_secrets_in
from keyhole.app.session.ask_board import ASK_REPORT, AskBoard
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_events import refused_event, session_event
from keyhole.control import values
from keyhole.control.interface import NoSuchSession
from keyhole.control.operation_table import ASK_VIEW, MAX_OF_SESSION
from keyhole.control.values import PortDirection, SessionPhase
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.secret import SecretScheme
from keyhole.model.text import visible
from keyhole.policy.limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.run.own_gateway import OwnGateway
    from keyhole.control.event_feed import EventFeed
    from keyhole.control.peer import Peer, RefusedPeer
    from keyhole.control.prometheus import Family
    from keyhole.control.received_door import ReceivedDoor
    from keyhole.control.runs import RunRecord
    from keyhole.control.values import (
        AnswerRequest,
        EventQuery,
        GrantRequest,
        GrantView,
        OpenedSession,
        SessionPage,
        SessionQuery,
        SessionRequest,
    )

REFUSED_PEERS_PER_SECOND = 10
"""Events of refused peers; a loop of connections must not fill the log (I9)."""

MAX_COUNT = 2**53 - 1
"""The same as in `operation_table.py`: the data plane may report any number."""

ONE_RUN = "this is the endpoint of one run; `keyhole up` starts a gateway for many"


class RunOperations:
    """The one session of a run."""

    def __init__(self, gateway: OwnGateway, record: RunRecord) -> None:
        self._gateway = gateway
        self._record = record
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._refused_peers = TokenBucket.full("strangers", REFUSED_PEERS_PER_SECOND, loop.time())
        self._board = AskBoard(self._watchers_changed)
        gateway.follow_news(self._heard)

    def peer_refused(self, refused: RefusedPeer) -> None:
        """A peer was refused."""
        if self._refused_peers.take(self._loop.time()).allowed:
            who = {"uid": refused.uid, "pid": refused.pid}
            self._gateway.record("", refused_event("control-refused", why=refused.why, **who))

    async def status(self) -> values.Status:
        """The run as a gateway of one session."""
        gateway = self._gateway
        return values.Status(
            __version__, os.getpid(), self._record.opened, 1, 0, gateway.is_open and gateway.admits
        )

    async def health(self) -> values.Health:
        """Whether the sandbox can work now."""
        lacks = "" if self._gateway.is_open else "the door is closed"
        quiet = "the data plane does not respond" if self._gateway.is_quiet else ""
        checks = (
            values.HealthCheck("door", not lacks, lacks),
            values.HealthCheck("data-plane", not quiet, quiet),
        )
        return values.Health(all(each.on for each in checks), checks)

    async def metrics(self) -> Iterable[Family]:
        """No metrics: a run's counters are in its session."""
        return ()

    async def list_sessions(self, page: SessionQuery) -> SessionPage:
        """The run's one session."""
        found = () if self._record.session <= page.after else (await self._view(),)
        return values.SessionPage(found)

    async def show_session(self, session: str) -> values.SessionView:
        """The run's one session."""
        self._known(session)
        return await self._view()

    async def open_session(
        self, opening: SessionRequest, door: ReceivedDoor | None, peer: Peer
    ) -> OpenedSession:
        """Refused here."""
        _refuse()

    async def open_door(self, session: str, door: ReceivedDoor, peer: Peer) -> None:
        """Refused here."""
        _refuse()

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End it and its sandbox."""
        self._known(session)
        await self._gateway.stop(peer.pid)

    async def resume_session(self, session: str, peer: Peer) -> None:
        """Let it go on, if it is frozen."""
        self._known(session)
        try:
            await self._gateway.resume(peer.pid)
        except Refused as error:
            raise Refused(_line(str(error))) from None

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""
        self._known(session)
        await self._gateway.shut(EndReason.REVOKED, peer.pid)

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        """The kill switch."""
        return values.Revoked(int(await self._gateway.shut(EndReason.REVOKED, peer.pid)))

    async def grant(self, session: str, grant: GrantRequest, peer: Peer) -> GrantView:
        """Allow one more host."""
        self._known(session)
        try:
            said = await self._gateway.grant(grant, peer.pid)
        except Refused as error:
            raise Refused(_line(str(error))) from None
        return values.GrantView(str(grant.host), _count(said.get("expires")), grant.uses)

    async def list_asks(self) -> values.AskList:
        """The questions that can be answered."""
        return self._board.pending()

    async def answer_ask(
        self, session: str, ask: str, answer: AnswerRequest, peer: Peer
    ) -> values.AskView:
        """Answer a question."""
        self._known(session)
        try:
            said = await self._gateway.answer(ask, answer, peer.pid)
            view = ASK_VIEW.read(said.get("ask"), "ask")
        except Refused as error:
            raise Refused(_line(str(error))) from None
        return view

    def watch(self, query: EventQuery) -> EventFeed:
        """A stream of events from now on."""
        record = self._record
        sessions = [(record.session, record.label)] if self._gateway.is_open else []
        return self._board.watch(query, sessions)

    def close(self) -> None:
        """The run is over: say so to those who watch."""
        self._board.closed(self._record.session, self._record.label)
        self._board.feeds.close()

    def _watchers_changed(self) -> None:
        self._gateway.watch(answers=self._board.feeds.answered)

    def _heard(self, message: dict[str, Any]) -> None:
        """The data plane's reports, as far as they can be believed: of this session."""
        board, session = self._board, self._record.session
        try:
            match message:
                case {"asked": said}:
                    asked = ASK_REPORT.read(said, "asked")
                    if asked.ask.session == session:
                        board.heard(asked)
        except Unparsable:
            return

    async def reload(self, peer: Peer) -> values.Reloaded:
        """Read the policy again."""
        changed, why = await self._loop.run_in_executor(None, self._gateway.reload)
        self._gateway.record("", session_event("reload-asked", by=peer.pid))
        outcome = values.ReloadOutcome.KEPT if why else values.ReloadOutcome.UNCHANGED
        outcome = values.ReloadOutcome.CHANGED if changed else outcome
        policy = values.PolicyReload(self._record.policy, outcome, _line(why))
        return values.Reloaded((policy,))

    async def invite(self, opening: SessionRequest, peer: Peer) -> values.Invited:
        """Refused here: a run's gateway has one sandbox."""
        _refuse()

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read the secret again, if it is used."""
        reference = f"{SecretScheme.STORE}:{name}"
        await self._loop.run_in_executor(None, self._gateway.touch, reference)

    async def stop_gateway(self, peer: Peer) -> None:
        """Refused here: a run's gateway ends with its session."""
        _refuse()

    def _known(self, session: str) -> None:
        if session != self._record.session:
            raise NoSuchSession

    async def _view(self) -> values.SessionView:
        gateway, record = self._gateway, self._record
        said = await gateway.figures()
        state = SessionPhase.OPEN if gateway.is_served else SessionPhase.PREPARED
        if not gateway.is_open:
            state = SessionPhase.REVOKED
        elif gateway.is_quiet:
            state = SessionPhase.SILENT
        elif said.get("frozen") is True:
            state = SessionPhase.FROZEN
        provision = gateway.provision
        stored = gateway.stored | stored_secrets_in(provision)
        connections, requests, denied, up, down, spent, unpriced = _counts(said.get("figures"))
        return values.SessionView(
            id=record.session,
            state=state,
            label=record.label,
            policy=record.policy,
            pid=record.main.pid,
            opened=record.opened,
            expires=int(time.time() + gateway.expires_in),
            connections=connections,
            requests=requests,
            denied=denied,
            up=up,
            down=down,
            stored=tuple(sorted(stored)[:MAX_OF_SESSION]),
            secrets=tuple(sorted(provision.secrets)[:MAX_OF_SESSION]),
            grants=tuple(
                values.GrantView(host, expires, uses)
                for host, expires, uses in _rows(said.get("grants"), 259)
            ),
            budgets=tuple(
                values.BudgetView(name, used, limit)
                for name, used, limit in _rows(said.get("budgets"), 128)
            ),
            ports=self._ports() if gateway.is_open else (),
            spent=spent,
            unpriced=unpriced,
        )

    def _ports(self) -> tuple[values.PortView, ...]:
        used = self._gateway.provision.policy.sandbox.host_ports
        return (
            *(
                values.PortView(PortDirection.IN, each.outer, each.inner)
                for each in self._gateway.ports
            ),
            *(values.PortView(PortDirection.OUT, port, port) for port in used),
        )


# ── what the data plane says, as far as it can be believed ────────────────────────────────────────


def _counts(said: object) -> tuple[int, int, int, int, int, int, int]:
    numbers = [_count(each) for each in said] if isinstance(said, list) else []
    one, two, three, four, five, six, seven = (*numbers, *[0] * 7)[:7]
    return one, two, three, four, five, six, seven


def _rows(said: object, longest: int) -> list[tuple[str, int, int]]:
    rows = said if isinstance(said, list) else []
    found = []
    for row in rows[:MAX_OF_SESSION]:
        match row:
            case [str(name), int(one), int(two)]:
                plain = "".join(c for c in name if "!" <= c <= "~")[:longest]
                if plain:
                    found.append((plain, _count(one), _count(two)))
    return found


def _count(said: object) -> int:
    return min(max(said, 0), MAX_COUNT) if isinstance(said, int) else 0


def _line(words: str) -> str:
    return visible(" ".join(words.split()))[:1000]


def _refuse() -> NoReturn:
    raise Refused(ONE_RUN)
