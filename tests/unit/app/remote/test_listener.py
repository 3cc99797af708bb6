"""The TLS port for remote doors: who is let in, once at a time, and for how long (I5, I9, I12).

The listener is real, with its TLS and its channel; this test is the receiver beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.remote.invitation import Invitation
from keyhole.app.remote.known_door import CONNECTS_AT_ONCE, CONNECTS_PER_SECOND
from keyhole.app.remote.listener import MAX_ENROLMENT, RemoteListener
from keyhole.app.remote.parcel_channel import ParcelChannel
from keyhole.app.remote.unknown_visitors import MAX_UNKNOWN, MAX_UNKNOWN_OF_ADDRESS
from keyhole.certs.remote_authority import DoorKey, RemoteAuthority
from tests.rigs.waiting import PATIENCE, until_in_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A listener, and this end of its channel."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.authority = RemoteAuthority()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.listener = RemoteListener(loop, self._socket, self.authority)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.told: list[dict[str, Any]] = []
        self.turned_away: list[dict[str, Any]] = []
        self._theirs = ParcelChannel(loop, theirs, self.listener.heard, self.listener.over.set)
        self.channel = ParcelChannel(loop, ours, lambda m, _: self._hear(m), lambda: None)
        self.listener.open(self._theirs)
        self.relays: list[socket.socket] = []
        self._writers: list[asyncio.StreamWriter] = []

    def _hear(self, message: dict[str, Any]) -> None:
        (self.turned_away if "turned_away" in message else self.told).append(message)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    async def connect(self, context: ssl.SSLContext) -> Line:
        """A client, after its handshake."""
        line = await asyncio.open_connection(*self.address, ssl=context, server_hostname="")
        self._writers.append(line[1])
        return line

    def invite(self, seconds: int = 60) -> Invitation:
        made = Invitation.make(self.authority.fingerprint)
        self.channel.send({"invite": made.digest, "seconds": seconds})
        return made

    async def enrol(self, invitation: Invitation, key: DoorKey) -> dict[str, Any]:
        """Use an invitation as a door does; the answer, or nothing."""
        reader, writer = await self.connect(key.context(None))
        asked = {"secret": invitation.secret.hex(), "key": key.public, "opening": {"label": "x"}}
        writer.write(json.dumps(asked).encode() + b"\n")
        seen = len(self.told)
        reading = asyncio.create_task(read(reader))
        await until_in_loop(lambda: reading.done() or len(self.told) > seen)
        if not reading.done():
            number = self.told[-1]["number"]
            self.channel.send({"enrolled": "s1", "number": number, "told": {"ca": "", "notes": []}})
        answer: dict[str, Any] = json.loads(await reading or b"{}")
        return answer

    async def admitted(self) -> tuple[DoorKey, str]:
        """A door that has enrolled: its key and its certificate."""
        key = DoorKey()
        return key, str((await self.enrol(self.invite(), key))["certificate"])

    async def served(self, key: DoorKey, certificate: str) -> Line | None:
        """A connection with a certificate, joined to a relay that greets it; None: it was cut."""
        seen = len(self.told)
        try:
            line = await self.connect(key.context(certificate))
            reading = asyncio.create_task(line[0].read(5))
            await until_in_loop(lambda: reading.done() or len(self.told) > seen)
            if "connect" in (self.told[-1] if len(self.told) > seen else {}):
                ours, theirs = socket.socketpair()
                ours.sendall(b"relay")
                self.relays.append(ours)
                told = self.told[-1]
                self.channel.send({"taken": told["connect"], "number": told["number"]}, theirs)
            return line if await reading == b"relay" else None
        except (ssl.SSLError, OSError):
            return None

    async def close(self) -> None:
        for each in self._writers:
            each.transport.abort()
        await until_in_loop(lambda: not len(self.listener.unknown), 0.01)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.channel.close()
        self._theirs.close()
        for relay in self.relays:
            relay.close()


async def read(reader: asyncio.StreamReader) -> bytes:
    """All until the end; a reset is an end."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(OSError, ssl.SSLError):
            return await reader.read()
    return b""


def on_port(work: Callable[[Port], Awaitable[None]]) -> Callable[[], None]:
    """A test on a loop, with a listener."""

    async def main() -> None:
        port = Port()
        try:
            await work(port)
        finally:
            await port.close()

    def test() -> None:
        asyncio.run(main())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@on_port
async def test_a_code_works_once_and_a_certificate_connects(port: Port) -> None:
    invitation, key = port.invite(), DoorKey()
    answer = await port.enrol(invitation, key)
    assert answer["session"] == "s1"
    assert await port.served(key, answer["certificate"])
    assert await port.enrol(invitation, DoorKey()) == {}


