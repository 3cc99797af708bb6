"""The sessions of a data plane, and the calls of the control process on them.

One method for each call of `plane_messages.py`. A session is opened, gets its door, and is closed
here; the control process decides when it ends, and what becomes of its sandbox. Only `LiveSession`
holds a policy or a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keyhole.app.daemon.keeper_client import GONE
from keyhole.app.daemon.plane_messages import (
    ANSWERS,
    FIGURES,
    DataPlaneHealth,
    MetricsReport,
    SessionCounters,
    as_metric,
)
from keyhole.app.daemon.reachability import ReachabilityCheck
from keyhole.app.session.control_views import budget_views, grant_view
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.live_session import LiveSession
from keyhole.app.session.prepared_session import prepare_session
from keyhole.app.session.session_events import noted_event, session_event
from keyhole.control import values
from keyhole.control.interface import NoSuchSession
from keyhole.control.operation_table import (
    ASK_VIEW,
    GRANT,
    GRANT_VIEW,
    MAX_OF_SESSION,
    OPENING,
    RELOADED,
)
from keyhole.control.values import SessionPhase
from keyhole.gateway.asking import AskAnswer
from keyhole.gateway.door.door import Door
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.secret import SecretScheme
from keyhole.policy.asks import Answer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.app.daemon.common_limits import CommonLimits
    from keyhole.app.daemon.keeper_client import KeeperClient
    from keyhole.app.daemon.metrics import Metrics
    from keyhole.app.session.live_session import GatewayContext
    from keyhole.app.session.prepared_session import PreparedSession
    from keyhole.control.values import SessionRequest

SWEEP_SECONDS = 2.0
"""Seconds from a session's end to a garbage collection: its objects, with keys and secrets, are in
reference cycles. Long enough that one collection serves many ends."""

SWEEP_SESSIONS = 64
"""With more sessions, a collection would hold the loop for more than some 10 ms. The collector then
runs by itself often enough: when there are a quarter more objects than there were."""

TURN_SECONDS = 0.002
"""Seconds that an answer may be built before the loop serves doors again. A turn of a busy loop
takes longer than writing one session: with a turn for each, a page would take half a second."""

OTHER_SURROUNDINGS = (
    "this shell's package managers say something else than the gateway's: start it here again"
    " (`keyhole down`, `keyhole up`), or `keyhole run --own-gateway`"
)
NOT_ADMITTING = "the audit log cannot be written, so nothing is admitted until it can be"
DOOR_NOT_OPEN = "the session's door is not open"
REVOKED_EARLY = "all sessions were revoked while this one was opened"
CHANGED = "the policy was changed after it was read; run again"

Words = dict[str, Any]
"""The members of a call."""


class ServedSession:
    """One session, as the data plane knows it."""

    def __init__(self, prepared: PreparedSession, opening: SessionRequest) -> None:
        self.prepared = prepared
        self.policy = opening.policy
        self.live: LiveSession | None = None
        self.stored: set[str] = set()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.prepared.id

    @property
    def state(self) -> SessionPhase:
        """The session's state."""
        if self.live is None:
            return SessionPhase.PREPARED
        return SessionPhase.REVOKED if self.live.ending else SessionPhase.OPEN

    def figures(self) -> SessionCounters:
        """The session's counters, for a list."""
        now, live = time.time(), self.live
        provision = live.provision if live else self.prepared.provision
        named = {s.secret for s in provision.policy.services if s.secret}
        self.stored |= {ref.locator for ref in named if ref.source is SecretScheme.STORE}
        figures = live.handle.figures if live else None
        return SessionCounters(
            id=self.id,
            expires=int(now + live.expires_in) if live else None,
            connections=figures.connections if figures else 0,
            requests=figures.requests if figures else 0,
            denied=figures.denied if figures else 0,
            up=figures.up if figures else 0,
            down=figures.down if figures else 0,
            stored=tuple(sorted(self.stored)[:MAX_OF_SESSION]),
            secrets=tuple(sorted(provision.secrets)[:MAX_OF_SESSION]),
            grants=tuple(map(grant_view, live.handle.grants)) if live and not live.ending else (),
            budgets=budget_views(live.handle.budgets) if live else (),
            spent=figures.spent if figures else 0,
            unpriced=figures.unpriced if figures else 0,
            frozen=live is not None and live.frozen,
        )


