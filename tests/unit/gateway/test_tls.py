"""When what is sent leaves: what is small at the end of a turn, and nothing out of order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme

from keyhole.gateway.tls import PORTION, PROTOCOLS, RECORD, SEND_AT_ONCE, ClientChannel
from keyhole.gateway.turn import Turn
from keyhole.model.errors import Misuse

NAME = "ok.example"
WITH_TLS = SEND_AT_ONCE + 1024
"""What the bytes of one write may be once they are encrypted."""


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.said: list[str] = []
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

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


class Side(ClientChannel):
    """A channel that keeps what it is told: it is its own user."""

    def __init__(self) -> None:
        super().__init__(self)
        self.heard: list[bytes] = []
        self.deaf_after = -1

    def secured(self) -> None: ...
    def insecure(self, error: ssl.SSLError) -> None: ...
    def ended(self) -> None: ...
    def unsecured(self, view: memoryview) -> None: ...
    def broken(self) -> None: ...
    def lost(self, exc: Exception | None) -> None: ...
    def caught_up(self) -> None: ...

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
            side.begin(context, PROTOCOLS)
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


def test_a_large_piece_leaves_at_once_behind_what_was_small(play: Callable[[Story], None]) -> None:
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


def test_what_is_queued_for_the_end_of_a_turn_leaves_then_and_in_order(
    play: Callable[[Story], None],
) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.flush_late()
        for piece in (b"a", b"b"):
            side.queue(piece)
            side.flush_late()
        assert not wire.writes
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        assert peer.read() == b"ab"
        wire.writes.clear()
        # Behind a small piece of this turn, and before one that does not wait.
        side.send(b"c")
        side.queue(b"d")
        side.flush_late()
        side.send(b"e")
        side.queue(b"f")
        side.flush_late()
        side.flush()
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        assert peer.read() == b"cdef"

    play(story)


@pytest.mark.parametrize("end", ["close", "part", "abort"])
def test_what_is_queued_for_the_end_of_a_turn_leaves_before_the_end(
    play: Callable[[Story], None], end: str
) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.queue(b"last words")
        side.flush_late()
        getattr(side, end)()
        assert peer.read() == b"last words"
        await asyncio.sleep(0)

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


@pytest.mark.parametrize("size", [RECORD, 100])
def test_a_large_read_that_ends_the_turn_is_the_last_before_the_next(
    play: Callable[[Story], None], size: int
) -> None:
    """I12. Control: after a small one, the transport goes on by itself."""

    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.turn = Turn(asyncio.get_running_loop())
        side.turn.left = 1e-9
        peer.say(bytes(size))
        assert b"".join(side.heard) == bytes(size)
        assert side.turn.left <= 0
        assert wire.reads is (size < RECORD)
        await asyncio.sleep(0)
        assert wire.reads
        assert side.turn.left > 0

    play(story)


def test_who_is_paused_stays_so_when_the_next_turn_begins(play: Callable[[Story], None]) -> None:
    async def story(side: Side, wire: Wire, peer: Peer) -> None:
        side.turn = Turn(asyncio.get_running_loop())
        side.turn.left = 1e-9
        peer.say(bytes(RECORD))
        side.pause()
        await asyncio.sleep(0)
        assert not wire.reads
        side.resume()
        assert wire.reads

    play(story)


def test_no_origin_is_spoken_to_by_a_context_that_does_not_verify() -> None:
    """I4. Control: with one that does, the handshake begins."""

    async def main() -> None:
        for verifies in (False, True):
            side, wire = Side(), Wire()
            side.connection_made(wire)
            context = ssl.create_default_context()
            if verifies:
                side.begin(context, PROTOCOLS, server_name=NAME)
                await asyncio.sleep(0)
                assert wire.writes
                continue
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with pytest.raises(Misuse, match="does not verify"):
                side.begin(context, PROTOCOLS, server_name=NAME)
            assert not wire.writes

    asyncio.run(main())


def test_a_fault_at_a_reset_is_no_reason_not_to_say_that_the_connection_is_gone() -> None:
    """I8: whatever waits for its end would wait for ever."""
    ends: list[Exception | None] = []

    class Faulty(Side):
        def broken(self) -> None:
            raise Misuse("a fault of ours")

        def lost(self, exc: Exception | None) -> None:
            ends.append(exc)

    async def main() -> None:
        side, gone = Faulty(), ConnectionResetError()
        side.connection_made(Wire())
        with pytest.raises(Misuse):
            side.connection_lost(gone)
        assert ends == [gone]
        assert side.user is None

    asyncio.run(main())
