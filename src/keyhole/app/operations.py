"""What a long-lived gateway does for those who ask over its control socket.

Implements `control`'s `Operations` in the control process. A session is a process's: it ends with
that process, whose end the kernel tells (pidfd), and with the line that came with its door. Doors,
policies and secrets are the data plane's, which is asked (`planes.py`).

To close a door is never left to the data plane alone: one that does not say at once that it heard
is killed, which closes every door (I12). The sessions beside the one that was meant are told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from keyhole import __version__
from keyhole.app.calls import as_family
from keyhole.app.ending import Ending
from keyhole.app.entry import Entry
from keyhole.app.line import Line
from keyhole.app.planes import GONE_SECONDS, UNANSWERED, Heard, Lost
from keyhole.app.session import new_session, refused_event, session_event
from keyhole.control import interface, values
from keyhole.control.interface import NoSuch
from keyhole.control.prometheus import Family, Sample
from keyhole.control.table import GRANT, OPENING
from keyhole.control.values import State
from keyhole.model.value import replace
from keyhole.policy.limit import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keyhole.app.calls import Closed, Facts, Listed, Said
    from keyhole.app.doorway import Doorway
    from keyhole.app.leftovers import Register
    from keyhole.app.planes import Plane, Planes
    from keyhole.audit.log import AuditLog
    from keyhole.control.handed import HandedDoor
    from keyhole.control.peer import Peer, Stranger
    from keyhole.control.values import Grant, GrantView, Opened, Opening, Paging, SessionPage

PREPARED_SECONDS = 60.0
"""How long a session may wait for its door: twice what a sandbox's set-up may take."""

STOP_SECONDS = 12.0
"""How long a sandbox that is stopped may take to end, before whoever holds it is killed."""

ALL_RECEIPT_SECONDS = 0.075
"""How long the data plane may take to say that it heard the kill switch. All sessions are to be
closed, so that nothing is lost by ending it; whoever asks waits for 0.2 s at most."""

ONE_RECEIPT_SECONDS = 1.0
"""The same where one session is to be closed, and all others would be lost: a turn of the loop of a
host that is busy must fit in."""

CLOSE_SECONDS = 2.0
"""How long it may then take to close doors: thousands are closed in one."""

LOOK_SECONDS = 0.5
"""How long the data plane may take to tell its figures, before those it told last are shown."""

FINISH_SECONDS = 1.5
"""How long it may take to write a session's last line: less than a run waits for it."""

STRANGERS_PER_SECOND = 10
"""Events of those who were turned away; a loop of connections must not fill the log (I9)."""

_NOTES = {
    "cover-lost": ("path",),
    "foreign-container": ("container", "name"),
    "interface-added": ("interface",),
    "holder-ended": (),
    "engine-silent": (),
    "host-may-execute": ("path", "change", "why"),
}
"""What whoever holds a sandbox may have written down, and which words of it; all else is not."""

ENDING = "the gateway is about to end"
REVOKED_EARLY = "all sessions were revoked while this one was opened"
LOST = "the gateway's data plane was ended, and all its sessions with it; run it again"
CLOSED_WITH_IT = (
    "the gateway's data plane was ended: {why}; nothing inside reaches anything any more; end the"
    " command (Ctrl-C, or `keyhole stop {id}`) and run it again"
)
NOT_NOW = (
    "the gateway's data plane does not respond; it is ended and replaced if it stays so, try again"
)
NOT_GONE = (
    "the gateway's data plane, process {pid}, was killed and the kernel has not ended it yet: it"
    " waits for a disk or a device; `keyhole ps` shows when the sessions are closed"
)
NOT_TURNING = "it does not respond; what is shown here is what it told last"


