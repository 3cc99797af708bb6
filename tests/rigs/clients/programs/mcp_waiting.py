"""A client of MCP by the official SDK, which asks in one session until a token was renewed.

Started as `mcp_waiting.py HOST`; what it was told, and all that it can see, is printed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from mcp import ClientSession  # type: ignore[import-not-found]
from mcp.client.streamable_http import streamable_http_client  # type: ignore[import-not-found]

SECONDS = 40


def files() -> dict[str, str]:
    found = {}
    for folder, _, names in os.walk(os.environ["HOME"]):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, errors="replace") as file:
                found[path] = file.read()
    return found


async def main() -> None:
    told: list[str] = []
    async with (
        streamable_http_client(f"https://{sys.argv[1]}/mcp") as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends and len({text.split(":")[0] for text in told}) < 3:
            answer = await session.call_tool("tell_tokens", {})
            told.append(" ".join(part.text for part in answer.content))
            await asyncio.sleep(0.3)
    print(json.dumps({"told": told, "env": dict(os.environ), "files": files()}))  # noqa: T201


asyncio.run(main())