@on_port
async def test_whatever_is_not_an_enrolment_is_met_with_silence(port: Port) -> None:
    """The port tells no more than the local one: not whether a code was wrong, late or malformed.
    The invitation that follows is the control."""
    key = DoorKey()
    good = {"secret": "00", "key": key.public, "opening": {}}
    wrong: list[bytes] = [
        json.dumps(good).encode(),
        json.dumps(good | {"key": "none"}).encode(),
        json.dumps(good | {"opening": []}).encode(),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r",
        b"{}", b"[]", b"null", b"\xff", b"[" * 20000, b"x" * (MAX_ENROLMENT + 1),
    ]  # fmt: skip
    for each in wrong:
        reader, writer = await port.connect(key.context(None))
        writer.write(each + b"\n")
        assert await read(reader) == b"", each[:40]
    assert not port.told, "and the receiver hears of none but how many there were"
    assert "certificate" in await port.enrol(port.invite(), key)


@on_port
async def test_a_code_is_worth_nothing_after_its_time_i5(port: Port) -> None:
    late, early = port.invite(1), port.invite(60)
    await asyncio.sleep(1.1)
    assert await port.enrol(late, DoorKey()) == {}
    assert "certificate" in await port.enrol(early, DoorKey()), "the control"


@on_port
async def test_an_invitation_with_a_key_that_cannot_be_signed_is_spent_i9(port: Port) -> None:
    invitation = port.invite()
    reader, writer = await port.connect(DoorKey().context(None))
    asked = {"secret": invitation.secret.hex(), "key": "AAAA", "opening": {}}
    writer.write(json.dumps(asked).encode() + b"\n")
    assert await read(reader) == b""
    assert await port.enrol(invitation, DoorKey()) == {}


@on_port
async def test_a_second_use_of_a_certificate_is_refused_and_told_i5(port: Port) -> None:
    key, certificate = await port.admitted()
    first = await port.served(key, certificate)
    assert first
    assert await port.served(key, certificate) is None
    await until_in_loop(lambda: "second" in port.told[-1])
    assert port.told[-1] == {"second": "s1", "address": "127.0.0.1", "times": 1}
    first[1].transport.abort()
    assert await asyncio.to_thread(port.relays[0].recv, 1) == b""
    assert await port.served(key, certificate), "the control: it is of use when the first is gone"


@on_port
async def test_a_certificate_is_worth_nothing_after_its_session_i5(port: Port) -> None:
    key, certificate = await port.admitted()
    line = await port.served(key, certificate)
    assert line
    port.channel.send({"gone": "s1"})
    assert await read(line[0]) == b"", "the connection is cut at once"
    assert await port.served(key, certificate) is None


@on_port
async def test_a_connection_ends_with_its_certificate_and_a_renewed_one_goes_on_i5(
    port: Port,
) -> None:
    port.channel.send({"lifetime": 2})
    await until_in_loop(lambda: port.authority.lifetime == timedelta(seconds=2))
    key, certificate = await port.admitted()
    begun = asyncio.get_running_loop().time()
    line = await port.served(key, certificate)
    assert line
    port.channel.send({"renew": "s1", "key": key.public})
    await until_in_loop(lambda: "renewed" in port.told[-1])
    renewed = port.told[-1]["certificate"]
    assert await read(line[0]) == b""
    lasted = asyncio.get_running_loop().time() - begun
    assert 0.9 < lasted < 3.5, "it was cut when the renewed one ended, which was not renewed again"
    for each in (certificate, renewed):
        assert await port.served(key, each) is None, "the handshake refuses what has ended"


@on_port
async def test_only_the_last_two_certificates_of_a_door_are_of_use_i5(port: Port) -> None:
    key, first = await port.admitted()
    kept = [first]
    for _ in range(2):
        port.channel.send({"renew": "s1", "key": key.public})
        await until_in_loop(lambda: port.told[-1].get("certificate", first) not in kept)
        kept.append(port.told[-1]["certificate"])
    assert await port.served(key, first) is None
    for each in kept[1:]:
        line = await port.served(key, each)
        assert line, "a renewed one may be lost on the way, so the one before it still works"
        line[1].transport.abort()
        assert await asyncio.to_thread(port.relays[-1].recv, 1) == b""


@on_port
async def test_connections_of_one_address_that_say_nothing_have_a_bound_i12(port: Port) -> None:
    held = [await port.connect(DoorKey().context(None)) for _ in range(MAX_UNKNOWN_OF_ADDRESS)]
    with pytest.raises((OSError, ssl.SSLError)):
        await port.connect(DoorKey().context(None))
    held[0][1].transport.abort()
    await until_in_loop(lambda: len(port.listener.unknown) < MAX_UNKNOWN_OF_ADDRESS)
    assert await port.connect(DoorKey().context(None)), "the control: one left"


