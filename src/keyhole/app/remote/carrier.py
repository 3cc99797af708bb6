"""The carrier: the process beside a remote sandbox that serves its door.

Started by `remote_run.py`. It accepts connections and DNS questions on the door's sockets, and
carries their bytes to the gateway over TLS, unread. It makes no decision. After the enrolment it is
the only process with the key of the session's certificate, and it is locked down. When the
connection to the gateway is lost, it resets every connection of the sandbox and refuses new ones
until it has reconnected (I2).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

import uvloop

from keyhole.app.processes.child import inherit
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.processes.sandbox_channel import MAX_MESSAGE, SandboxChannel
from keyhole.app.remote.carriage import MAX_QUESTIONS, MAX_STREAMS, Carriage
from keyhole.certs.remote_authority import DoorKey, fingerprint_of, lifetime_of
from keyhole.model.errors import KeyholeError, Malformed
from keyhole.wire import dns
from keyhole.wire.carried_frames import CarriedFrame, FrameKind, open_frame

if TYPE_CHECKING:
    from keyhole.app.remote.carriage import CarriedStream

CONNECT_SECONDS = 15.0
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reconnect; the last pause is repeated."""

LEAST_RENEW_SECONDS = 1.0
"""The shortest pause between two requests for a certificate."""

QUESTION_SECONDS = 6.0
"""Seconds for which the address that sent a DNS question is remembered."""

ACCEPTS_PER_TICK = 16
_PAUSE_SECONDS = 0.05
_IP_PKTINFO = 8
_PKTINFO = struct.Struct("@I4s4s")
_ANCILLARY = socket.CMSG_SPACE(_PKTINFO.size)


