"""The remote listener: the process that has the gateway's TLS port for remote doors.

Started by `receiver.py`, and locked down like a data plane before it accepts a connection. It
identifies a remote door by a session's certificate, or, once, by the code of an invitation. It
holds the authority that signs those certificates, and no secret of any service. It passes all later
bytes of a door to the session's relay, unread. A client without a certificate or a code learns only
that this port speaks TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import uvloop

from keyhole.app.processes.child import inherit
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.remote.invitation import MAX_INVITATIONS, invitation_digest
from keyhole.app.remote.known_door import REPORT_SECONDS, KnownDoor
from keyhole.app.remote.parcel_channel import ParcelChannel
from keyhole.app.remote.pump import Pump
from keyhole.app.remote.turned_away import TurnedAway, TurnedAwayVisitors
from keyhole.app.remote.unknown_visitors import UnknownVisitors, share_of
from keyhole.certs.remote_authority import RemoteAuthority
from keyhole.model.errors import KeyholeError, Malformed

HANDSHAKE_SECONDS = 10.0
"""Seconds for a handshake, and for the message of an enrolment after it."""

OPENING_SECONDS = 60.0
"""Seconds in which the gateway opens the session of an enrolment: it reads policy and secrets."""

MAX_ENROLMENT = 64 * 1024
"""Bytes of an enrolment: enough for the placeholders of a hundred services."""

ACCEPTS_PER_TICK = 16
_PAUSE_SECONDS = 0.1


class RemoteVisitor(asyncio.Protocol):
    """A connection from outside: first identified, then passed to its relay."""

    def __init__(self, listener: RemoteListener, sock: socket.socket, address: str) -> None:
        self._listener = listener
        self._sock = sock
        self.address, self.share = address, share_of(address)
        self.session = ""
        self.number = 0
        """The number of the request to the receiver that waits for an answer."""
        self.transport: asyncio.Transport | None = None
        self.pump: Pump | None = None
        self.lost = False
        self._early = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = True
        listener.unknown.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done. A certificate names a session; without one, the client may
        enrol."""
        self.transport = cast("asyncio.Transport", transport)
        shown = cast("ssl.SSLObject", transport.get_extra_info("ssl_object")).getpeercert()
        if shown:
            self.transport.pause_reading()
            self._listener.identify(self, shown)
        else:
            self._asked = False
        self.end_after(HANDSHAKE_SECONDS)

    def data_received(self, data: bytes) -> None:
        """One message of an enrolment, a line of JSON."""
        if self.pump is not None:
            self.pump.other_received(data)
            return
        self._early += data
        if self._asked or len(self._early) > MAX_ENROLMENT:
            self.abort()
        elif self._early.endswith(b"\n"):
            self._asked = True
            self._listener.enrol(self, bytes(self._early))

    def eof_received(self) -> bool:
        """The door has closed the connection."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended: tell its relay."""
        self.lost = True
        self.known()
        if self._timer is not None:
            self._timer.cancel()
        if self.pump is not None:
            self.pump.other_lost()
        self._listener.left(self)

    def pause_writing(self) -> None:
        """The door reads slowly."""
        if self.pump is not None:
            self.pump.pause()

    def resume_writing(self) -> None:
        """The door has read."""
        if self.pump is not None:
            self.pump.resume()

    def known(self) -> None:
        """It has identified itself, or has ended."""
        self._listener.unknown.remove(self)

    def carry(self, pump: Pump, ends: datetime) -> None:
        """Pass bytes between the door and its relay, until the certificate expires."""
        self.known()
        if self.lost:
            pump.other_lost()
            return
        self.pump = pump
        self.expire_at(ends)
        if self.transport is not None:
            self.transport.resume_reading()

    def expire_at(self, ends: datetime) -> None:
        """End the connection when the certificate expires, unless it is renewed."""
        left = (ends - datetime.now(UTC)).total_seconds()
        self.end_after(max(0.0, left))

    def end_after(self, seconds: float) -> None:
        """End the connection then, unless a later time is set."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._listener.loop.call_later(seconds, self.abort)

    def answer(self, message: dict[str, object]) -> None:
        """Send the only answer to an enrolment."""
        if self.transport is not None:
            self.transport.write(json.dumps(message).encode() + b"\n")
            self.transport.close()

    def abort(self) -> None:
        """End the connection without an answer."""
        if self.transport is not None:
            self.transport.abort()
        else:  # the handshake fails then
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


class RemoteListener:
    """The TLS port: the doors that may connect, and the open connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        authority: RemoteAuthority,
    ) -> None:
        self.loop = loop
        self.unknown = UnknownVisitors()
        self._turned_away = TurnedAwayVisitors(loop, self._send)
        self.over = asyncio.Event()
        self._sock = sock
        self._authority = authority
        self._channel: ParcelChannel | None = None
        self._invitations: dict[str, float] = {}
        self._doors: dict[str, KnownDoor[RemoteVisitor]] = {}
        self._waiting: dict[int, tuple[RemoteVisitor, str]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, channel: ParcelChannel) -> None:
        """Begin to accept."""
        self._channel = channel
        self._sock.setblocking(False)
        self.loop.add_reader(self._sock, self._acceptable)

    # ── accepting ─────────────────────────────────────────────────────────────────────────────────

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:  # of the host: no descriptor or memory is left
                self._pause()
                return
            address = str(peer[0])
            if not self.unknown.admits(share_of(address), self.loop.time()):
                sock.close()
                continue
            task = self.loop.create_task(self._greet(sock, RemoteVisitor(self, sock, address)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _pause(self) -> None:
        self.loop.remove_reader(self._sock)
        self.loop.call_later(_PAUSE_SECONDS, self.loop.add_reader, self._sock, self._acceptable)

    async def _greet(self, sock: socket.socket, visitor: RemoteVisitor) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.loop.connect_accepted_socket(
                lambda: visitor,
                sock,
                ssl=self._authority.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                self._turned_away.count(TurnedAway.CERTIFICATE, visitor.address)
            visitor.known()
            sock.close()

    # ── who it is ─────────────────────────────────────────────────────────────────────────────────

    def identify(self, visitor: RemoteVisitor, shown: Any) -> None:  # noqa: ANN401 - of `ssl`
        """Accept a certificate of ours if its session lives and has no other connection."""
        session = dict(pair for name in shown["subject"] for pair in name).get("commonName", "")
        door = self._doors.get(session)
        # 1. A session that lives, and a certificate that was not replaced.
        if door is None or not door.takes(int(shown["serialNumber"], 16)):
            self._turned_away.count(TurnedAway.CERTIFICATE, visitor.address, session)
            visitor.abort()
            return
        # 2. One use at a time. Attack: a stolen certificate is used beside the real door. One of
        #    the two is refused here, and the log records it (I5).
        if door.visitor is not None:
            if door.count_refused():
                self.loop.call_later(REPORT_SECONDS, self._report, session, visitor.address)
            visitor.abort()
            return
        # 3. Not in a loop: each connection is work for the whole gateway (I12).
        if not door.may_connect(self.loop.time()):
            visitor.abort()
            return
        door.visitor, visitor.session = visitor, session
        self._ask(visitor, session, {"connect": session, "address": visitor.address})

    def _report(self, session: str, address: str) -> None:
        """Tell of the uses of a certificate that was in use, by the first one's address (I8)."""
        door = self._doors.get(session)
        if door is not None:
            self._send({"second": session, "address": address, "times": door.take_refused()})

    def enrol(self, visitor: RemoteVisitor, line: bytes) -> None:
        """Accept the code of an invitation, which works once. A wrong one gets no answer."""
        try:
            asked = json.loads(line)
            digest = invitation_digest(str(asked["secret"]))
            key, opening = str(asked["key"]), dict(asked["opening"])
            expires = self._invitations.pop(digest)
            if expires < self.loop.time():
                raise Malformed("an invitation that has ended")
            self._authority.issue("x", key, datetime.now(UTC))  # a key that can be signed
        except (ValueError, TypeError, KeyError, RecursionError, KeyholeError):
            self._turned_away.count(TurnedAway.CODE, visitor.address)
            visitor.abort()
            return
        visitor.known()
        visitor.end_after(OPENING_SECONDS)
        self._ask(visitor, key, {"enrol": digest, "opening": opening})

    def left(self, visitor: RemoteVisitor) -> None:
        """A connection has ended."""
        self._waiting.pop(visitor.number, None)
        door = self._doors.get(visitor.session)
        if door is not None and door.visitor is visitor:
            door.visitor = None

    # ── the receiver ──────────────────────────────────────────────────────────────────────────────

    def _ask(self, visitor: RemoteVisitor, about: str, message: dict[str, object]) -> None:
        self._number += 1
        visitor.number = self._number
        self._waiting[self._number] = visitor, about
        self._send(message | {"number": self._number})

    def _send(self, message: dict[str, object]) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def heard(self, message: dict[str, Any], parcel: socket.socket | None) -> None:
        """A message of the receiver, which is trusted."""
        match message:
            case {"lifetime": int(seconds)}:
                self._authority.lifetime = timedelta(seconds=seconds)
            case {"invite": str(digest), "seconds": int(seconds)}:
                self._invite(digest, seconds)
            case {"number": int(number)} if number not in self._waiting:
                if parcel is not None:
                    parcel.close()
            case {"enrolled": str(session), "number": int(number), "told": dict(told)}:
                visitor, key = self._waiting.pop(number)
                self._doors[session] = KnownDoor(self.loop.time())
                pem = self._issue(session, key)
                visitor.answer(told | {"session": session, "certificate": pem})
            case {"refused": str(why), "number": int(number)}:
                self._waiting.pop(number)[0].answer({"refused": why})
            case {"taken": str(session), "number": int(number)} if parcel is not None:
                visitor, _ = self._waiting.pop(number)
                self._attach(visitor, session, parcel)
            case {"closed": str(session)} if session in self._doors:
                self._doors[session].close()
            case {"gone": str(session)}:
                door = self._doors.pop(session, None)
                if door is not None and door.visitor is not None:
                    door.visitor.abort()
            case {"renew": str(session), "key": str(key)} if session in self._doors:
                with contextlib.suppress(KeyholeError):
                    self._send({"renewed": session, "certificate": self._issue(session, key)})
                visitor_of = self._doors[session].visitor
                if visitor_of is not None:
                    visitor_of.expire_at(self._doors[session].ends)

    def _invite(self, digest: str, seconds: int) -> None:
        now = self.loop.time()
        self._invitations = {d: end for d, end in self._invitations.items() if end > now}
        if len(self._invitations) < MAX_INVITATIONS:
            self._invitations[digest] = now + seconds

    def _issue(self, session: str, key: str) -> str:
        issued = self._authority.issue(session, key, datetime.now(UTC))
        door = self._doors[session]
        door.note_issued(issued)
        return issued.pem

    def _attach(self, visitor: RemoteVisitor, session: str, parcel: socket.socket) -> None:
        door = self._doors.get(session)
        if door is None or door.visitor is not visitor or visitor.transport is None:
            parcel.close()
            visitor.abort()
            return
        pump, ends = Pump(visitor.transport), door.ends

        async def join() -> None:
            await self.loop.connect_accepted_socket(lambda: pump, parcel)
            visitor.carry(pump, ends)

        task = self.loop.create_task(join())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main() -> None:
    """Run as `python -c … CHANNEL PORT`."""
    numbers = inherit(2)
    if not numbers:
        return
    channel, port = (socket.socket(fileno=each) for each in numbers)
    try:
        lock_down_plane(())
    except (OSError, KeyholeError) as error:
        channel.send(json.dumps({"failed": str(error)[:1000]}).encode())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(channel, port))


async def _serve(channel: socket.socket, port: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    authority = RemoteAuthority()
    listener = RemoteListener(loop, port, authority)
    made = ParcelChannel(loop, channel, listener.heard, listener.over.set)
    listener.open(made)
    made.send({"ready": authority.fingerprint.hex()})
    await listener.over.wait()


if __name__ == "__main__":
    main()
