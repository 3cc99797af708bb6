"""The outermost layer of the server: judges each request by its head, and adds headers to answers.

It is an ASGI application around another one, so that no route can be reached beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from keyhole.app.web.access import WebAccess

HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Embedder-Policy", "require-corp"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), usb=()"),
    ("Cache-Control", "no-store"),
)
"""Headers of every answer. None lets another origin read one (no CORS)."""

LOOPBACK = "127.0.0.1"
"""The only address that browsers of this host come from, as the server has the same."""

_ENCODED = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS)


class WebGuard:
    """Passes on requests of the page itself, and refuses all others."""

    def __init__(self, app: ASGIApp, access: WebAccess, foreign: Callable[[int], bool]) -> None:
        """`foreign` tells whether the peer at a port of loopback is another user's process."""
        self._app = app
        self._access = access
        self._foreign = foreign

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":  # no WebSocket is served
            return
        guarded = _with_headers(send)
        refused = self._refusal(scope)
        if refused is not None:
            await _answer(guarded, *refused)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        client = scope.get("client")
        # Attack: a client bound to 127.0.0.2, of which the kernel is asked as if it were 127.0.0.1.
        if client is None or client[0] != LOOPBACK or self._foreign(client[1]):
            return 403, "wrong-user"
        return self._access.refusal(scope["method"], scope["path"], scope["headers"])


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_ENCODED]
        await send(message)

    return guarded


async def _answer(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        # Otherwise one that is refused could keep its connection with a body that never ends.
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
