"""The remote listener: the process that has the gateway's TLS port for remote doors.

Started by `receiver.py`, locked down as a data plane before it accepts anyone. It knows who a
remote door is: by a session's certificate, or, once, by the code of an invitation. It holds the
authority that signs those certificates, and no secret of any service. What a door sends after that
it passes on, unread, to the session's relay. Whoever has neither learns nothing but that TLS is
spoken here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any, cast

import uvloop

from keyhole.app.processes.child import inherit
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.remote.invitation import invitation_digest
from keyhole.app.remote.parcel_channel import ParcelChannel
from keyhole.app.remote.pump import Pump
from keyhole.certs.remote_authority import RemoteAuthority
from keyhole.model.errors import KeyholeError, Malformed

HANDSHAKE_SECONDS = 10.0
"""Seconds for a handshake, and for the message of an enrolment after it."""

MAX_UNKNOWN = 256
"""Connections that have not shown who they are; more wait in the kernel's queue."""

MAX_UNKNOWN_OF_ADDRESS = 16
"""Of one address: others must find room (I12)."""

MAX_ENROLMENT = 64 * 1024
"""Bytes of an enrolment: placeholders of a hundred services."""

MAX_INVITATIONS = 256
ACCEPTS_PER_TICK = 16
_PAUSE_SECONDS = 0.1


class KnownDoor:
    """A remote door that may connect: its session, and its certificates."""

    def __init__(self) -> None:
        self.serials: deque[int] = deque(maxlen=2)
        """The last certificate, and the one before: a renewed one may be lost on the way."""
        self.ends = datetime.min.replace(tzinfo=UTC)
        self.visitor: RemoteVisitor | None = None


class RemoteVisitor(asyncio.Protocol):
    """A connection from outside, until it has a relay."""

    def __init__(self, listener: RemoteListener, address: str) -> None:
        self._listener = listener
        self.address = address
        self.session = ""
        self.transport: asyncio.Transport | None = None
        self.pump: Pump | None = None
        self._early = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._unknown = True
        listener.unknown[address] += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done: a certificate names a session, and nothing allows enrolment."""
        self.transport = cast("asyncio.Transport", transport)
        shown = cast("ssl.SSLObject", transport.get_extra_info("ssl_object")).getpeercert()
        if shown:
            self.transport.pause_reading()
            self._listener.identify(self, shown)
        else:
            self._asked = False
        self._timer = self._listener.loop.call_later(HANDSHAKE_SECONDS, self.abort)

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
        """The door has closed it."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is over, and its relay hears so."""
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
        """It has shown who it is, or is gone."""
        if self._unknown:
            self._unknown = False
            self._listener.unknown[self.address] -= 1
            if not self._listener.unknown[self.address]:
                del self._listener.unknown[self.address]

    def carry(self, pump: Pump, ends: datetime) -> None:
        """Pass bytes on from now on, until the certificate ends."""
        self.known()
        self.pump = pump
        self.expire_at(ends)
        if self.transport is not None:
            self.transport.resume_reading()

    def expire_at(self, ends: datetime) -> None:
        """The connection ends with the certificate, unless that is renewed."""
        if self._timer is not None:
            self._timer.cancel()
        left = (ends - datetime.now(UTC)).total_seconds()
        self._timer = self._listener.loop.call_later(max(0.0, left), self.abort)

    def answer(self, message: dict[str, object]) -> None:
        """The one answer of an enrolment."""
        if self.transport is not None:
            self.transport.write(json.dumps(message).encode() + b"\n")
            self.transport.close()

    def abort(self) -> None:
        """End it, without a word."""
        if self.transport is not None:
            self.transport.abort()


