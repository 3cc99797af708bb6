"""Waits on loopback for the browser's redirect at the end of a login (RFC 8252 §7.3).

Used by `login_flow.py`, once for each login. Attacks: another user of this host connects first, or
sends a code of their own account; a web page tries ports. So the listener asks the kernel, and
accepts only this user's processes. It answers a redirect without this login's `state`, and keeps
waiting; the first one that has it ends the wait, and the port closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Self

from keyhole.model.errors import Refused
from keyhole.system.tcp_peer import tcp_peer_user, tells_tcp_peers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from keyhole.vault.oauth.grants import Returned

ADDRESS = "127.0.0.1"

MAX_HEAD = 16 * 1024
"""Bytes of a request: a browser sends about 2,000, and a code may have a thousand."""

MAX_CONNECTIONS = 16
"""Connections at a time: browsers open some in advance."""

HEAD_SECONDS = 10.0
"""Seconds for a whole request."""

_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Keyhole</title>'
    "<body><p>{}</p></body></html>"
)
_DONE = "You are logged in. Close this page and return to the terminal."
_REFUSED = "The login did not work. The terminal says why; close this page."
_FOREIGN = "This is not the login that Keyhole waits for."


class CallbackListener:
    """One port of loopback, for one login."""

    def __init__(self, name: str = ADDRESS, path: str = "/callback", port: int = 0) -> None:
        """`name` is loopback's name in the redirect. Raises Refused if the port is in use."""
        self._path = path
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Connections of a login a moment ago would block a fixed port for a minute. Two listeners
        # still exclude each other.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((ADDRESS, port))
            self._socket.listen(MAX_CONNECTIONS)
        except OSError:
            self._socket.close()
            raise Refused(
                f"port {port} of this host is in use, and the login needs it: another login may "
                "be open"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._authority = f"{name}:{self.port}"
        self._tells_peers = tells_tcp_peers()
        self._open = 0

    @property
    def redirect(self) -> str:
        """The URL that the browser is sent back to."""
        return f"http://{self._authority}{self._path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    async def wait(self, read: Callable[[str], Returned]) -> Returned:
        """Wait for the first redirect that belongs to this login. The caller sets a time limit."""
        found: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open += 1
            try:
                if self._open <= MAX_CONNECTIONS and self._is_own(writer):
                    async with asyncio.timeout(HEAD_SECONDS):
                        await self._answer(reader, writer, read, found)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # it asked too slowly, too much, or left
            finally:
                self._open -= 1
                writer.close()

        server = await asyncio.start_server(serve, sock=self._socket, limit=MAX_HEAD)
        try:
            return await found
        finally:
            server.close()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        read: Callable[[str], Returned],
        found: asyncio.Future[Returned],
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        query = self._query(head)
        # Each login accepts one redirect; a second one with the same state is treated as foreign.
        back = read(query) if query is not None and not found.done() else None
        if back is None or not back.ours:
            status, text = "404 Not Found", _FOREIGN
        else:
            status, text = "200 OK", _DONE if back.code else _REFUSED
        writer.write(_page(status, text))
        with contextlib.suppress(OSError):
            await writer.drain()
        if back is not None and back.ours and not found.done():
            found.set_result(back)

    def _query(self, head: str) -> str | None:
        """The query of a request for the callback; None for any other request."""
        first, *rows = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or words[0] != "GET" or not words[2].startswith("HTTP/1."):
            return None
        hosts = [row[5:].strip() for row in rows if row.lower().startswith("host:")]
        path, mark, query = words[1].partition("?")
        # Attack: DNS rebinding. A web page whose name resolves to loopback sends that name in Host.
        if path != self._path or not mark or hosts != [self._authority]:
            return None
        return query

    def _is_own(self, writer: asyncio.StreamWriter) -> bool:
        """Whether a process of this user has connected. If the kernel cannot tell, only `state`
        protects."""
        peer = writer.get_extra_info("peername")
        return not self._tells_peers or tcp_peer_user(self.port, peer[1]) == os.geteuid()


def _page(status: str, text: str) -> bytes:
    body = _PAGE.format(text).encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nContent-Security-Policy: default-src 'none'\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    ).encode() + body
