"""Connections that send nothing, or no whole head, keep nobody from the page."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyhole.app.web.bounded_connection import BoundedConnection
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

LIMIT = 8
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class HastyConnection(BoundedConnection):
    head_seconds = 0.05


async def _page(_: Scope, __: Receive, send: Send) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def _serving(kind: type[asyncio.Protocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(
        _page,
        http=kind,
        ws="none",
        lifespan="off",
        log_config=None,
        limit_concurrency=LIMIT,
        timeout_keep_alive=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        task = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


async def _status(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    line = await reader.readline()
    writer.close()
    return line.split()[1]


@pytest.mark.parametrize(("kind", "status"), [(BoundedConnection, b"200"), (H11Protocol, b"503")])
def test_silent_connections_give_way(kind: type[asyncio.Protocol], status: bytes) -> None:
    """I12. The server's own class is the control: it answers nobody."""

    async def scene() -> None:
        async with _serving(kind) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMIT)]
            assert await asyncio.wait_for(_status(port), PATIENCE) == status
            for _, writer in silent:
                writer.close()

    asyncio.run(scene())


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("begun", [b"", b"GET / HT"])
def test_a_head_that_takes_too_long_is_cut(served: bool, begun: bytes) -> None:
    async def scene() -> None:
        async with _serving(HastyConnection) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if served:
                writer.write(REQUEST)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            writer.write(begun)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()

    asyncio.run(scene())


def test_a_request_in_time_is_served_twice_on_one_connection() -> None:
    async def scene() -> None:
        async with _serving(BoundedConnection) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(REQUEST)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
                assert head.startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(scene())
