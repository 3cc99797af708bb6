"""Inside: grpcio's asyncio client, unmodified: `grpc_asyncio.py HOST`. Prints the results as JSON.

It takes its roots from where Keyhole tells grpcio to look for them, and the key from its variable.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

SERVICE = "/acme.v1.Echo/"
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]
KEY = (("authorization", f"Bearer {os.environ['ECHO_KEY']}"),)


async def trial(work: Awaitable[object]) -> object:
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        return [error.code().name, error.details()]


async def main() -> None:
    credentials = grpc.ssl_channel_credentials()
    async with grpc.aio.secure_channel(f"{sys.argv[1]}:443", credentials, OPTIONS) as channel:
        found = await calls(channel)
    sys.stdout.write(json.dumps(found))


async def calls(channel: Any) -> dict[str, Any]:  # noqa: ANN401 - grpcio has no types
    async def unary(method: str, body: bytes = b"hi", seconds: float = 20.0) -> str:
        call = channel.unary_unary(SERVICE + method)
        found: bytes = await call(body, timeout=seconds, metadata=KEY)
        return found.decode("latin-1")

    async def large() -> bool:
        body = bytes(range(256)) * 4096 * 8
        found = await channel.unary_unary(SERVICE + "Unary")(body, timeout=30, metadata=KEY)
        return bool(found == body)

    async def many() -> bool:
        call = channel.unary_stream(SERVICE + "Many")(b"1000", timeout=20, metadata=KEY)
        return [int(each) async for each in call] == list(range(1000))

    async def total() -> int:
        async def numbers() -> AsyncIterator[bytes]:
            for number in range(1000):
                yield b"%d" % number

        return int(
            await channel.stream_unary(SERVICE + "Total")(numbers(), timeout=20, metadata=KEY)
        )

    async def chat() -> list[str]:
        """Each message waits for the response to the one before it."""
        call = channel.stream_stream(SERVICE + "Chat")(timeout=20, metadata=KEY)
        heard = []
        for word in (b"one", b"two", b"three"):
            await call.write(word)
            heard.append((await call.read()).decode())
        await call.done_writing()
        return [*heard, (await call.code()).name]

    async def together() -> list[int]:
        """Forty calls at once, on one connection."""
        found = await asyncio.gather(*(unary("Unary", b"%d" % each) for each in range(40)))
        return [int(each) for each in found]

    async def deadline() -> list[object]:
        began = time.monotonic()
        said = await trial(unary("Slow", b"10", seconds=0.5))
        return [said, time.monotonic() - began < 5]

    async def cancelled() -> int:
        call = channel.stream_stream(SERVICE + "Chat")(timeout=20, metadata=KEY)
        await call.write(b"one")
        await call.read()
        before = (await unary("Log")).count("chat")
        call.cancel()
        until = time.monotonic() + 10
        while (count := (await unary("Log")).count("chat")) <= before:
            if time.monotonic() > until:
                break
        return count - before

    return {
        "unary": await trial(unary("Unary")),
        "given": await trial(unary("Key", b"plain")),
        "fail": await trial(unary("Fail")),
        "drop": await trial(unary("Drop")),
        "large": await trial(large()),
        "many": await trial(many()),
        "total": await trial(total()),
        "chat": await trial(chat()),
        "together": await trial(together()),
        "deadline": await deadline(),
        "cancelled": await cancelled(),
    }


asyncio.run(main())
