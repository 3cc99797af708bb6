"""What a long-lived gateway does for those who ask over its control socket.

Implements `control`'s `Operations`. A session is a process's: it ends with that process, whose end
the kernel tells (pidfd), and with the line that came with its door. It keeps no policy and no
secret beyond what `LiveSession` holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from keyhole import __version__
from keyhole.app.ending import Ending
from keyhole.app.entry import Entry, shown
from keyhole.app.kept import GONE
from keyhole.app.line import Line
from keyhole.app.live import House, LiveSession
from keyhole.app.reachable import Reachable
from keyhole.app.session import new_session, refused_event, session_event
from keyhole.app.tenant import make_tenant
from keyhole.control import interface, values
from keyhole.control.interface import NoSuch
from keyhole.control.values import State
from keyhole.gateway.door import Door
from keyhole.gateway.gateway import GatewayFull, SameNamespace
from keyhole.model.secret import Source
from keyhole.policy.grants import Ungrantable
from keyhole.policy.limit import Bucket
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.app.doorway import Doorway
    from keyhole.app.kept import Kept
    from keyhole.app.leftovers import Register
    from keyhole.app.metrics import Metrics
    from keyhole.control.handed import HandedDoor
    from keyhole.control.peer import Peer, Stranger
    from keyhole.control.prometheus import Family
    from keyhole.control.values import Grant, GrantView, Opened, Opening, Paging, SessionPage

PREPARED_SECONDS = 60.0
"""How long a session may wait for its door: twice what a sandbox's set-up may take."""

STOP_SECONDS = 12.0
"""How long a sandbox that is stopped may take to end, before whoever holds it is killed."""

SWEEP_SECONDS = 2.0
"""After a session's end: what it had, keys and secrets among it, hangs together in cycles, which
would stay until the collector comes by itself. So long that it comes once for many that end."""

SWEEP_SESSIONS = 64
"""Beyond so many, a sweep would hold the loop for more than some 10 ms, and the collector comes by
itself often enough: when there is a quarter more than there was."""

STRANGERS_PER_SECOND = 10
"""Events of those who were turned away; a loop of connections must not fill the log (I9)."""

OTHER_SURROUNDINGS = (
    "this shell's package managers say something else than the gateway's: start it here anew"
    " (`keyhole down`, `keyhole up`), or `keyhole run --own-gateway`"
)
_NOTES = {
    "cover-lost": ("path",),
    "foreign-container": ("container", "name"),
    "interface-added": ("interface",),
    "holder-ended": (),
    "engine-silent": (),
    "host-may-execute": ("path", "change", "why"),
}
"""What whoever holds a sandbox may have written down, and which words of it; all else is not."""

NOT_ADMITTING = "the audit log cannot be written, so nothing is admitted until it can be"
ENDING = "the gateway is about to end"
REVOKED_EARLY = "all sessions were revoked while this one was opened"
CHANGED = "the policy was changed after it was read; run again"