class ServedSessions:
    """All sessions of one data plane. Results of calls are encoded by their shapes."""

    def __init__(
        self,
        context: GatewayContext,
        keeper: KeeperClient,
        metrics: Metrics,
        limits: CommonLimits,
        closed: Callable[[str, EndReason], None],
        say: Callable[[str, str, int], None],
    ) -> None:
        """`closed` and `say` inform the control process."""
        self._context = context
        self._keeper = keeper
        self._metrics = metrics
        self._limits = limits
        self._tell_closed = closed
        self._say = say
        self._sessions: dict[str, ServedSession] = {}
        self._opening: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        """Sessions that are being opened, with changes that the keeper reported meanwhile."""
        self._changes: deque[tuple[str, str, tuple[Any, ...]]] = deque()
        self._settled = asyncio.Event()
        self._settled.set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._reachable = ReachabilityCheck(context)
        self._watched = False
        """Whether a person is there to answer."""

    # ── looked at ─────────────────────────────────────────────────────────────────────────────────

    async def facts(self, _: Words) -> object:
        """The data plane as a whole."""
        live = [each.live for each in self._sessions.values() if each.live]
        return {
            "connections": sum(each.handle.figures.connections for each in live),
            "admitting": self._context.log.admitting,
            "keeper": self._keeper.alive,
            "frozen": sum(each.frozen for each in live),
        }

    async def list(self, words: Words) -> object:
        """The sessions with these ids that are here. This takes several turns of the loop."""
        found: list[object] = []
        begun = time.monotonic()
        for session in words["sessions"]:
            served = self._sessions.get(session)
            if served is not None:
                found.append(FIGURES.write(served.figures(), "list"))
            if time.monotonic() - begun > TURN_SECONDS:
                await asyncio.sleep(0)
                begun = time.monotonic()
        return {"sessions": found}

    async def share(self, words: Words) -> object:
        """Take over shares of the limits of all workers, and report their use."""
        return _written("share", self._limits.share(words["shares"]))

    async def health(self, _: Words) -> object:
        """The data plane's part of the gateway's health."""
        served = [s.live for s in self._sessions.values() if s.live and not s.live.ending]
        checks = [
            values.HealthCheck(
                "audit-log", *_unless("" if self._context.log.admitting else NOT_ADMITTING)
            ),
            values.HealthCheck("keeper", *_unless("" if self._keeper.alive else GONE)),
        ]
        checks += await self._reachable.look(served)
        return _written("health", DataPlaneHealth(tuple(checks)))

    async def metrics(self, _: Words) -> object:
        """The gateway's counters."""
        families = self._metrics.families(self._sessions.values())
        return _written("metrics", MetricsReport(tuple(map(as_metric, families))))

    # ── opened ────────────────────────────────────────────────────────────────────────────────────

    async def open(self, words: Words) -> object:
        """Have the session's policy and secrets read, and make its CA."""
        session: str = words["session"]
        opening = OPENING.read(words["opening"], "open")
        if not self._context.log.admitting:
            raise Refused(NOT_ADMITTING)
        early: list[tuple[str, tuple[Any, ...]]] = []
        self._opening[session] = early
        try:
            provision = await self._keeper.open(
                session, opening.policy, opening.search_path, opening.writable
            )
            if session not in self._opening:
                raise Refused(REVOKED_EARLY)
            # The policy in force is the one that a person saw and accepted (I11).
            if provision.digest != opening.trusted:
                raise Refused(CHANGED)
            if provision.granted != opening.granted:
                raise Refused(OTHER_SURROUNDINGS)
            if opening.all_secrets and provision.closed:
                raise Refused("; ".join(provision.notes))
            stand_ins = {each.service: each.texts for each in opening.stand_ins}
            prepared = prepare_session(
                session, provision, stand_ins, opening.quiet, opening.authority
            )
        except BaseException as error:
            self._keeper.end(session)
            if isinstance(error, (Refused, Unparsable)):
                raise Refused(_line(str(error))) from None
            raise
        finally:
            self._opening.pop(session, None)
        self._sessions[session] = served = ServedSession(prepared, opening)
        for what, heard in early:
            self.changed(what, session, heard)
        ca = prepared.trust.authority.pem.decode("ascii") if prepared.trust else ""
        return {
            "ca": ca,
            "notes": [_line(each) for each in provision.notes],
            "figures": FIGURES.write(served.figures(), "open"),
        }

    async def door(self, words: Words) -> object:
        """Open the session's door from the sockets beside the call. It is served once the call is
        answered."""
        sockets: list[socket.socket] = words["sockets"]
        served = self._sessions.get(words["session"])
        if served is None or served.live is not None or len(sockets) != len(words["door"]):
            for each in sockets:
                each.close()
            raise NoSuchSession
        named = dict(zip(words["door"], sockets, strict=True))
        door = Door(named["tcp"], named["udp"], named.get("tcp6"))
        context, session = self._context, served.id
        rate = served.prepared.provision.policy.limits.audit_per_second
        context.log.begin(session, rate)
        started = session_event("started", command=words["label"], pid=words["pid"])
        context.log.record(session, started)
        try:
            served.live = LiveSession(
                context,
                served.prepared,
                door,
                lambda text: self._say(session, text, 0),
                lambda why: self._closed(served, why),
            )
        except (Refused, OSError) as error:
            door.close()
            self._end(served)
            words_of = (
                f"it cannot be written down: {error.strerror}" if isinstance(error, OSError) else ""
            )
            raise Refused(_line(words_of or str(error))) from None
        served.live.watch(answers=self._watched)
        return None

    def _closed(self, served: ServedSession, why: EndReason) -> None:
        """The session's door was closed: drop its secrets, and inform the control process."""
        self._keeper.end(served.id)
        self._tell_closed(served.id, why)

    async def grant(self, words: Words) -> object:
        """Allow one more host."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None or served.live.ending:
            raise Refused(DOOR_NOT_OPEN)
        grant = GRANT.read(words["grant"], "grant")
        try:
            given = served.live.grant(grant.host, grant.seconds, grant.uses, words["by"])
        except Refused as error:
            raise Refused(_line(str(error))) from None
        return GRANT_VIEW.write(grant_view(given), "grant")

    async def answer(self, words: Words) -> object:
        """Answer a question."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None or served.live.ending:
            raise Refused(DOOR_NOT_OPEN)
        given = AskAnswer(
            words["ask"], Answer(words["answer"]), words["seconds"], words["by"], words["via"]
        )
        try:
            answered = served.live.answer(given)
        except Refused as error:
            raise Refused(_line(str(error))) from None
        return ASK_VIEW.write(answered, "answer")

    async def watched(self, words: Words) -> object:
        """A person is there to answer, or no longer."""
        self._watched = bool(words["answers"])
        for served in list(self._sessions.values()):
            if served.live is not None:
                served.live.watch(answers=self._watched)
        return None

    async def resume(self, words: Words) -> object:
        """Let a frozen session go on."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None:
            raise Refused(DOOR_NOT_OPEN)
        served.live.resume(words["by"])
        return None

    # ── closed ────────────────────────────────────────────────────────────────────────────────────

    async def close(self, words: Words) -> object:
        """Close doors for good; sessions that are being opened are refused."""
        why = EndReason(words["why"])
        for session in words["sessions"]:
            self._opening.pop(session, None)
            served = self._sessions.get(session)
            if served is None:
                continue
            if served.live is None:
                self._end(served)
            else:
                served.live.close(why, by=words["by"])
        return None

    async def finish(self, words: Words) -> object:
        """A sandbox has ended with this code: return the last digest when its last line is
        written."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None:
            raise NoSuchSession
        served.live.close(EndReason.DONE)
        for line, times in served.live.handle.repeated_refusals():
            self._say(served.id, line, times)
        served.live.record(session_event("ended", code=words["code"]))
        log = self._context.log
        log.finish(served.id)
        await self._context.loop.run_in_executor(None, log.flush)
        self._end(served)
        return {"head": log.head()}

    async def drop(self, words: Words) -> object:
        """Release a session; `why` is recorded if there is a reason."""
        self._opening.pop(words["session"], None)
        served = self._sessions.get(words["session"])
        if served is not None:
            if words["why"] and served.live is not None:
                served.live.record(session_event("ended", why=words["why"]))
            self._end(served)
        return None

    def _end(self, served: ServedSession) -> None:
        if self._sessions.pop(served.id, None) is None:
            return
        if served.live is not None:
            served.live.close(EndReason.DONE)
        self._keeper.end(served.id)
        self._context.log.finish(served.id)
        if self._sweeper is None and len(self._sessions) <= SWEEP_SESSIONS:
            self._sweeper = self._context.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        gc.collect()

    # ── written down ──────────────────────────────────────────────────────────────────────────────

    async def note(self, words: Words) -> object:
        """Record events that the holder of a sandbox reports."""
        served = self._sessions.get(words["session"])
        if served is not None and served.live is not None:
            served.live.record(noted_event(words["what"], **words["details"]))
        return None

    # ── changed ───────────────────────────────────────────────────────────────────────────────────

    async def reload(self, _: Words) -> object:
        """Read the policies again, and answer when the changes are in force."""
        try:
            outcomes = await self._keeper.reload()
        except Refused as error:
            raise Refused(_line(str(error))) from None
        await self._settled.wait()
        found: dict[str, values.PolicyReload] = {}
        for session, (changed, why) in outcomes.items():
            served = self._sessions.get(session)
            if served is None:
                continue
            outcome = values.ReloadOutcome.KEPT if why else values.ReloadOutcome.UNCHANGED
            outcome = values.ReloadOutcome.CHANGED if changed else outcome
            known = found.get(served.policy)
            if known is None or outcome is not values.ReloadOutcome.UNCHANGED:
                found[served.policy] = values.PolicyReload(served.policy, outcome, _line(why))
        return RELOADED.write(values.Reloaded(tuple(found.values())), "reload")

    async def secret_changed(self, words: Words) -> object:
        """Read the secret again where it is used."""
        with contextlib.suppress(Refused):
            await self._keeper.touch(f"{SecretScheme.STORE}:{words['name']}")
        return None

    def changed(self, what: str, session: str, heard: tuple[Any, ...]) -> None:
        """The keeper reports a change of a session's source.

        Changes are applied one at a time: a secret that hundreds of sessions share must not delay
        their requests.
        """
        self._changes.append((what, session, heard))
        if self._settled.is_set():
            self._settled.clear()
            self._context.loop.call_later(0, self._change_next)

    def _change_next(self) -> None:
        try:
            self._change(*self._changes.popleft())
        finally:
            if self._changes:
                self._context.loop.call_later(0, self._change_next)
            else:
                self._settled.set()

    def _change(self, what: str, session: str, heard: tuple[Any, ...]) -> None:
        served = self._sessions.get(session)
        if served is None:
            if session in self._opening:
                self._opening[session].append((what, heard))
            return
        if served.live is None:
            # It has no door yet; it will open with the new values.
            if what == "reloaded":
                served.prepared = served.prepared.with_provision(heard[0])
            elif what == "rotated":
                served.prepared = served.prepared.with_secret(*heard)
            elif what == "spending":
                provision = replace(served.prepared.provision, spending=heard[0])
                served.prepared = served.prepared.with_provision(provision)
            return
        match what:
            case "rotated":
                served.live.rotate(*heard)
            case "reloaded":
                served.figures()  # secrets that it had from the store are remembered
                served.live.reload(*heard)
            case "kept":
                served.live.keep(*heard)
            case "spending":
                served.live.know_spending(*heard)

    def shut(self) -> None:
        """Close every door that is still open, at the end."""
        for served in list(self._sessions.values()):
            self._end(served)


def _written(name: str, value: object) -> object:
    record = ANSWERS[name]
    return None if record is None else record.write(value, name)


def _unless(lacks: str) -> tuple[bool, str]:
    return not lacks, _line(lacks)


def _line(words: str) -> str:
    """The text as one line of an answer."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:1000]