class GatewayOperations:
    """All sessions of one gateway."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        planes: Planes,
        register: Register,
        log: AuditLog,
        stop: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        """`log` is this process's own: the data plane has another. `stop` begins the gateway's end;
        `report` has a line shown."""
        self._loop = loop
        self._planes = planes
        self._register = register
        self._log = log
        self._stop = stop
        self._report = report
        self._entries: dict[str, Entry] = {}
        self._opening: set[str] = set()
        """Sessions that are being opened."""
        self._meant: dict[str, Ending] = {}
        """Why sessions are being closed, for as long as the data plane is asked to."""
        self._ending = False
        self._since = int(time.time())
        self._known: Facts | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        self._strangers = Bucket.full("strangers", STRANGERS_PER_SECOND, loop.time())
        self.most = 0
        """How many sessions there may be."""
        self.protections: tuple[values.Protection, ...] = ()
        self.doorway: Doorway | None = None
        """Where a door is expected that others make."""
        self.failed = False
        """Whether the gateway ends because no data plane could be started any more."""

    def heard(self, turned: Callable[[], None]) -> Heard:
        """What is done with what a data plane says."""
        return Heard(self._closed, self._said, turned, self._lost)

    # ── asked ─────────────────────────────────────────────────────────────────────────────────────

    def stranger(self, stranger: Stranger) -> None:
        """Somebody was turned away."""
        if self._strangers.take(self._loop.time()).allowed:
            who = {"uid": stranger.uid, "pid": stranger.pid}
            self._log.record("", refused_event("control-refused", why=stranger.why, **who))

    async def status(self) -> values.Status:
        """The gateway as a whole."""
        plane = self._planes.now
        told = await self._look("facts", {})
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
            len(self._entries),
            facts.connections if facts else 0,
            facts is not None and facts.admitting and not self.failed,
            (*self.protections, *more),
            plane.pid,
        )

    async def health(self) -> values.Health:
        """Whether sandboxes can work now."""
        try:
            checks = [*(await self._call("health", {})).checks]
        except interface.Refused as refused:
            checks = [values.Check("data-plane", False, refused.why)]
        if self.doorway is not None:
            opened = any(each.state is State.OPEN for each in self._entries.values())
            lacks = self.doorway.lacks or ("" if opened else "it was closed")
            checks.insert(2, values.Check("door", not lacks, lacks[:1000]))
        return values.Health(all(each.on for each in checks), tuple(checks))

    async def metrics(self) -> Iterable[Family]:
        """Its counters."""
        told = await self._call("metrics", {})
        restarts = Family(
            "keyhole_data_plane_restarts_total",
            "counter",
            "Data planes that were lost and replaced.",
            [Sample(self._planes.restarts)],
        )
        return [*map(as_family, told.metrics), restarts]

    async def list_sessions(self, page: Paging) -> SessionPage:
        """Sessions by id."""
        found = sorted(each for each in self._entries if each > page.after)
        shown = found[: page.limit]
        more = shown[-1] if len(found) > len(shown) else None
        await self._refresh(shown)
        views = [self._entries[each].view() for each in shown if each in self._entries]
        return values.SessionPage(tuple(views), more)

    async def show_session(self, session: str) -> values.SessionView:
        """One of them."""
        self._find(session)
        await self._refresh([session])
        return self._find(session).view()

    async def open_session(self, opening: Opening, door: HandedDoor | None, peer: Peer) -> Opened:
        """Have it provided for, and give it a CA."""
        if self._ending:
            raise interface.Refused(ENDING)
        if len(self._entries) + len(self._opening) >= self.most:
            raise interface.Refused(f"the gateway has {self.most} sessions, which is its most")
        session = new_session()
        plane = self._planes.now
        self._opening.add(session)
        asked = OPENING.write(replace(opening, door=()), "open")
        try:
            provided = await self._call("open", {"session": session, "opening": asked})
            if self._ending or session not in self._opening:
                raise interface.Refused(ENDING if self._ending else REVOKED_EARLY)
            if plane.gone.is_set():
                raise interface.Refused(LOST)
            entry = Entry(session, opening, peer, plane, provided.figures)
        except BaseException:
            plane.tell("drop", {"session": session, "why": ""})
            raise
        finally:
            self._opening.discard(session)
        self._entries[session] = entry
        self._loop.add_reader(entry.pidfd, self._holder_ended, entry)
        entry.timer = self._loop.call_later(PREPARED_SECONDS, self._end, entry)
        if door is not None:
            await self._open(entry, door)
        return values.Opened(session, entry.state, provided.ca, provided.notes)

    async def open_door(self, session: str, door: HandedDoor, peer: Peer) -> None:
        """Its door, from the process that prepared it."""
        entry = self._find(session)
        if entry.process != peer.process or entry.state is not State.PREPARED:
            raise NoSuch
        await self._open(entry, door)

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End it and its sandbox."""
        entry = self._find(session)
        await self._begin_stop([entry], peer.pid)
        await self._ended(entry)

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""
        await self._revoke([self._find(session)], peer.pid, ONE_RECEIPT_SECONDS)

    async def revoke_all(self, peer: Peer) -> values.Revoked:
        """The kill switch, for those that are being opened, too."""
        opening, entries = list(self._opening), list(self._entries.values())
        # Those that are being opened do not come any more.
        self._opening.clear()
        closed = sum(each.state is not State.REVOKED for each in entries)
        await self._revoke(entries, peer.pid, ALL_RECEIPT_SECONDS, opening)
        return values.Revoked(closed)

    async def grant(self, session: str, grant: Grant, peer: Peer) -> GrantView:
        """Allow one host more."""
        entry = self._find(session)
        if entry.state is not State.OPEN:
            raise interface.Refused("the session's door is not open")
        words = {"session": session, "grant": GRANT.write(grant, "grant"), "by": peer.pid}
        view: GrantView = await self._call("grant", words)
        return view

    async def reload(self, peer: Peer) -> values.Reloaded:
        """Read the policies again, and answer when what changed holds."""
        reloaded: values.Reloaded = await self._call("reload", {"by": peer.pid})
        return reloaded

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read it again where it is used."""
        await self._call("secret_changed", {"name": name, "by": peer.pid})

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin the end."""
        self._log.record("", session_event("stop-asked", by=peer.pid))
        self._stop()

    # ── of the data plane ─────────────────────────────────────────────────────────────────────────

    async def _call(self, name: str, words: Mapping[str, Any], door: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - by what is called
        plane = self._planes.now
        if plane.quiet:
            raise interface.Refused(NOT_NOW)
        try:
            return await plane.call(name, words, door)
        except Lost:
            raise interface.Refused(LOST) from None

    async def _look(self, name: str, words: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """The answer, or None where it does not come soon: a list never waits for it."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._call(name, words)
        except (TimeoutError, interface.Refused):
            return None

    async def _refresh(self, sessions: list[str]) -> None:
        if not sessions:
            return
        told: Listed | None = await self._look("list", {"sessions": sessions})
        if told is not None:
            for each in told.sessions:
                entry = self._entries.get(each.id)
                if entry is not None:
                    entry.figures = each

    def _closed(self, event: Closed) -> None:
        """A door was closed: whoever holds the sandbox hears of it."""
        entry = self._entries.get(event.session)
        if entry is None or entry.state is not State.OPEN:
            return
        self._close(entry, event.why)

    def _close(self, entry: Entry, why: Ending) -> None:
        entry.state = State.REVOKED
        if entry.line is not None and why is not Ending.DONE:
            entry.line.say(closed=why.value)

    def _said(self, event: Said) -> None:
        if not event.session:
            self._report(event.text)
            return
        entry = self._entries.get(event.session)
        if entry is not None and entry.line is not None:
            entry.line.say(say=event.text)

    def _lost(self, plane: Plane, why: str) -> None:
        """A data plane has ended: every door of it is closed, and everybody is to know."""
        if not self.most or (self._ending and not self._entries):
            return  # it never served, or has done so to the end
        meant, self._meant = self._meant, {}
        entries = [each for each in self._entries.values() if each.plane is plane]
        self._report(f"the data plane, process {plane.pid}, was ended with all its sessions: {why}")
        ended = refused_event("data-plane-ended", pid=plane.pid, why=why, sessions=len(entries))
        self._log.record("", ended)
        for entry in entries:
            if entry.state is not State.OPEN:
                continue
            ending = meant.get(entry.id, Ending.LOST)
            details = {"because": why} if ending is Ending.LOST else {}
            self._write(entry, "closed", why=ending.value, **details)
            if ending is Ending.LOST and entry.line is not None:
                entry.line.say(say=CLOSED_WITH_IT.format(why=why, id=entry.id))
            self._close(entry, ending)
        if self._ending:
            return
        lacks = self._planes.replace(why)
        if lacks:
            self._report(f"no other data plane is started: {lacks}; the gateway ends")
            self.failed = True
            self._stop()

    # ── heard ─────────────────────────────────────────────────────────────────────────────────────

    def _holder_ended(self, entry: Entry) -> None:
        """The process that held the sandbox is gone, and with it the sandbox (PDEATHSIG)."""
        self._end(entry, "its supervisor ended")

    def _told(self, entry: Entry, message: dict[str, Any]) -> None:
        match message:
            case {"note": str(what)} if what in _NOTES:
                details = {name: str(message.get(name, "")) for name in _NOTES[what]}
                words = {"session": entry.id, "what": what, "details": details}
                if entry.served:
                    entry.plane.tell("note", words)
                else:
                    self._write(entry, what, **details)
            case {"ended": int(code)}:
                if entry.state is State.OPEN:
                    entry.state = State.REVOKED
                task = self._loop.create_task(self._farewell(entry, code))
                self._farewells.add(task)
                task.add_done_callback(self._farewells.discard)

    async def _farewell(self, entry: Entry, code: int) -> None:
        """The last digest, when the session's last line is written."""
        head = ""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                words = {"session": entry.id, "code": code}
                head = (await entry.plane.call("finish", words)).head
        except (Lost, NoSuch, interface.Refused, TimeoutError):
            self._write(entry, "ended", code=code)
        if entry.line is not None:
            entry.line.say(head=head)
        self._end(entry)

    # ── done ──────────────────────────────────────────────────────────────────────────────────────

    def _write(self, entry: Entry, what: str, **details: str | int) -> None:
        """Write down here what became of a session whose data plane cannot."""
        self._log.record(entry.id, session_event(what, **details))

    def _find(self, session: str) -> Entry:
        entry = self._entries.get(session)
        if entry is None:
            raise NoSuch
        return entry

    async def _open(self, entry: Entry, handed: HandedDoor) -> None:
        sockets = handed.take()
        line = sockets.line
        door = {"tcp": sockets.tcp, "udp": sockets.udp}
        if sockets.tcp6 is not None:
            door["tcp6"] = sockets.tcp6
        words = {"session": entry.id, "label": entry.label, "pid": entry.process[0]}
        try:
            if not entry.served:
                raise interface.Refused(LOST)
            # Before it is served: if this gateway dies, the next one must know of it (I2).
            self._register.enter(entry.id, entry.label, entry.process)
            # Its line may have something to say as soon as it is served.
            if line is not None:
                entry.line = Line(
                    self._loop,
                    line,
                    lambda message: self._told(entry, message),
                    lambda: self._holder_ended(entry),
                )
            # Closed meanwhile, it is closed: an event of it may come before the answer.
            entry.state = State.OPEN
            await self._call("door", words | {"door": list(door)}, list(door.values()))
        except (interface.Refused, NoSuch, OSError) as error:
            if entry.line is None and line is not None:
                line.close()
            self._end(entry)
            if isinstance(error, OSError):
                why = f"it cannot be written down: {error.strerror}"
                raise interface.Refused(why) from None
            raise
        finally:
            for each in door.values():
                each.close()
        if entry.timer is not None:
            entry.timer.cancel()

    async def _shut(self, sessions: list[str], ending: Ending, by: int, seconds: float) -> None:
        """Have doors closed, by the data plane or by its end."""
        plane = self._planes.now
        meant = dict.fromkeys(sessions, ending)
        self._meant |= meant
        words = {"sessions": sessions, "why": ending.value, "by": by}
        try:
            if plane.quiet and seconds == ALL_RECEIPT_SECONDS:
                raise TimeoutError  # it was given more than that already
            await plane.call_acknowledged("close", words, seconds, CLOSE_SECONDS)
        except (TimeoutError, interface.Refused, RuntimeError):
            plane.end(UNANSWERED)
            if not await plane.ended(GONE_SECONDS):
                # It serves nobody any more, but its sockets are not closed before it is gone.
                raise interface.Refused(NOT_GONE.format(pid=plane.pid)) from None
        except Lost:
            pass  # its end has closed them
        finally:
            for each in meant:
                self._meant.pop(each, None)

    async def _revoke(
        self, entries: list[Entry], by: int, seconds: float, opening: Sequence[str] = ()
    ) -> None:
        sessions = [each.id for each in entries if each.state is State.OPEN]
        for each in entries:
            if each.state is State.PREPARED:
                self._end(each)
        if sessions or opening:
            await self._shut([*sessions, *opening], Ending.REVOKED, by, seconds)

    async def _begin_stop(self, entries: list[Entry], by: int) -> None:
        sessions = []
        for each in entries:
            if each.state is State.PREPARED or each.line is None:
                self._end(each)
            elif each.state is State.OPEN:
                sessions.append(each.id)
            else:
                each.line.say(closed=Ending.STOPPED.value)
        if sessions:
            await self._shut(sessions, Ending.STOPPED, by, ONE_RECEIPT_SECONDS)

    async def _ended(self, entry: Entry) -> None:
        try:
            await asyncio.wait_for(entry.over.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)
            self._end(entry, "its supervisor was killed")

    def _end(self, entry: Entry, why: str = "") -> None:
        """Let go of the last of it; `why` is written down."""
        if self._entries.pop(entry.id, None) is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.served:
            entry.plane.tell("drop", {"session": entry.id, "why": why})
        elif why:
            self._write(entry, "ended", why=why)
        self._loop.remove_reader(entry.pidfd)
        os.close(entry.pidfd)
        if entry.line is not None:
            entry.line.close()
        self._register.remove(entry.id)
        self._log.finish(entry.id)
        entry.over.set()

    async def close(self) -> int:
        """End every session and its sandbox; how many there were. None comes any more."""
        self._ending = True
        entries = list(self._entries.values())
        await self._begin_stop(entries, os.getpid())
        await asyncio.gather(*(self._ended(entry) for entry in entries))
        return len(entries)
