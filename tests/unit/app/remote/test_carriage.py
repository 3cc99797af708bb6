"""Many connections over one: windows, ends and losses, over real sockets (I2, I9, I12)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.remote.carriage import MAX_STREAMS, WINDOW, Carriage, CarriedStream
from keyhole.model.errors import Malformed
from keyhole.wire.carried_frames import CarriedFrame, FrameKind, credit_frame, open_frame
from tests.rigs.waiting import PATIENCE, until_in_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BULK = 5 * WINDOW
"""More than a window, in both directions."""


class Ends:
    """A door's end, a gateway's end, and the connections that they carry."""

    def __init__(self) -> None:
        self.words: list[dict[str, Any]] = []
        self.frames: list[CarriedFrame] = []
        self.lost: list[str] = []
        self.door = Carriage(self._heard, self.words.append, lambda _: self.lost.append("door"))
        self.gateway = Carriage(
            self._heard, self.words.append, lambda _: self.lost.append("gateway")
        )
        self._sockets: list[socket.socket] = []

    def _heard(self, _: Carriage, frame: CarriedFrame) -> None:
        self.frames.append(frame)

    async def join(self) -> None:
        """Connect both ends."""
        loop = asyncio.get_running_loop()
        one, other = self._pair()
        await loop.connect_accepted_socket(lambda: self.door, one)
        await loop.connect_accepted_socket(lambda: self.gateway, other)

    async def carry(self, number: int) -> tuple[socket.socket, socket.socket]:
        """A stream; the program's socket in the sandbox, and the origin's."""
        program, origin = await asyncio.gather(
            self._end(self.door.open(number)), self._end(self.gateway.open(number))
        )
        return program, origin

    async def _end(self, stream: CarriedStream) -> socket.socket:
        near, far = self._pair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: stream, near)
        return far

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        for each in pair:
            each.setblocking(False)
        self._sockets += pair
        return pair

    def close(self) -> None:
        for each in (self.door, self.gateway):
            each.close()
        for sock in self._sockets:
            sock.close()


async def receive(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer at the end or a reset."""
    data = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionResetError):
            while len(data) < size and (more := await loop.sock_recv(sock, 1 << 16)):
                data += more
    return data


def carried(work: Callable[[Ends], Awaitable[None]]) -> Callable[[], None]:
    """A test on a loop, with two ends that are joined."""

    async def main() -> None:
        ends = Ends()
        await ends.join()
        try:
            await work(ends)
        finally:
            ends.close()

    def test() -> None:
        asyncio.run(main())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@carried
async def test_bytes_and_ends_arrive_in_both_directions(ends: Ends) -> None:
    program, origin = await ends.carry(7)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(program, b"question")
    assert await receive(origin, 8) == b"question"
    program.shutdown(socket.SHUT_WR)
    assert await receive(origin, 1) == b"", "half closed"
    await loop.sock_sendall(origin, b"answer")
    origin.shutdown(socket.SHUT_WR)
    assert await receive(program, 99) == b"answer"
    await until_in_loop(lambda: not len(ends.door) and not len(ends.gateway))
    assert not ends.lost


@carried
async def test_a_reader_that_is_slow_holds_its_own_window_and_nothing_else_i12(
    ends: Ends,
) -> None:
    """Neither its bytes nor others' are lost; the program is not read beyond its window."""
    program, origin = await ends.carry(1)
    loop = asyncio.get_running_loop()
    sent = loop.create_task(loop.sock_sendall(program, b"x" * BULK))
    other_program, other_origin = await ends.carry(2)
    for _ in range(20):
        await loop.sock_sendall(other_program, b"y" * 1000)
        assert await receive(other_origin, 1000) == b"y" * 1000
    assert not sent.done(), "the control: more was sent than anybody has read"
    assert not ends.lost
    assert await receive(origin, BULK) == b"x" * BULK
    await sent
    program.close()
    assert await receive(origin, 1) == b""


@carried
async def test_an_end_comes_behind_all_bytes_that_the_window_held_back(ends: Ends) -> None:
    program, origin = await ends.carry(1)
    loop = asyncio.get_running_loop()
    sent = loop.create_task(loop.sock_sendall(program, b"x" * BULK))
    sent.add_done_callback(lambda _: program.shutdown(socket.SHUT_WR))
    await asyncio.sleep(0.05)
    assert await receive(origin, 2 * BULK) == b"x" * BULK
    await sent


