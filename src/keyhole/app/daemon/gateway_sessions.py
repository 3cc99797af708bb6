"""The sessions of a long-lived gateway, from their doors to their ends.

Used by `gateway_operations.py`, in the control process. A session belongs to a process: it ends
with that process (pidfd) and with the channel that came with its door. It stays with the worker
that opened it: a data plane speaks for its own sessions alone, and when it is ended, those are
closed and get the reason (I12).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from keyhole.app.daemon.data_plane_process import DataPlaneListener
from keyhole.app.daemon.plane_calls import LOST, ONE_RECEIPT_SECONDS, call_plane, close_doors
from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.session.ask_board import AskBoard
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_events import noted_event, refused_event, session_event
from keyhole.control.interface import NoSuchSession
from keyhole.control.values import SessionPhase
from keyhole.model.errors import KeyholeError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess
    from keyhole.app.daemon.plane_messages import DoorClosed, SessionMessage
    from keyhole.app.daemon.session_record import SessionRecord
    from keyhole.app.daemon.workers import Workers
    from keyhole.app.session.ask_board import AskReport
    from keyhole.app.session.session_register import SessionRegister
    from keyhole.audit.log import AuditLog
    from keyhole.control.received_door import ReceivedDoor

STOP_SECONDS = 12.0
"""Seconds for a stopped sandbox to end, before the process that holds it is killed."""

FINISH_SECONDS = 1.5
"""How long it may take to write a session's last line: less than a run waits for it."""

_NOTES = {
    "cover-lost": ("path",),
    "home-filling": ("bytes",),
    "home-full": ("bytes",),
    "foreign-container": ("container", "name"),
    "interface-added": ("interface",),
    "pod-bound": ("namespace", "pod", "uid", "account"),
    "holder-ended": (),
    "engine-silent": (),
    "host-may-execute": ("path", "change", "why"),
    "exec": ("command", "by"),
    "exec-refused": ("why", "by"),
    "attach": ("by",),
    "claimed": ("claim", "uid"),
    "inbound": ("peer", "port", "rule"),
    "inbound-ended": ("peer", "port", "up", "down"),
    "inbound-probes": ("times",),
    "inbound-refused": ("peer", "port", "why", "more"),
    "remote-connected": ("address",),
    "remote-lost": (),
    "remote-refused": ("why", "address", "times"),
}
"""Events that the holder of a sandbox may record, and their fields; all others are dropped."""

CLOSED_WITH_IT = (
    "the gateway's data plane was ended: {why}; nothing inside reaches anything any more; end the"
    " command (Ctrl-C, or `keyhole stop {id}`) and run it again"
)


