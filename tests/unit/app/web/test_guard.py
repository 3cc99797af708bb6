"""Who is let in, by the address and the user of the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from keyhole.app.web.access import WebAccess
from keyhole.app.web.guard import WebGuard

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

PORT = 8123


async def _page(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("client", "foreign", "status"),
    [
        (("127.0.0.1", 5), False, 200),  # control
        (("127.0.0.1", 5), True, 403),
        (("127.0.0.2", 5), False, 403),
        (None, False, 403),
    ],
)
def test_only_this_user_at_the_one_address_is_let_in(
    client: tuple[str, int] | None, foreign: bool, status: int
) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:%d" % PORT)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": client}
    guard = WebGuard(_page, WebAccess(PORT), lambda _: foreign)
    asyncio.run(guard(scope, receive, send))
    assert sent[0]["status"] == status
    assert ((b"connection", b"close") in sent[0]["headers"]) == (status == 403)