@carried
async def test_a_lost_connection_resets_every_stream_i2(ends: Ends) -> None:
    program, origin = await ends.carry(1)
    ends.gateway.close()
    await until_in_loop(lambda: sorted(ends.lost) == ["door", "gateway"])
    for each in (program, origin):
        assert await receive(each, 1) == b""
    assert not len(ends.door)


@carried
async def test_a_stream_that_is_reset_on_one_side_is_reset_on_the_other(ends: Ends) -> None:
    program, origin = await ends.carry(1)
    await asyncio.get_running_loop().sock_sendall(origin, b"unread")
    await until_in_loop(lambda: _waiting(program) == 6)
    program.close()
    assert await receive(origin, 1) == b""
    await until_in_loop(lambda: not len(ends.door) and not len(ends.gateway))
    assert not ends.lost


def _waiting(sock: socket.socket) -> int:
    try:
        return len(sock.recv(99, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


BROKEN: dict[str, CarriedFrame] = {
    "bytes beyond the window": CarriedFrame(FrameKind.DATA, 1, b"x" * 32768),
    "more credit than was used": credit_frame(1, 1),
    "a message that is no object": CarriedFrame(FrameKind.WORD, 0, b"[]"),
    "a message that is no JSON": CarriedFrame(FrameKind.WORD, 0, b"{"),
    "a message that is deep": CarriedFrame(FrameKind.WORD, 0, b"[" * 32768),
    "bytes after the end": CarriedFrame(FrameKind.DATA, 2, b"x"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_frame_that_breaks_a_rule_ends_the_connection_i9(fault: str) -> None:
    async def main() -> None:
        ends = Ends()
        await ends.join()
        # Streams that are connected nowhere yet: what comes early is kept, up to the window.
        for number in (1, 2):
            ends.gateway.open(number)
        ends.door.send(CarriedFrame(FrameKind.END, 2))
        ends.door.send(CarriedFrame(FrameKind.DATA, 1, b"x" * 32768))
        ends.door.say(control=True)
        await until_in_loop(lambda: ends.words)
        assert not ends.lost, "the control: what keeps the rules passes"
        for _ in range(WINDOW // 32768):
            ends.door.send(BROKEN[fault])
        await until_in_loop(lambda: "gateway" in ends.lost)
        ends.close()

    asyncio.run(main())


def test_streams_have_a_bound_and_a_number_each_i9() -> None:
    async def main() -> None:
        carriage = Ends().gateway
        for number in range(MAX_STREAMS):
            carriage.open(number)
        with pytest.raises(Malformed):
            carriage.open(MAX_STREAMS)
        other = Ends().gateway
        other.open(1)
        with pytest.raises(Malformed):
            other.open(1)

    asyncio.run(main())


@carried
async def test_frames_of_a_stream_that_is_over_are_dropped(ends: Ends) -> None:
    """They were under way when it ended."""
    ends.door.send(CarriedFrame(FrameKind.DATA, 99, b"late"))
    ends.door.send(CarriedFrame(FrameKind.RESET, 99))
    ends.door.send(open_frame(5, "198.18.0.7", 443))
    await until_in_loop(lambda: ends.frames)
    assert [each.kind for each in ends.frames] == [FrameKind.OPEN]
    assert not ends.lost


def test_a_connection_without_a_beat_is_lost_i2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a cable is cut without a word: nothing comes, and no end either."""
    monkeypatch.setattr("keyhole.app.remote.carriage.BEAT_SECONDS", 0.05)
    # For less, a busy machine may keep this process from beating.
    monkeypatch.setattr("keyhole.app.remote.carriage.SILENT_SECONDS", 1.0)

    async def main() -> None:
        ends = Ends()
        await ends.join()
        await asyncio.sleep(1.5)
        assert not ends.lost, "the control: beats of both ends keep it"
        silent = Ends()
        one, _mute = silent._pair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: silent.door, one)
        await until_in_loop(lambda: silent.lost == ["door"], 0.01)
        for each in (ends, silent):
            each.close()

    asyncio.run(main())