class GatewaySessions:
    """All sessions of one gateway."""

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
        self._register = register
        self._log = log
        self._stop = stop
        self._report = report
        self.entries: dict[str, SessionRecord] = {}
        self.opening: dict[str, DaemonDataPlaneProcess] = {}
        """Sessions that are being opened, and where."""
        self.ending = False
        self.most = 0
        """The most sessions at a time."""
        self.failed = False
        """Whether the gateway ends because no data plane could be started any more."""
        self._meant: dict[str, EndReason] = {}
        """The reasons of closings that the data plane was asked for and has not reported."""
        self._finishing: set[asyncio.Task[None]] = set()
        self.board = AskBoard(self.tell_watched)
        """The questions of all sessions, and those who watch."""

    def heard(self, turned: Callable[[], None]) -> DataPlaneListener:
        """Callbacks for the messages of a data plane."""
        return DataPlaneListener(
            self._closed,
            self._said,
            self._asked,
            self._workers.divide,
            self._log.join,
            turned,
            self._lost,
        )

    def loads(self) -> Counter[DaemonDataPlaneProcess]:
        """The number of sessions of each data plane, with those that are being opened."""
        found = Counter(each.plane for each in self.entries.values())
        found.update(self.opening.values())
        return found

    def tell_watched(self) -> None:
        """Tell the data planes whether a person watches."""
        words = {"answers": self.board.feeds.answered}
        for plane in self._workers.planes:
            plane.tell("watched", words)

    def _of(self, plane: DaemonDataPlaneProcess, session: str) -> SessionRecord | None:
        """The session that a data plane speaks of, if it is one of its own. Attack: a worker that
        was taken over closes the sessions of another, or asks a person in their name (I5)."""
        entry = self.entries.get(session)
        return entry if entry is not None and entry.plane is plane else None

    def _asked(self, plane: DaemonDataPlaneProcess, report: AskReport) -> None:
        if self._of(plane, report.ask.session) is not None:
            self.board.heard(report)

    def _closed(self, plane: DaemonDataPlaneProcess, event: DoorClosed) -> None:
        """A door was closed: inform the holder of the sandbox."""
        entry = self._of(plane, event.session)
        if entry is None or entry.state is not SessionPhase.OPEN:
            return
        self._close(entry, event.why)

    def _close(self, entry: SessionRecord, why: EndReason) -> None:
        entry.state = SessionPhase.REVOKED
        if entry.line is not None and why is not EndReason.DONE:
            entry.line.say(closed=why.value)

    def _said(self, plane: DaemonDataPlaneProcess, event: SessionMessage) -> None:
        if not event.session:
            self._report(event.text)
            return
        entry = self._of(plane, event.session)
        if entry is not None and entry.line is not None:
            times = {"times": event.times} if event.times else {}
            entry.line.say(say=event.text, **times)

    def _lost(self, plane: DaemonDataPlaneProcess, why: str) -> None:
        """A data plane has ended: all its doors are closed. Inform every holder of a sandbox."""
        if not self.most or (self.ending and not self.entries):
            return  # it never served, or served to its end
        entries = [each for each in self.entries.values() if each.plane is plane]
        self._report(f"the data plane, process {plane.pid}, was ended with all its sessions: {why}")
        ended = refused_event("data-plane-ended", pid=plane.pid, why=why, sessions=len(entries))
        self._log.record("", ended)
        for entry in entries:
            if entry.state is not SessionPhase.OPEN:
                continue
            ending = self._meant.pop(entry.id, EndReason.LOST)
            details = {"because": why} if ending is EndReason.LOST else {}
            self._write(entry, "closed", why=ending.value, **details)
            if ending is EndReason.LOST and entry.line is not None:
                entry.line.say(say=CLOSED_WITH_IT.format(why=why, id=entry.id))
            self._close(entry, ending)
        if self.ending:
            return
        lacks, left = self._workers.replace(plane, why)
        if not lacks:
            self.tell_watched()
        elif left:
            self._report(f"no other data plane is started in its place: {lacks}; the others go on")
        else:
            self._report(f"no other data plane is started: {lacks}; the gateway ends")
            self.failed = True
            self._stop()

    # ── heard ─────────────────────────────────────────────────────────────────────────────────────

    def holder_ended(self, entry: SessionRecord) -> None:
        """The process that held the sandbox is gone, and with it the sandbox (PDEATHSIG)."""
        self.end(entry, "its supervisor ended")

    def _told(self, entry: SessionRecord, message: dict[str, Any]) -> None:
        match message:
            case {"note": str(what)} if what in _NOTES:
                details = {name: _detail(message.get(name, "")) for name in _NOTES[what]}
                words = {"session": entry.id, "what": what, "details": details}
                if entry.served:
                    entry.plane.tell("note", words)
                else:
                    self._log.record(entry.id, noted_event(what, **details))
            case {"ended": int(code)}:
                if entry.state is SessionPhase.OPEN:
                    entry.state = SessionPhase.REVOKED
                task = self._loop.create_task(self._finish_session(entry, code))
                self._finishing.add(task)
                task.add_done_callback(self._finishing.discard)

    async def _finish_session(self, entry: SessionRecord, code: int) -> None:
        """Send the last digest when the session's last line is written."""
        head = ""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                words = {"session": entry.id, "code": code}
                head = (await entry.plane.call("finish", words)).head
        except (KeyholeError, ConnectionError, TimeoutError):
            self._write(entry, "ended", code=code)
        if entry.line is not None:
            entry.line.say(head=head)
        self.end(entry)

    # ── done ──────────────────────────────────────────────────────────────────────────────────────

    def _write(self, entry: SessionRecord, what: str, **details: str | int) -> None:
        """Record the end of a session here when its data plane cannot."""
        self._log.record(entry.id, session_event(what, **details))

    def find(self, session: str) -> SessionRecord:
        entry = self.entries.get(session)
        if entry is None:
            raise NoSuchSession
        return entry

    async def open_door(self, entry: SessionRecord, handed: ReceivedDoor) -> None:
        sockets = handed.take()
        line = sockets.line
        door = {"tcp": sockets.tcp, "udp": sockets.udp}
        if sockets.tcp6 is not None:
            door["tcp6"] = sockets.tcp6
        words = {"session": entry.id, "label": entry.label, "pid": entry.process[0]}
        try:
            if not entry.served:
                raise Refused(LOST)
            # One worker would not know that another serves this namespace (I5).
            if any(each.namespace == handed.namespace for each in self.entries.values()):
                raise Refused("the sockets of a door are of one namespace, which has no other")
            entry.namespace = handed.namespace
            # Before it is served: if this gateway dies, the next one must know of it (I2).
            self._register.enter(entry.id, entry.label, entry.process)
            # Its channel may carry a message as soon as it is served.
            if line is not None:
                entry.line = SandboxChannel(
                    self._loop,
                    line,
                    lambda message: self._told(entry, message),
                    lambda: self.holder_ended(entry),
                )
            # It may have been closed meanwhile: that event may come before the answer.
            entry.state = SessionPhase.OPEN
            words |= {"door": list(door)}
            await call_plane(entry.plane, "door", words, list(door.values()))
        except (Refused, NoSuchSession, OSError) as error:
            if entry.line is None and line is not None:
                line.close()
            self.end(entry)
            if isinstance(error, OSError):
                why = f"it cannot be written down: {error.strerror}"
                raise Refused(why) from None
            raise
        finally:
            for each in door.values():
                each.close()
        if entry.timer is not None:
            entry.timer.cancel()
        self.board.opened(entry.id, entry.label)

    async def _shut(
        self,
        sessions: Mapping[str, DaemonDataPlaneProcess],
        ending: EndReason,
        by: int,
        seconds: float,
    ) -> None:
        """Close doors, by their data planes or by killing them: all at once, so that a stuck one
        does not delay the others."""
        self._meant |= dict.fromkeys(sessions, ending)
        grouped: dict[DaemonDataPlaneProcess, list[str]] = {}
        for session, plane in sessions.items():
            grouped.setdefault(plane, []).append(session)
        closings = (close_doors(plane, ids, ending, by, seconds) for plane, ids in grouped.items())
        try:
            failures = await asyncio.gather(*closings, return_exceptions=True)
        finally:
            for each in sessions:
                self._meant.pop(each, None)
        for failure in failures:
            if failure is not None:
                raise failure

    async def revoke(
        self,
        entries: list[SessionRecord],
        by: int,
        seconds: float,
        opening: Mapping[str, DaemonDataPlaneProcess] | None = None,
    ) -> None:
        sessions = {each.id: each.plane for each in entries if each.state is SessionPhase.OPEN}
        for each in entries:
            if each.state is SessionPhase.PREPARED:
                self.end(each)
        if sessions or opening:
            await self._shut(sessions | dict(opening or {}), EndReason.REVOKED, by, seconds)

    async def begin_stop(self, entries: list[SessionRecord], by: int) -> None:
        sessions = {}
        for each in entries:
            if each.state is SessionPhase.PREPARED or each.line is None:
                self.end(each)
            elif each.state is SessionPhase.OPEN:
                sessions[each.id] = each.plane
            else:
                each.line.say(closed=EndReason.STOPPED.value)
        if sessions:
            await self._shut(sessions, EndReason.STOPPED, by, ONE_RECEIPT_SECONDS)

    async def wait_ended(self, entry: SessionRecord) -> None:
        try:
            await asyncio.wait_for(entry.over.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)
            self.end(entry, "its supervisor was killed")

    def end(self, entry: SessionRecord, why: str = "") -> None:
        """Release the session; `why` is recorded."""
        if self.entries.pop(entry.id, None) is None:
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
        self.board.closed(entry.id, entry.label)
        entry.over.set()

    async def close(self) -> int:
        """End every session and its sandbox, and accept no more. Returns how many there were."""
        self.ending = True
        entries = list(self.entries.values())
        await self.begin_stop(entries, os.getpid())
        await asyncio.gather(*(self.wait_ended(entry) for entry in entries))
        return len(entries)


def _detail(value: object) -> str | int:
    return value if isinstance(value, int) else str(value)
