"""When what is sent leaves: what is small at the end of a turn, and nothing out of order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme

from keyhole.gateway.tlsside import PORTION, RECORD, SEND_AT_ONCE, TlsSide

NAME = "ok.example"
WITH_TLS = SEND_AT_ONCE + 1024
"""What the bytes of one write may be once they are encrypted."""


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.said: list[str] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken."""

    def is_closing(self) -> bool:
        return bool(self.said)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.said, "written after the end"
        self.writes.append(bytes(data))

    def write_eof(self) -> None:
        self.said.append("eof")

    def close(self) -> None:
        self.said.append("close")

    def abort(self) -> None:
        self.said.append("abort")


class Side(TlsSide):
    """One that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.deaf_after = -1

    def received(self, view: memoryview) -> None:
        self.heard.append(bytes(view))
        if len(self.heard) == self.deaf_after:
            self.close()


class Peer:
    """The client of a side, in memory."""

    def __init__(self, side: Side, wire: Wire, authority: trustme.CA) -> None:
        self.side, self.wire = side, wire
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context()
        authority.configure_trust(context)
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=NAME)

    def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._deliver()
                continue
            self._deliver()
            self.wire.writes.clear()
            return

    def _deliver(self) -> None:
        data = self._out.read()
        if data:
            self.side.get_buffer(len(data))[: len(data)] = data
            self.side.buffer_updated(len(data))
        self._in.write(b"".join(self.wire.writes))
        self.wire.writes.clear()

    def say(self, text: bytes) -> int:
        """Have the side get this at once; how many bytes it was, encrypted."""
        self._tls.write(text)
        size = self._out.pending
        self._deliver()
        return size

    def read(self) -> bytes:
        """What the writes say, decrypted."""
        self._in.write(b"".join(self.wire.writes))
        text = b""
        while True:
            try:
                piece = self._tls.read(RECORD)
            except ssl.SSLWantReadError:
                return text
            if not piece:
                return text
            text += piece


Story = Callable[[Side, Wire, Peer], Awaitable[None]]


@pytest.fixture
def play() -> Callable[[Story], None]:
    """Have a story happen on a connection whose handshake is done."""

    def run(story: Story) -> None:
        async def begin() -> None:
            authority = trustme.CA()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(NAME).configure_cert(context)
            side, wire = Side(), Wire()
            side.connection_made(wire)
            side.begin(context)
            peer = Peer(side, wire, authority)
            peer.shake_hands()
            assert side.secure
            await story(side, wire, peer)

        asyncio.run(begin())

    return run


def test_small_pieces_of_one_turn_leave_in_one_write(play: Callable[[Story], None]) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.send(b"one ")
        side.send(b"two")
        assert not wire.writes
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        assert peer.read() == b"one two"
        wire.writes.clear()
        # and those of the next turn in the next
        side.send(b"three")
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        assert peer.read() == b"three"

    play(story)


def test_a_large_piece_leaves_at_once_behind_what_was_small(
    play: Callable[[Story], None],
) -> None:
    large = bytes(range(256)) * 1024

    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.send(b"small ")
        side.send(large, b"before ")
        assert peer.read() == b"small before " + large
        assert max(map(len, wire.writes)) <= WITH_TLS
        count = len(wire.writes)
        await asyncio.sleep(0)
        assert len(wire.writes) == count

    play(story)


def test_many_small_pieces_do_not_pile_up(play: Callable[[Story], None]) -> None:
    """I9: what waits for the end of a turn is bounded, whatever a client asks for in it."""
    pieces = [bytes([65 + i]) * RECORD for i in range(20)]

    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        for piece in pieces:
            side.send(piece)
        assert len(wire.writes) > 1
        await asyncio.sleep(0)
        assert max(map(len, wire.writes)) <= WITH_TLS
        assert peer.read() == b"".join(pieces)

    play(story)


@pytest.mark.parametrize("end", ["abort", "close", "part", "eof_received"])
def test_what_waits_leaves_before_the_end(play: Callable[[Story], None], end: str) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.send(b"last words")
        getattr(side, end)()
        assert peer.read() == b"last words"
        count = len(wire.writes)
        await asyncio.sleep(0)
        assert len(wire.writes) == count

    play(story)


def test_nothing_is_sent_over_a_connection_that_is_gone(play: Callable[[Story], None]) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.send(b"too late")
        side.connection_lost(None)
        await asyncio.sleep(0)
        assert not wire.writes
        side.send(b"later still")
        await asyncio.sleep(0)
        assert not wire.writes

    play(story)


def test_more_than_a_portion_comes_out_whole_and_in_order(play: Callable[[Story], None]) -> None:
    text = bytes(range(256)) * (PORTION * 3 // 2 // 256)

    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        assert PORTION < peer.say(text) <= 2 * PORTION
        assert b"".join(side.heard) == text
        assert len(side.heard) > 1
        assert peer.say(b"and more") < PORTION
        assert side.heard[-1] == b"and more"

    play(story)


def test_who_has_closed_hears_nothing_of_the_next_portion(play: Callable[[Story], None]) -> None:
    text = bytes(PORTION * 3 // 2)

    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.deaf_after = 1
        peer.say(text)
        assert len(side.heard) == 1
        assert wire.said == ["close"]

    play(story)
