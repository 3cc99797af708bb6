"""The relay: the process on the gateway's host that represents one remote sandbox.

Started by `receiver.py` for an enrolment. It makes an empty network like a sandbox's, opens a
session for it over the control socket and hands over its door, as `keyhole run` does. So the
gateway identifies the remote sandbox by a listening socket, like any other (I5), and serves it with
the same code. Then the relay locks itself down. For each connection of the remote sandbox it opens
one in that network. The door is the only way out of the network (I2).

While the remote door is disconnected, the session waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvloop
from msgspec import convert

from keyhole.app.processes.child import inherit, stay_with_parent
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.processes.sandbox_channel import SandboxChannel
from keyhole.app.remote.carriage import MAX_QUESTIONS, MAX_STREAMS, Carriage, CarriedStream
from keyhole.app.remote.parcel_channel import MAX_PARCEL, ParcelChannel
from keyhole.app.session.end_reason import EndReason
from keyhole.app.session.session_register import SUPERVISOR
from keyhole.control.client import ControlClient
from keyhole.control.values import SessionRequest
from keyhole.model.errors import KeyholeError, Malformed, SetupFailed
from keyhole.sandbox import empty_network
from keyhole.sandbox.bwrap.namespaces import make_namespaces
from keyhole.sandbox.handover import SETUP_SECONDS
from keyhole.sandbox.programs import find_programs
from keyhole.system.syscalls import name_process
from keyhole.wire import dns
from keyhole.wire.carried_frames import CarriedFrame, FrameKind

if TYPE_CHECKING:
    from keyhole.control.values import OpenedSession

AWAY_SECONDS = 600.0
"""Seconds for which a session waits for its door to reconnect; then it ends."""

ANSWER_SECONDS = 5.0
"""Seconds for an answer of the gateway's name server."""

_RESOLVER = "192.0.2.53"
"""In that network every address reaches the gateway; sandboxes have this one in resolv.conf."""

_NAMES = ("tcp", "udp", "tcp6")

WORDS_PER_SECOND = 20
"""Messages of a remote door a second; one that sends more is cut off. The control process reads
them, and serves all sessions (I12)."""

_DOOR_NOTES = frozenset(
    "attach cover-lost exec exec-refused home-filling home-full host-may-execute".split()
)
"""Events that a remote door may record: those about its own sandbox. Attack: a thief of its key
records that the door connected from another address, or that it is a pod (I8)."""


class Relay:
    """Opens the connections of one remote sandbox in the session's network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, line: socket.socket) -> None:
        self._loop = loop
        self.over = asyncio.Event()
        self._channel: ParcelChannel | None = None
        self._line = SandboxChannel(loop, line, self._told, self.over.set)
        self._trunk: Carriage | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = self._connecting = 0
        self._words, self._words_since = 0, 0.0
        self._ended = self._closed = False
        self._away = loop.call_later(AWAY_SECONDS, self.over.set)

    def open(self, channel: ParcelChannel) -> None:
        """Begin to read messages of the receiver."""
        self._channel = channel

    def heard(self, message: dict[str, Any], parcel: socket.socket | None) -> None:
        """A message of the receiver: the door has connected, or an event of the door."""
        match message:
            case {"trunk": str(address)} if parcel is not None:
                self._start(self._join(parcel, address))
            case {"second": str(address), "times": int(times)}:
                self._line.say(
                    note="remote-refused", why="certificate-in-use", address=address, times=times
                )
            case {"certificate": str(pem)} if self._trunk is not None:
                self._trunk.say(certificate=pem)

    async def _join(self, parcel: socket.socket, address: str) -> None:
        trunk = Carriage(self._carried, self._word, self._lost)
        await self._loop.connect_accepted_socket(lambda: trunk, parcel)
        if trunk.over:
            return  # it was lost before it could be used; the session still waits
        self._trunk = trunk
        self._away.cancel()
        self._line.say(note="remote-connected", address=address)
        trunk.say(carried=True)

    def _lost(self, trunk: Carriage) -> None:
        if self._trunk is trunk:
            self._trunk = None
            self._away = self._loop.call_later(AWAY_SECONDS, self.over.set)
            self._line.say(note="remote-lost")
            if self._ended or self._closed:
                self.over.set()

    # ── words ─────────────────────────────────────────────────────────────────────────────────────

    def _told(self, message: dict[str, Any]) -> None:
        """Pass a message of the control process to the remote door, which holds the sandbox."""
        if self._trunk is not None:
            self._trunk.say(**message)
        if "closed" not in message:
            return
        # From now on the certificate is invalid. A door that stays connected can still report how
        # its sandbox ended.
        self._closed = True
        if self._channel is not None:
            self._channel.send({"closed": True})
        if self._trunk is None or message["closed"] in (EndReason.STOPPED, EndReason.EXPIRED):
            self._loop.call_later(ANSWER_SECONDS, self.over.set)

    def _word(self, message: dict[str, Any]) -> None:
        """A message of the door. Raises Malformed if the door sends too many."""
        now = self._loop.time()
        if now - self._words_since >= 1:
            self._words, self._words_since = 0, now
        self._words += 1
        if self._words > WORDS_PER_SECOND:
            raise Malformed("a door has too much to say")
        match message:
            case {"renew": str(key)} if self._channel is not None:
                self._channel.send({"renew": key})
            case {"ended": int(code)}:
                self._ended = True
                self._line.say(ended=code)
            case {"note": str(what)} if what in _DOOR_NOTES:
                self._line.say(**message)

    # ── connections and names ─────────────────────────────────────────────────────────────────────

    def _carried(self, trunk: Carriage, frame: CarriedFrame) -> None:
        match frame.kind:
            case FrameKind.OPEN:
                # The stream is added now, since the next frame may already have its first bytes.
                stream = trunk.open(frame.number)
                if self._connecting >= MAX_STREAMS:
                    # Attack: streams are opened and reset in a loop. A reset stream has ended,
                    # but its connection here may still be under way.
                    stream.connection_lost(ConnectionRefusedError())
                else:
                    self._connecting += 1
                    self._start(self._connect(stream, *frame.destination))
            case FrameKind.QUESTION if len(frame.payload) <= dns.MAX_MESSAGE:
                if self._questions < MAX_QUESTIONS:
                    self._questions += 1
                    self._start(self._resolve(trunk, frame))
            case _:
                raise Malformed("a door asks, and does not answer")

    def _start(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, stream: CarriedStream, address: str, port: int) -> None:
        meant = ipaddress.ip_address(address)
        sock: socket.socket | None = None
        try:
            if meant.is_loopback or not port:
                raise ConnectionRefusedError
            sock = socket.socket(socket.AF_INET if meant.version == 4 else socket.AF_INET6)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(sock, (address, port))
            await self._loop.connect_accepted_socket(lambda: stream, sock)
        except OSError:
            if sock is not None:
                sock.close()
            stream.connection_lost(ConnectionRefusedError())
        finally:
            self._connecting -= 1

    async def _resolve(self, trunk: Carriage, frame: CarriedFrame) -> None:
        """Ask one DNS question on its own socket, so that its answer cannot be another's."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect((_RESOLVER, empty_network.DNS_PORT))
                sock.send(frame.payload)
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await self._loop.sock_recv(sock, dns.MAX_MESSAGE + 1)
                if answer:
                    trunk.send(CarriedFrame(FrameKind.ANSWER, frame.number, answer))
        except (OSError, TimeoutError):
            pass  # the client asks again
        finally:
            self._questions -= 1

    def close(self) -> None:
        """End everything."""
        self._away.cancel()
        if self._trunk is not None:
            self._trunk.close()
        self._line.close()