class Carrier:
    """Carries the connections and DNS questions of one door."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, told: dict[str, Any], door: list[socket.socket]
    ) -> None:
        self._loop = loop
        self.over = asyncio.Event()
        self._line: SandboxChannel | None = None
        self._address = str(told["host"]), int(told["port"])
        self._fingerprint = bytes.fromhex(told["fingerprint"])
        self._key, self._certificate = DoorKey(told["key"].encode()), str(told["certificate"])
        self._trunk: Carriage | None = None
        self._carried = self._was_lost = self._ending = False
        self._number = 0
        self._renewal: asyncio.TimerHandle | None = None
        self._asked: dict[int, tuple[Any, list[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._udp = door[1]
        self._listeners = [each for each in door if each is not self._udp]
        for each in door:
            each.setblocking(False)

    def open(self, line: SandboxChannel) -> None:
        """Begin to serve the door."""
        self._line = line
        for each in self._listeners:
            self._loop.add_reader(each, self._acceptable, each)
        self._loop.add_reader(self._udp, self._asked_name)

    # ── the connection ────────────────────────────────────────────────────────────────────────────

    async def connect_for_ever(self) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        tries = 0
        while not self.over.is_set():
            lost = asyncio.Event()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._connect(lost)
                await lost.wait()
            except (OSError, ssl.SSLError, TimeoutError, Malformed):
                pass
            if self._carried and not self._ending:
                tries, self._carried, self._was_lost = 0, False, True
                self._say(
                    say="the connection to the gateway is lost: nothing passes until it is back"
                )
            self._trunk = None
            await asyncio.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1

    async def _connect(self, lost: asyncio.Event) -> None:
        context = self._key.context(self._certificate)
        trunk = Carriage(self._heard, self._word, lambda _: lost.set())
        transport, _ = await self._loop.create_connection(
            lambda: trunk, *self._address, ssl=context
        )
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        # Checked before anything is sent: another server must learn nothing (I4).
        if not hmac.compare_digest(fingerprint_of(shown or b""), self._fingerprint):
            trunk.close()
            raise Malformed("another server than the gateway of the invitation")
        self._trunk = trunk

    def _word(self, message: dict[str, Any]) -> None:
        match message:
            case {"carried": True}:
                self._carried = True
                if self._was_lost:
                    self._was_lost = False
                    self._say(say="the connection to the gateway is back")
                self._say(carried=True)
                self._renew()
            case {"certificate": str(pem)}:
                self._certificate = pem
                self._renew_later()
            case _:
                self._say(**message)

    def _renew(self) -> None:
        """Ask for a new certificate now, and whenever half of its lifetime is over."""
        if self._trunk is not None:
            self._trunk.say(renew=self._key.public)
        self._renew_later()

    def _renew_later(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        pause = max(LEAST_RENEW_SECONDS, lifetime_of(self._certificate).total_seconds() / 2)
        self._renewal = self._loop.call_later(pause, self._renew)

    def _say(self, **message: object) -> None:
        if self._line is not None:
            self._line.say(**message)

    def told(self, message: dict[str, Any]) -> None:
        """Pass a message from the process that holds the sandbox to the gateway."""
        self._ending = self._ending or "ended" in message
        if self._trunk is not None:
            self._trunk.say(**message)

    # ── connections and names ─────────────────────────────────────────────────────────────────────

    def _acceptable(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            trunk = self._trunk if self._carried else None
            if trunk is not None and len(trunk) >= MAX_STREAMS:
                # In the kernel's queue, which is bounded too.
                self._loop.remove_reader(listener)
                self._loop.call_later(
                    _PAUSE_SECONDS, self._loop.add_reader, listener, self._acceptable, listener
                )
                return
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if trunk is None:
                sock.close()  # closed, not open (I2)
                continue
            self._take(trunk, sock)

    def _take(self, trunk: Carriage, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            address, port = sock.getsockname()[:2]
        except OSError:
            sock.close()
            return
        while True:
            self._number = self._number % (2**32 - 1) + 1
            if self._number not in trunk:
                break
        stream = trunk.open(self._number)
        trunk.send(open_frame(self._number, str(address).partition("%")[0], port))
        task = self._loop.create_task(self._attach(stream, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attach(self, stream: CarriedStream, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: stream, sock)
        except OSError as error:
            sock.close()
            stream.connection_lost(error)

    def _asked_name(self) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            try:
                data, ancillary, _, peer = self._udp.recvmsg(dns.MAX_MESSAGE + 1, _ANCILLARY)
            except OSError:
                return
            trunk = self._trunk if self._carried else None
            if trunk is None or not data or len(data) > dns.MAX_MESSAGE:
                continue
            if len(self._asked) >= MAX_QUESTIONS:
                continue  # the client asks again
            self._number = self._number % (2**32 - 1) + 1
            number = self._number
            self._asked[number] = peer, ancillary
            self._loop.call_later(QUESTION_SECONDS, self._asked.pop, number, None)
            trunk.send(CarriedFrame(FrameKind.QUESTION, number, data))

    def _heard(self, _: Carriage, frame: CarriedFrame) -> None:
        if frame.kind is not FrameKind.ANSWER:
            raise Malformed("a gateway answers, and does not ask")
        peer, ancillary = self._asked.pop(frame.number, (None, []))
        asked = next((d for _, kind, d in ancillary if kind == _IP_PKTINFO), None)
        if peer is None or asked is None or len(asked) != _PKTINFO.size:
            return
        # From the address that was asked: a client drops an answer from another one.
        source = _PKTINFO.pack(0, _PKTINFO.unpack(asked)[2], bytes(4))
        try:
            self._udp.sendmsg([frame.payload], [(socket.IPPROTO_IP, _IP_PKTINFO, source)], 0, peer)
        except OSError:
            return

    def close(self) -> None:
        """End everything."""
        self.over.set()
        if self._trunk is not None:
            self._trunk.close()


def main() -> None:
    """Run as `python -c … LINE`; the first message has the gateway, the key and the door."""
    numbers = inherit(1)
    if not numbers:
        return
    line = socket.socket(fileno=numbers[0])
    data, descriptors, _, _ = socket.recv_fds(line, MAX_MESSAGE, 3)
    if not data:
        return
    door = [socket.socket(fileno=each) for each in descriptors]
    try:
        lock_down_plane(())
    except (OSError, KeyholeError) as error:
        line.send(json.dumps({"failed": str(error)[:1000]}).encode())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(line, json.loads(data), door))


async def _serve(line: socket.socket, told: dict[str, Any], door: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    carrier = Carrier(loop, told, door)
    carrier.open(SandboxChannel(loop, line, carrier.told, carrier.over.set))
    connecting = loop.create_task(carrier.connect_for_ever())
    await carrier.over.wait()
    carrier.close()
    connecting.cancel()


if __name__ == "__main__":
    main()
