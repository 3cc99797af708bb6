"""A connection to an origin that was kept: what it says unasked is nobody's answer (I4)."""

from __future__ import annotations

import asyncio
import socket

from keyhole.gateway.tls import OriginChannel
from keyhole.gateway.turn import BUDGET, Turn
from keyhole.gateway.upstream.origin import Origin, OriginConnection
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
            origin = OriginConnection(
                Origin(Host.parse("ok.example"), 443, {}),
                lambda user: OriginChannel(user, sock),
                loop.create_future(),
            )
            origin.channel.connection_made(Transport())
            turn = origin.channel.turn = Turn(loop)
            assert origin.is_free()
            turn.left = -BUDGET
            assert origin.is_free()  # the control: no bytes have come
            origin.channel.buffer_updated(5)
            assert not origin.is_free()

    asyncio.run(test())