def make_network() -> list[socket.socket]:
    """Enter an empty network, and return its door. Raises SetupFailed, OSError or RuntimeError."""
    nft = str(find_programs().nft)
    refusal = make_namespaces(frozenset())
    if refusal:
        raise SetupFailed(f"this host refuses the gateway a network namespace: {refusal}")
    empty_network.bring_up_loopback()
    empty_network.make_everything_local()
    empty_network.load_ruleset(nft)
    return empty_network.open_door_sockets()


def main() -> None:
    """Run as `python -c … CHANNEL`; the first message has its policy.

    The control socket answers only processes in the host's own network. So this process stays
    there and owns the session; its child enters the empty network and opens the connections.
    """
    numbers = inherit(1)
    if not numbers:
        return
    # If this gateway dies, the next one ends only processes of this name.
    name_process(SUPERVISOR)
    channel = socket.socket(fileno=numbers[0])
    told = json.loads(channel.recv(MAX_PARCEL) or b"{}")
    if not told:
        return
    child = 0
    try:
        client = ControlClient(Path(told["runtime"]))
        opened = client.open_session(convert(told["opening"], SessionRequest))
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, handed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if not child:
            ours.close()
            theirs.close()
            _carry(handed, channel, line)
        handed.close()
        line.close()
        _hand_over(client, opened, ours, theirs)
        answer = {"opened": opened.id, "ca": opened.ca, "notes": list(opened.notes)}
    except (KeyholeError, OSError) as error:
        if child:
            os.kill(child, signal.SIGKILL)
        answer = {"failed": str(error)[:1000]}
    with contextlib.suppress(OSError):
        channel.send(json.dumps(answer).encode())
    channel.close()
    if child:
        os.waitpid(child, 0)


def _hand_over(
    client: ControlClient, opened: OpenedSession, ours: socket.socket, theirs: socket.socket
) -> None:
    """Hand the door of the child's network to the gateway, and let the child continue."""
    with ours, theirs:
        ours.settimeout(SETUP_SECONDS)
        said, door, _, _ = socket.recv_fds(ours, MAX_PARCEL, len(_NAMES))
        try:
            if not door:
                raise SetupFailed(said.decode("utf-8", "replace") or "the relay ended")
            names = [*_NAMES[: len(door)], "line"]
            client.open_door(opened.id, names, [*door, theirs.fileno()])
        finally:
            for each in door:
                os.close(each)
        ours.send(b"go")


def _carry(handed: socket.socket, channel: socket.socket, line: socket.socket) -> NoReturn:
    """The child: runs in the empty network until the session ends."""
    code = 1
    try:
        if stay_with_parent():
            door = make_network()
            socket.send_fds(handed, [b"door"], [each.fileno() for each in door])
            for each in door:
                each.close()
            if handed.recv(2) == b"go":
                handed.close()
                lock_down_plane(())
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_serve(channel, line))
                code = 0
    except (KeyholeError, OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            handed.send(str(error).encode()[:1000])
    finally:
        os._exit(code)


async def _serve(channel: socket.socket, line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    relay = Relay(loop, line)
    relay.open(ParcelChannel(loop, channel, relay.heard, relay.over.set))
    await relay.over.wait()
    relay.close()


if __name__ == "__main__":
    main()
