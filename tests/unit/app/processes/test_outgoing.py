"""Bytes on their way to another process wait in order, and keep nobody waiting (I12)."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from keyhole.app.processes.outgoing import OutgoingBytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MUCH = bytes(range(256)) * 16384


def on_a_loop(
    converse: Callable[[OutgoingBytes, socket.socket, list[str]], Awaitable[None]],
) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        lost: list[str] = []
        with ours, theirs:
            outgoing = OutgoingBytes(ours, lambda: lost.append("lost"))
            await converse(outgoing, theirs, lost)
            outgoing.close()

    asyncio.run(main())


def test_what_is_sent_before_there_is_a_loop_is_sent_with_it() -> None:
    async def converse(outgoing: OutgoingBytes, theirs: socket.socket, _: list[str]) -> None:
        outgoing.send(b"one ")
        assert len(outgoing) == 4
        outgoing.attach(asyncio.get_running_loop())
        outgoing.send(b"two")
        assert (theirs.recv(99), len(outgoing)) == (b"one two", 0)

    on_a_loop(converse)


def test_what_a_slow_reader_does_not_take_waits_and_comes_whole_and_in_order() -> None:
    async def converse(outgoing: OutgoingBytes, theirs: socket.socket, _: list[str]) -> None:
        loop = asyncio.get_running_loop()
        outgoing.attach(loop)
        outgoing.send(MUCH)
        outgoing.send(b"end")
        assert len(outgoing) > 0
        theirs.setblocking(False)
        taken = bytearray()
        while len(taken) < len(MUCH) + 3:
            taken += await loop.sock_recv(theirs, 1 << 20)
        assert taken == MUCH + b"end"
        assert len(outgoing) == 0

    on_a_loop(converse)


def test_the_end_of_the_other_process_is_told_once_and_nothing_piles_up() -> None:
    """I9."""

    async def converse(outgoing: OutgoingBytes, theirs: socket.socket, lost: list[str]) -> None:
        outgoing.attach(asyncio.get_running_loop())
        outgoing.send(b"heard")
        assert lost == []
        theirs.close()
        for _ in range(3):
            outgoing.send(MUCH)
        assert (lost, len(outgoing)) == (["lost"], 0)

    on_a_loop(converse)
