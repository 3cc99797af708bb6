"""A client of MCP by the official SDK: what it finds at each address is printed as JSON.

Started as `mcp_client.py HOST [json]`; with `json`, at that one address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import mcp_types as types  # type: ignore[import-not-found]
from mcp import ClientSession  # type: ignore[import-not-found]
from mcp.client.client import Client  # type: ignore[import-not-found]
from mcp.client.sse import sse_client  # type: ignore[import-not-found]
from mcp.client.streamable_http import streamable_http_client  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Awaitable

BASE = f"https://{sys.argv[1]}"
QUESTIONS = ("roots", "sampling", "elicitation")
"""What the server may ask of this client, which answers each."""

asked: list[str] = []
"""What has reached it of such questions."""


def said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def attempt(work: Awaitable[Any]) -> str:
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - told to the test
        return said(error)
    parts = getattr(result, "content", None) or getattr(result, "contents", None) or ()
    return " ".join(getattr(part, "text", "") for part in parts)


async def look(session: Any) -> dict[str, object]:  # noqa: ANN401 - of either generation
    call, read = session.call_tool, session.read_resource
    return {
        "tools": sorted(tool.name for tool in (await session.list_tools()).tools),
        "resources": [str(each.uri) for each in (await session.list_resources()).resources],
        "prompts": [each.name for each in (await session.list_prompts()).prompts],
        "list": await attempt(call("list_issues", {})),
        "get": await attempt(call("get_issue", {"number": 7, "team": "ENG"})),
        "get other": await attempt(call("get_issue", {"number": 7, "team": "HR"})),
        "delete": await attempt(call("delete_issue", {"number": 7})),
        **{what: await attempt(call("ask_client", {"what": what})) for what in QUESTIONS},
        "read": await attempt(read("docs://guide/start")),
        "read other": await attempt(read("docs://internal/payroll")),
        "prompt other": await attempt(session.get_prompt("take_over", {})),
    }


async def list_roots(_context: object) -> types.ListRootsResult:
    asked.append("roots")
    return types.ListRootsResult(roots=[types.Root(uri="file:///project")])


async def sample(_context: object, params: Any) -> types.CreateMessageResult:  # noqa: ANN401
    asked.append(params.messages[0].content.text)
    text = types.TextContent(text="the model's answer")
    return types.CreateMessageResult(role="assistant", model="m", content=text)


async def elicit(_context: object, params: Any) -> types.ElicitResult:  # noqa: ANN401
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={"word": "the person's answer"})


ANSWERS = {
    "list_roots_callback": list_roots,
    "sampling_callback": sample,
    "elicitation_callback": elicit,
}


async def with_session(transport: Any) -> dict[str, object]:  # noqa: ANN401
    async with (
        transport as (read, write),
        ClientSession(read, write, **ANSWERS) as session,
    ):
        await session.initialize()
        return await look(session)


async def main() -> None:
    if sys.argv[2:] == ["json"]:
        one = await with_session(streamable_http_client(f"{BASE}/json"))
        print(json.dumps({"json": one}))  # noqa: T201
        return
    found: dict[str, object] = {
        "events": await with_session(streamable_http_client(f"{BASE}/mcp")),
        "json": await with_session(streamable_http_client(f"{BASE}/json")),
        "older": await with_session(sse_client(f"{BASE}/sse")),
    }
    async with Client(f"{BASE}/mcp", **ANSWERS) as client:
        found["modern"] = await look(client)
        found["version"] = str(client.protocol_version)
    print(json.dumps(found | {"asked": asked}))  # noqa: T201


asyncio.run(main())
