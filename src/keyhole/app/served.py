"""The sessions of a data plane, and what is done for the control process with them.

One method for each call of `calls.py`. A session is opened, gets its door, and is closed here; when
it ends, and what becomes of its sandbox, is the control process's business. No policy and no secret
is kept beyond what `LiveSession` holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from keyhole.app.calls import ANSWERS, FIGURES, Checked, Figures, Metered, as_metric
from keyhole.app.ending import Ending
from keyhole.app.kept import GONE
from keyhole.app.live import LiveSession
from keyhole.app.reachable import Reachable
from keyhole.app.session import session_event
from keyhole.app.tenant import make_tenant
from keyhole.app.views import budgets, shown
from keyhole.control import interface, values
from keyhole.control.interface import NoSuch
from keyhole.control.table import GRANT, GRANT_VIEW, MAX_OF_SESSION, OPENING, RELOADED
from keyhole.control.values import State
from keyhole.gateway.door import Door
from keyhole.gateway.gateway import GatewayFull, SameNamespace
from keyhole.model.secret import Source
from keyhole.policy.grants import Ungrantable
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.app.kept import Kept
    from keyhole.app.live import House
    from keyhole.app.metrics import Metrics
    from keyhole.app.tenant import Tenant
    from keyhole.control.values import Grant, Opening

SWEEP_SECONDS = 2.0
"""After a session's end: what it had, keys and secrets among it, hangs together in cycles, which
would stay until the collector comes by itself. So long that it comes once for many that end."""

SWEEP_SESSIONS = 64
"""Beyond so many, a sweep would hold the loop for more than some 10 ms, and the collector comes by
itself often enough: when there is a quarter more than there was."""

TURN_SECONDS = 0.002
"""How long an answer may be put together before the loop looks at doors again. A turn of a busy
loop takes longer than a session takes to be written: a turn for each would be half a second a
page."""

OTHER_SURROUNDINGS = (
    "this shell's package managers say something else than the gateway's: start it here anew"
    " (`keyhole down`, `keyhole up`), or `keyhole run --own-gateway`"
)
NOT_ADMITTING = "the audit log cannot be written, so nothing is admitted until it can be"
REVOKED_EARLY = "all sessions were revoked while this one was opened"
CHANGED = "the policy was changed after it was read; run again"

Words = dict[str, Any]
"""What came with a call."""


class ServedSession:
    """One session as the data plane knows it."""

    def __init__(self, tenant: Tenant, opening: Opening) -> None:
        self.tenant = tenant
        self.policy = opening.policy
        self.live: LiveSession | None = None
        self.stored: set[str] = set()

    @property
    def id(self) -> str:
        """Its name everywhere."""
        return self.tenant.id

    @property
    def state(self) -> State:
        """Where it stands."""
        if self.live is None:
            return State.PREPARED
        return State.REVOKED if self.live.ending else State.OPEN

    def figures(self) -> Figures:
        """For a list."""
        now, live = time.time(), self.live
        provision = live.provision if live else self.tenant.provision
        named = {s.secret for s in provision.policy.services if s.secret}
        self.stored |= {ref.locator for ref in named if ref.source is Source.STORE}
        figures = live.handle.figures if live else None
        return Figures(
            id=self.id,
            expires=int(now + live.expires_in) if live else None,
            connections=figures.connections if figures else 0,
            requests=figures.requests if figures else 0,
            denied=figures.denied if figures else 0,
            up=figures.up if figures else 0,
            down=figures.down if figures else 0,
            stored=tuple(sorted(self.stored)[:MAX_OF_SESSION]),
            secrets=tuple(sorted(provision.secrets)[:MAX_OF_SESSION]),
            grants=tuple(map(shown, live.handle.grants)) if live and not live.ending else (),
            budgets=budgets(live.handle.budgets) if live else (),
        )


class ServedSessions:
    """All sessions of one data plane. What a call answers is what its shape wrote."""

    def __init__(
        self,
        house: House,
        kept: Kept,
        metrics: Metrics,
        closed: Callable[[str, Ending], None],
        say: Callable[[str, str], None],
    ) -> None:
        """`closed` and `say` tell the control process."""
        self._house = house
        self._kept = kept
        self._metrics = metrics
        self._tell_closed = closed
        self._say = say
        self._sessions: dict[str, ServedSession] = {}
        self._opening: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        """Sessions that are being opened, and what the keeper saw change under them meanwhile."""
        self._changes: deque[tuple[str, str, tuple[Any, ...]]] = deque()
        self._settled = asyncio.Event()
        self._settled.set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._reachable = Reachable(house)

    # ── looked at ─────────────────────────────────────────────────────────────────────────────────

    async def facts(self, _: Words) -> object:
        """The data plane as a whole."""
        live = [each.live for each in self._sessions.values() if each.live]
        return {
            "connections": sum(each.handle.figures.connections for each in live),
            "admitting": self._house.log.admitting,
            "keeper": self._kept.alive,
        }

    async def list(self, words: Words) -> object:
        """Those of these ids that are here. It takes several turns of the loop."""
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

    async def health(self, _: Words) -> object:
        """What sandboxes need."""
        served = [s.live for s in self._sessions.values() if s.live and not s.live.ending]
        checks = [
            values.Check("audit-log", *_unless("" if self._house.log.admitting else NOT_ADMITTING)),
            values.Check("keeper", *_unless("" if self._kept.alive else GONE)),
        ]
        checks += await self._reachable.look(served)
        return _written("health", Checked(tuple(checks)))

    async def metrics(self, _: Words) -> object:
        """Its counters."""
        families = self._metrics.families(self._sessions.values())
        return _written("metrics", Metered(tuple(map(as_metric, families))))

    # ── opened ────────────────────────────────────────────────────────────────────────────────────

    async def open(self, words: Words) -> object:
        """Have it provided for, and give it a CA."""
        session: str = words["session"]
        opening: Opening = OPENING.read(words["opening"], "open")  # type: ignore[assignment]
        if not self._house.log.admitting:
            raise interface.Refused(NOT_ADMITTING)
        early: list[tuple[str, tuple[Any, ...]]] = []
        self._opening[session] = early
        try:
            provision = await self._kept.open(
                session, opening.policy, opening.search_path, opening.writable
            )
            if session not in self._opening:
                raise Refused(REVOKED_EARLY)
            # What a person saw and accepted is what holds (I11).
            if provision.digest != opening.trusted:
                raise Refused(CHANGED)
            if provision.granted != opening.granted:
                raise Refused(OTHER_SURROUNDINGS)
            stand_ins = {each.service: each.texts for each in opening.stand_ins}
            tenant = make_tenant(session, provision, stand_ins)
        except BaseException as error:
            self._kept.end(session)
            if isinstance(error, Refused):
                raise interface.Refused(_line(str(error))) from None
            raise
        finally:
            self._opening.pop(session, None)
        self._sessions[session] = served = ServedSession(tenant, opening)
        for what, heard in early:
            self.changed(what, session, heard)
        ca = tenant.trust.authority.pem.decode("ascii") if tenant.trust else ""
        return {
            "ca": ca,
            "notes": [_line(each) for each in provision.notes],
            "figures": FIGURES.write(served.figures(), "open"),
        }

    async def door(self, words: Words) -> object:
        """Its door, whose sockets came beside the call: it is served when this was answered."""
        sockets: list[socket.socket] = words["sockets"]
        served = self._sessions.get(words["session"])
        if served is None or served.live is not None or len(sockets) != len(words["door"]):
            for each in sockets:
                each.close()
            raise NoSuch
        named = dict(zip(words["door"], sockets, strict=True))
        door = Door(named["tcp"], named["udp"], named.get("tcp6"))
        house, session = self._house, served.id
        rate = served.tenant.provision.policy.limits.audit_per_second
        house.log.begin(session, rate)
        started = session_event("started", command=words["label"], pid=words["pid"])
        house.log.record(session, started)
        try:
            served.live = LiveSession(
                house,
                served.tenant,
                door,
                lambda text: self._say(session, text),
                lambda why: self._closed(served, why),
            )
        except (Refused, SameNamespace, GatewayFull, OSError) as error:
            door.close()
            self._end(served)
            words_of = (
                f"it cannot be written down: {error.strerror}" if isinstance(error, OSError) else ""
            )
            raise interface.Refused(_line(words_of or str(error))) from None
        return None

    def _closed(self, served: ServedSession, why: Ending) -> None:
        """Its door was closed: no secret of it is kept, and the control process hears of it."""
        self._kept.end(served.id)
        self._tell_closed(served.id, why)

    async def grant(self, words: Words) -> object:
        """Allow one host more."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None or served.live.ending:
            raise interface.Refused("the session's door is not open")
        grant: Grant = GRANT.read(words["grant"], "grant")  # type: ignore[assignment]
        try:
            given = served.live.grant(grant.host, grant.seconds, grant.uses, words["by"])
        except Ungrantable as error:
            raise interface.Refused(_line(str(error))) from None
        return GRANT_VIEW.write(shown(given), "grant")

    # ── closed ────────────────────────────────────────────────────────────────────────────────────

    async def close(self, words: Words) -> object:
        """Close doors for good; those that are being opened do not come any more."""
        why = Ending(words["why"])
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
        """A sandbox has ended with this code: the last digest, when its last line is written."""
        served = self._sessions.get(words["session"])
        if served is None or served.live is None:
            raise NoSuch
        served.live.close(Ending.DONE)
        served.live.record(session_event("ended", code=words["code"]))
        log = self._house.log
        log.finish(served.id)
        await self._house.loop.run_in_executor(None, log.flush)
        self._end(served)
        return {"head": log.head()}

    async def drop(self, words: Words) -> object:
        """Let go of a session; `why` is written down where there is a reason."""
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
            served.live.close(Ending.DONE)
        self._kept.end(served.id)
        self._house.log.finish(served.id)
        if self._sweeper is None and len(self._sessions) <= SWEEP_SESSIONS:
            self._sweeper = self._house.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        gc.collect()

    # ── written down ──────────────────────────────────────────────────────────────────────────────

    async def note(self, words: Words) -> object:
        """What whoever holds a sandbox has seen of it."""
        served = self._sessions.get(words["session"])
        if served is not None and served.live is not None:
            served.live.record(session_event(words["what"], **words["details"]))
        return None

    # ── changed ───────────────────────────────────────────────────────────────────────────────────

    async def reload(self, words: Words) -> object:
        """Read the policies again, and answer when what changed holds."""
        try:
            outcomes = await self._kept.reload()
        except Refused as error:
            raise interface.Refused(_line(str(error))) from None
        await self._settled.wait()
        self._house.log.record("", session_event("reload-asked", by=words["by"]))
        found: dict[str, values.PolicyReload] = {}
        for session, (changed, why) in outcomes.items():
            served = self._sessions.get(session)
            if served is None:
                continue
            outcome = values.Outcome.KEPT if why else values.Outcome.UNCHANGED
            outcome = values.Outcome.CHANGED if changed else outcome
            known = found.get(served.policy)
            if known is None or outcome is not values.Outcome.UNCHANGED:
                found[served.policy] = values.PolicyReload(served.policy, outcome, _line(why))
        return RELOADED.write(values.Reloaded(tuple(found.values())), "reload")

    async def secret_changed(self, words: Words) -> object:
        """Read it again where it is used."""
        name = words["name"]
        with contextlib.suppress(Refused):
            await self._kept.touch(f"{Source.STORE}:{name}")
        event = session_event("secret-changed-said", secret=name, by=words["by"])
        self._house.log.record("", event)
        return None

    def changed(self, what: str, session: str, heard: tuple[Any, ...]) -> None:
        """The keeper saw something change under a session.

        One at a time: a secret that hundreds of sessions have must not keep their requests waiting.
        """
        self._changes.append((what, session, heard))
        if self._settled.is_set():
            self._settled.clear()
            self._house.loop.call_later(0, self._change_next)

    def _change_next(self) -> None:
        try:
            self._change(*self._changes.popleft())
        finally:
            if self._changes:
                self._house.loop.call_later(0, self._change_next)
            else:
                self._settled.set()

    def _change(self, what: str, session: str, heard: tuple[Any, ...]) -> None:
        served = self._sessions.get(session)
        if served is None:
            if session in self._opening:
                self._opening[session].append((what, heard))
            return
        if served.live is None:
            # It has no door yet; what is new is there when it opens.
            if what == "reloaded":
                served.tenant = served.tenant.with_provision(heard[0])
            elif what == "rotated":
                served.tenant = served.tenant.with_secret(*heard)
            return
        match what:
            case "rotated":
                served.live.rotate(*heard)
            case "reloaded":
                served.figures()  # what it had in the store is remembered
                served.live.reload(*heard)
            case "kept":
                served.live.keep(*heard)

    def shut(self) -> None:
        """The end: every door that is still open is closed."""
        for served in list(self._sessions.values()):
            self._end(served)


def _written(name: str, value: object) -> object:
    record = ANSWERS[name]
    return None if record is None else record.write(value, name)


def _unless(lacks: str) -> tuple[bool, str]:
    return not lacks, _line(lacks)


def _line(words: str) -> str:
    """Fit for one line of an answer."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:1000]