@on_port
async def test_answers_for_visitors_that_have_left_are_dropped(port: Port) -> None:
    ours, theirs = socket.socketpair()
    port.relays.append(ours)
    port.channel.send({"taken": "s1", "number": 77}, theirs)
    port.channel.send({"refused": "late", "number": 77})
    port.channel.send({"renew": "nobody", "key": DoorKey().public})
    assert await asyncio.to_thread(ours.recv, 1) == b""
    key, certificate = await port.admitted()
    assert await port.served(key, certificate)


@on_port
async def test_uses_of_a_certificate_in_use_are_counted_in_one_event_a_second_i8(
    port: Port,
) -> None:
    key, certificate = await port.admitted()
    assert await port.served(key, certificate)
    for _ in range(8):
        with contextlib.suppress(OSError, ssl.SSLError):
            await read((await port.connect(key.context(certificate)))[0])
    found: list[int] = []

    def counted() -> bool:
        found[:] = [each["times"] for each in port.told if "second" in each]
        return sum(found) == 8

    await until_in_loop(counted)
    assert len(found) < 8


@on_port
async def test_a_door_that_connects_in_a_loop_is_let_in_now_and_then_i12(port: Port) -> None:
    """The first ones are the control."""
    key, certificate = await port.admitted()
    served, begun = [], asyncio.get_running_loop().time()
    for _ in range(CONNECTS_AT_ONCE + 10):
        line = await port.served(key, certificate)
        served.append(line is not None)
        if line is not None:
            line[1].transport.abort()
            assert await asyncio.to_thread(port.relays[-1].recv, 1) == b""
    seconds = asyncio.get_running_loop().time() - begun
    assert all(served[:CONNECTS_AT_ONCE])
    assert sum(served) <= CONNECTS_AT_ONCE + CONNECTS_PER_SECOND * (seconds + 1)
    assert not all(served)


@on_port
async def test_a_closed_session_lets_its_certificate_in_no_more_i5(port: Port) -> None:
    """Its connection goes on, so that the door can say how its sandbox ended."""
    key, certificate = await port.admitted()
    line = await port.served(key, certificate)
    assert line
    port.channel.send({"closed": "s1"})
    port.relays[-1].sendall(b"still")
    assert await line[0].readexactly(5) == b"still"
    line[1].transport.abort()
    assert await asyncio.to_thread(port.relays[-1].recv, 1) == b""
    assert await port.served(key, certificate) is None


@on_port
async def test_whoever_has_many_addresses_and_says_nothing_keeps_no_door_out_i12(
    port: Port,
) -> None:
    """Slow loris from more addresses than all together have places: the oldest make room."""
    loop = asyncio.get_running_loop()
    held: list[socket.socket] = []
    for number in range(MAX_UNKNOWN + MAX_UNKNOWN_OF_ADDRESS):
        sock = socket.socket()
        sock.bind((f"127.0.2.{number // MAX_UNKNOWN_OF_ADDRESS + 1}", 0))
        sock.setblocking(False)
        await loop.sock_connect(sock, port.address)
        held.append(sock)
        if number % 2:
            await loop.sock_sendall(sock, b"\x16\x03\x01")
    await until_in_loop(lambda: len(port.listener.unknown) == MAX_UNKNOWN)
    key, certificate = await port.admitted()
    assert await port.served(key, certificate)
    async with asyncio.timeout(PATIENCE):
        assert await loop.sock_recv(held[0], 1) == b"", "the oldest was ended"
    with pytest.raises(BlockingIOError):
        held[-1].recv(1)  # the control: the newest was not
    for each in held:
        each.close()


@on_port
async def test_codes_and_certificates_that_are_turned_away_are_counted_and_told_i8(
    port: Port,
) -> None:
    """A made-up code, a foreign certificate, and one whose session is gone. The control: neither a
    door that is let in nor a visitor that shows nothing is told of."""
    key, certificate = await port.admitted()
    line = await port.served(key, certificate)
    assert line
    silent = await port.connect(DoorKey().context(None))
    silent[1].transport.abort()
    wrong = Invitation(port.authority.fingerprint, bytes(16))
    for _ in range(3):
        assert await port.enrol(wrong, DoorKey()) == {}
    port.channel.send({"gone": "s1"})
    assert await read(line[0]) == b""
    assert await port.served(key, certificate) is None
    await until_in_loop(lambda: len(port.turned_away) == 2)
    told = sorted((each["turned_away"], each["of"], each["times"]) for each in port.turned_away)
    assert told == [("certificate-not-valid", "s1", 1), ("no-such-code", "", 3)]
    assert {each["address"] for each in port.turned_away} == {"127.0.0.1"}
    other = RemoteAuthority().issue("s1", key.public, datetime.now(UTC))
    assert await port.served(key, other.pem) is None
    await until_in_loop(lambda: len(port.turned_away) == 3)
    assert port.turned_away[-1]["turned_away"] == "certificate-not-valid"
    assert port.turned_away[-1]["of"] == "", "nobody here has signed its name"
