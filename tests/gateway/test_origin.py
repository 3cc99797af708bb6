"""A connection to an origin that was kept: what it says unasked is nobody's answer (I4)."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from keyhole.gateway.origin import Asker, Destination, Origin
from keyhole.gateway.turn import BUDGET, Turn
from keyhole.model.host import Host


class Transport(asyncio.Transport):
    """One that is open until it is aborted."""

    closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def is_closing(self) -> bool:
        return self.closing


def test_a_kept_connection_with_bytes_that_wait_for_a_turn_gets_no_request() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            origin = Origin(
                Destination(Host.parse("ok.example"), 443, {}), sock, loop.create_future()
            )
            origin.connection_made(Transport())
            turn = origin.turn = Turn(loop)
            assert origin.alive()
            turn.left = -BUDGET
            origin.buffer_updated(5)
            assert not origin.alive()
            # The control: bytes that a request waits for do not end the connection.
            origin.exchange = cast("Asker", object())
            assert origin.alive()

    asyncio.run(test())