class GatewayOperations:
    """All sessions of one gateway."""

    def __init__(
        self,
        house: House,
        kept: Kept,
        register: Register,
        metrics: Metrics,
        stop: Callable[[], None],
        most: int,
    ) -> None:
        """`stop` begins the gateway's end; `most` sessions are held at a time."""
        self._house = house
        self._kept = kept
        self._register = register
        self._metrics = metrics
        self._stop = stop
        self._most = most
        self._entries: dict[str, Entry] = {}
        self._opening: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        """Sessions that are being opened, and what the keeper saw change under them meanwhile."""
        self._ending = False
        self._since = int(time.time())
        self._changes: deque[tuple[str, str, tuple[Any, ...]]] = deque()
        self._settled = asyncio.Event()
        self._settled.set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._reachable = Reachable(house)
        self._strangers = Bucket.full("strangers", STRANGERS_PER_SECOND, house.loop.time())
        self.protections: tuple[values.Protection, ...] = ()
        self.doorway: Doorway | None = None
        """Where a door is expected that others make."""

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def stranger(self, stranger: Stranger) -> None:
        """Somebody was turned away."""
        if self._strangers.take(self._house.loop.time()).allowed:
            who = {"uid": stranger.uid, "pid": stranger.pid}
            event = refused_event("control-refused", why=stranger.why, **who)
            self._house.log.record("", event)

    async def status(self) -> values.Status:
        """The gateway as a whole."""
        live = [entry.live for entry in self._entries.values() if entry.live]
        keeper = values.Protection("keeper", self._kept.alive, "" if self._kept.alive else "ended")
        return values.Status(
            __version__,
            os.getpid(),
            self._since,
            len(self._entries),
            sum(each.handle.figures.connections for each in live),
            self._house.log.admitting,
            (*self.protections, keeper),
        )

    async def health(self) -> values.Health:
        """Whether sandboxes can work now."""
        served = [each for each in self._entries.values() if each.live and not each.live.ending]
        checks = [
            values.Check("audit-log", *_unless("" if self._house.log.admitting else NOT_ADMITTING)),
            values.Check("keeper", *_unless("" if self._kept.alive else GONE)),
        ]
        if self.doorway is not None:
            lacks = self.doorway.lacks or ("" if served else "it was closed")
            checks.append(values.Check("door", *_unless(lacks)))
        lives = [each.live for each in served if each.live]
        checks += await self._reachable.look(lives)
        return values.Health(all(each.on for each in checks), tuple(checks))

    async def metrics(self) -> Iterable[Family]:
        """Its counters."""
        return self._metrics.families(self._entries.values())

    async def list_sessions(self, page: Paging) -> SessionPage:
        """Sessions by id."""
        found = sorted(each for each in self._entries if each > page.after)
        shown = found[: page.limit]
        more = shown[-1] if len(found) > len(shown) else None
        return values.SessionPage(tuple(self._entries[each].view() for each in shown), more)

    async def show_session(self, session: str) -> values.SessionView:
        """One of them."""
        return self._known(session).view()

    async def open_session(self, opening: Opening, door: HandedDoor | None, peer: Peer) -> Opened:
        """Have it provided for, and give it a CA."""
        if self._ending:
            raise interface.Refused(ENDING)
        if len(self._entries) + len(self._opening) >= self._most:
            raise interface.Refused(f"the gateway has {self._most} sessions, which is its most")
        if not self._house.log.admitting:
            raise interface.Refused(NOT_ADMITTING)
        session = new_session()
        early: list[tuple[str, tuple[Any, ...]]] = []
        self._opening[session] = early
        try:
            provision = await self._kept.open(
                session, opening.policy, opening.search_path, opening.writable
            )
            if self._ending or session not in self._opening:
                raise Refused(ENDING if self._ending else REVOKED_EARLY)
            # What a person saw and accepted is what holds (I11).
            if provision.digest != opening.trusted:
                raise Refused(CHANGED)
            if provision.granted != opening.granted:
                raise Refused(OTHER_SURROUNDINGS)
            stand_ins = {each.service: each.texts for each in opening.stand_ins}
            tenant = make_tenant(session, provision, stand_ins)
            entry = Entry(tenant, opening, peer)
        except BaseException as error:
            self._kept.end(session)
            if isinstance(error, Refused):
                raise interface.Refused(_line(str(error))) from None
            raise
        finally:
            self._opening.pop(session, None)
        self._entries[session] = entry
        for what, heard in early:
            self.changed(what, session, heard)
        loop = self._house.loop
        loop.add_reader(entry.pidfd, self._holder_ended, entry)
        entry.timer = loop.call_later(PREPARED_SECONDS, self._end, entry)
        if door is not None:
            self._open(entry, door)
        ca = tenant.trust.authority.pem.decode("ascii") if tenant.trust else ""
        return values.Opened(session, entry.state, ca, tuple(map(_line, provision.notes)))

    async def open_door(self, session: str, door: HandedDoor, peer: Peer) -> None:
        """Its door, from the process that prepared it."""
        entry = self._known(session)
        if entry.process != peer.process or entry.state is not State.PREPARED:
            raise NoSuch
        self._open(entry, door)

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End it and its sandbox."""
        entry = self._known(session)
        self._begin_stop(entry, peer.pid)
        await self._ended(entry)

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""
        self._revoke(self._known(session), peer.pid)

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        """The kill switch, for those that are being opened, too."""
        entries = list(self._entries.values())
        # Those that are being opened do not come any more.
        self._opening.clear()
        return values.Revoked(sum(self._revoke(entry, peer.pid) for entry in entries))

    async def grant(self, session: str, grant: Grant, peer: Peer) -> GrantView:
        """Allow one host more."""
        entry = self._known(session)
        if entry.live is None or entry.state is not State.OPEN:
            raise interface.Refused("the session's door is not open")
        try:
            return shown(entry.live.grant(grant.host, grant.seconds, grant.uses, peer.pid))
        except Ungrantable as error:
            raise interface.Refused(_line(str(error))) from None

    async def reload(self, peer: Peer) -> values.Reloaded:
        """Read the policies again, and answer when what changed holds."""
        try:
            outcomes = await self._kept.reload()
        except Refused as error:
            raise interface.Refused(_line(str(error))) from None
        await self._settled.wait()
        self._house.log.record("", session_event("reload-asked", by=peer.pid))
        found: dict[str, values.PolicyReload] = {}
        for session, (changed, why) in outcomes.items():
            entry = self._entries.get(session)
            if entry is None:
                continue
            outcome = values.Outcome.KEPT if why else values.Outcome.UNCHANGED
            outcome = values.Outcome.CHANGED if changed else outcome
            known = found.get(entry.policy)
            if known is None or outcome is not values.Outcome.UNCHANGED:
                found[entry.policy] = values.PolicyReload(entry.policy, outcome, _line(why))
        return values.Reloaded(tuple(found.values()))

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read it again where it is used."""
        with contextlib.suppress(Refused):
            await self._kept.touch(f"{Source.STORE}:{name}")
        self._house.log.record("", session_event("secret-changed-said", secret=name, by=peer.pid))

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin the end."""
        self._house.log.record("", session_event("stop-asked", by=peer.pid))
        self._stop()

    # ── heard ─────────────────────────────────────────────────────────────────────────────────────

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
        entry = self._entries.get(session)
        if entry is None:
            if session in self._opening:
                self._opening[session].append((what, heard))
            return
        if entry.live is None:
            # It has no door yet; what is new is there when it opens.
            if what == "reloaded":
                entry.tenant = entry.tenant.with_provision(heard[0])
            elif what == "rotated":
                entry.tenant = entry.tenant.with_secret(*heard)
            return
        match what:
            case "rotated":
                entry.live.rotate(*heard)
            case "reloaded":
                entry.view()  # what it had in the store is remembered
                entry.live.reload(*heard)
            case "kept":
                entry.live.keep(*heard)

    def _holder_ended(self, entry: Entry) -> None:
        """The process that held the sandbox is gone, and with it the sandbox (PDEATHSIG)."""
        if entry.live is not None:
            entry.live.record(session_event("ended", why="its supervisor ended"))
        self._end(entry)

    def _said(self, entry: Entry, message: dict[str, Any]) -> None:
        if entry.live is None:
            return
        match message:
            case {"note": str(what)} if what in _NOTES:
                details = {name: str(message.get(name, "")) for name in _NOTES[what]}
                entry.live.record(session_event(what, **details))
            case {"ended": int(code)}:
                entry.live.close(Ending.DONE)
                entry.live.record(session_event("ended", code=code))
                self._house.loop.create_task(self._farewell(entry))

    async def _farewell(self, entry: Entry) -> None:
        """The last digest, when the session's last line is written."""
        log = self._house.log
        log.finish(entry.id)
        await self._house.loop.run_in_executor(None, log.flush)
        if entry.line is not None:
            entry.line.say(head=log.head())
        self._end(entry)

    # ── done ──────────────────────────────────────────────────────────────────────────────────────

    def _known(self, session: str) -> Entry:
        entry = self._entries.get(session)
        if entry is None:
            raise NoSuch
        return entry

    def _open(self, entry: Entry, handed: HandedDoor) -> None:
        house = self._house
        sockets = handed.take()
        door = Door(sockets.tcp, sockets.udp, sockets.tcp6)
        rate = entry.tenant.provision.policy.limits.audit_per_second
        house.log.begin(entry.id, rate)
        started = session_event("started", command=entry.label, pid=entry.process[0])
        house.log.record(entry.id, started)
        try:
            # Before it is served: if this gateway dies, the next one must know of it (I2).
            self._register.enter(entry.id, entry.label, entry.process)
            entry.live = LiveSession(
                house, entry.tenant, door, entry.report, lambda why: self._closed(entry, why)
            )
        except (Refused, SameNamespace, GatewayFull, OSError) as error:
            door.close()
            if sockets.line is not None:
                sockets.line.close()
            self._end(entry)
            words = (
                f"it cannot be written down: {error.strerror}" if isinstance(error, OSError) else ""
            )
            raise interface.Refused(_line(words or str(error))) from None
        if entry.timer is not None:
            entry.timer.cancel()
        if sockets.line is not None:
            entry.line = Line(
                house.loop,
                sockets.line,
                lambda message: self._said(entry, message),
                lambda: self._holder_ended(entry),
            )
        entry.state = State.OPEN

    def _closed(self, entry: Entry, why: Ending) -> None:
        """Its door was closed: no secret of it is kept, and its holder hears of it."""
        entry.state = State.REVOKED
        self._kept.end(entry.id)
        if entry.line is not None and why is not Ending.DONE:
            entry.line.say(closed=why.value)

    def _revoke(self, entry: Entry, by: int) -> bool:
        if entry.live is None:
            self._end(entry)
            return True
        if entry.state is not State.OPEN:
            return False
        entry.live.close(Ending.REVOKED, by=by)
        return True

    def _begin_stop(self, entry: Entry, by: int) -> None:
        if entry.live is None or entry.line is None:
            self._end(entry)
            return
        if entry.state is State.OPEN:
            entry.live.close(Ending.STOPPED, by=by)
        else:
            entry.line.say(closed=Ending.STOPPED.value)

    async def _ended(self, entry: Entry) -> None:
        try:
            await asyncio.wait_for(entry.over.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)
            if entry.live is not None:
                entry.live.record(session_event("ended", why="its supervisor was killed"))
            self._end(entry)

    def _end(self, entry: Entry) -> None:
        """Let go of the last of it."""
        if self._entries.pop(entry.id, None) is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.live is not None:
            entry.live.close(Ending.DONE)
        self._kept.end(entry.id)
        self._house.log.finish(entry.id)
        self._house.loop.remove_reader(entry.pidfd)
        os.close(entry.pidfd)
        if entry.line is not None:
            entry.line.close()
        self._register.remove(entry.id)
        entry.over.set()
        if self._sweeper is None and len(self._entries) <= SWEEP_SESSIONS:
            self._sweeper = self._house.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        gc.collect()

    async def close(self) -> int:
        """End every session and its sandbox; how many there were. None comes any more."""
        self._ending = True
        entries = list(self._entries.values())
        for entry in entries:
            self._begin_stop(entry, os.getpid())
        await asyncio.gather(*(self._ended(entry) for entry in entries))
        return len(entries)


def _unless(lacks: str) -> tuple[bool, str]:
    return not lacks, _line(lacks)


def _line(words: str) -> str:
    """Fit for one line of an answer."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:1000]