class RemoteListener:
    """The TLS port, who may use it, and who does."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        authority: RemoteAuthority,
    ) -> None:
        self.loop = loop
        self.unknown: Counter[str] = Counter()
        """Connections that have not shown who they are, by address."""
        self.over = asyncio.Event()
        self._sock = sock
        self._authority = authority
        self._channel: ParcelChannel | None = None
        self._invitations: dict[str, float] = {}
        self._doors: dict[str, KnownDoor] = {}
        self._waiting: dict[int, tuple[RemoteVisitor, str]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, channel: ParcelChannel) -> None:
        """Accept from now on."""
        self._channel = channel
        self._sock.setblocking(False)
        self.loop.add_reader(self._sock, self._acceptable)

    # ── accepting ─────────────────────────────────────────────────────────────────────────────────

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            if self.unknown.total() >= MAX_UNKNOWN:
                self._pause()
                return
            try:
                sock, peer = self._sock.accept()
            except OSError:
                self._pause()
                return
            address = str(peer[0])
            if self.unknown[address] >= MAX_UNKNOWN_OF_ADDRESS:
                sock.close()
                continue
            task = self.loop.create_task(self._greet(sock, RemoteVisitor(self, address)))
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
        except (OSError, ssl.SSLError, TimeoutError):
            visitor.known()
            sock.close()

    # ── who it is ─────────────────────────────────────────────────────────────────────────────────

    def identify(self, visitor: RemoteVisitor, shown: Any) -> None:  # noqa: ANN401 - of `ssl`
        """A certificate of ours: the session must live, and have no other connection."""
        session = dict(pair for name in shown["subject"] for pair in name).get("commonName", "")
        door = self._doors.get(session)
        # 1. A session that lives, and a certificate that was not replaced.
        if door is None or int(shown["serialNumber"], 16) not in door.serials:
            visitor.abort()
            return
        # 2. One use at a time: whoever stole a certificate shows, or finds it in use (I5).
        if door.visitor is not None:
            self._send({"second": session, "address": visitor.address})
            visitor.abort()
            return
        door.visitor, visitor.session = visitor, session
        self._ask(visitor, session, {"connect": session, "address": visitor.address})

    def enrol(self, visitor: RemoteVisitor, line: bytes) -> None:
        """The code of an invitation, which works once; every wrong one is met with silence."""
        try:
            asked = json.loads(line)
            digest = invitation_digest(str(asked["secret"]))
            key, opening = str(asked["key"]), dict(asked["opening"])
            expires = self._invitations.pop(digest)
            if expires < self.loop.time():
                raise Malformed("an invitation that has ended")
            self._authority.issue("x", key, datetime.now(UTC))  # a key that can be signed
        except (ValueError, TypeError, KeyError, RecursionError, KeyholeError):
            visitor.abort()
            return
        visitor.known()
        self._ask(visitor, key, {"enrol": digest, "opening": opening})

    def left(self, visitor: RemoteVisitor) -> None:
        """A connection is over."""
        door = self._doors.get(visitor.session)
        if door is not None and door.visitor is visitor:
            door.visitor = None

    # ── the receiver ──────────────────────────────────────────────────────────────────────────────

    def _ask(self, visitor: RemoteVisitor, about: str, message: dict[str, object]) -> None:
        self._number += 1
        self._waiting[self._number] = visitor, about
        self._send(message | {"number": self._number})

    def _send(self, message: dict[str, object]) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def heard(self, message: dict[str, Any], parcel: socket.socket | None) -> None:
        """A message of the receiver, which is trusted."""
        match message:
            case {"invite": str(digest), "seconds": int(seconds)}:
                self._invite(digest, seconds)
            case {"number": int(number)} if number not in self._waiting:
                if parcel is not None:
                    parcel.close()
            case {"enrolled": str(session), "number": int(number), "told": dict(told)}:
                visitor, key = self._waiting.pop(number)
                self._doors[session] = KnownDoor()
                pem = self._issue(session, key)
                visitor.answer(told | {"session": session, "certificate": pem})
            case {"refused": str(why), "number": int(number)}:
                self._waiting.pop(number)[0].answer({"refused": why})
            case {"taken": str(session), "number": int(number)} if parcel is not None:
                visitor, _ = self._waiting.pop(number)
                self._attach(visitor, session, parcel)
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
        door.serials.append(issued.serial)
        door.ends = issued.ends
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
