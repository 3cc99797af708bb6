"""The server of `keyhole web`: a socket of loopback, uvicorn, and the link for the browser."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import uvicorn

from keyhole.app.monitor.log_store import LogStore
from keyhole.app.run.port_claims import PortClaim
from keyhole.app.setup.redirect_file import RedirectFile
from keyhole.app.web.access import WebAccess
from keyhole.app.web.bounded_connection import BoundedConnection
from keyhole.app.web.guard import WebGuard
from keyhole.app.web.web_api import WebApi
from keyhole.model.errors import Refused
from keyhole.system.tcp_peer import tcp_peer_user, tells_tcp_peers

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.web.live_feed import LiveFeed

MAX_CONNECTIONS = 64
"""Connections at a time; a browser opens six."""

MAX_HEAD = 16 * 1024
"""Bytes of a request's head."""

IDLE_SECONDS = 10
GRACE_SECONDS = 1
"""How long requests may take to end when the server does."""


class WebServer:
    """One server; made, then awaited with `serve`."""

    def __init__(self, paths: HostPaths, port: int, search_path: str, policy: str) -> None:
        """Raises Refused if the port cannot be had."""
        self._paths = paths
        # Claimed: a sandbox whose policy names this port as the host's cannot reach it.
        self._socket, self._claim = _listen(port, paths.ports)
        self.port: int = self._socket.getsockname()[1]
        self.access = WebAccess(self.port)
        self._api = WebApi(self.access, paths, LogStore(paths.audit), search_path, policy)
        self._redirect = RedirectFile(paths.runtime, "web")
        self._api.opened = self._redirect.remove
        self._tells_peers = tells_tcp_peers()

    async def serve(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        config = uvicorn.Config(
            WebGuard(self._api.app(), self.access, self._is_foreign),
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD,
        )
        try:
            async with self._api.following():
                await _EndingServer(config, self._api.feed).serve(sockets=[self._socket])
        finally:
            self.close()

    def write_redirect(self, link: str) -> Path:
        """A file that leads a browser to the link, readable by this user alone."""
        return self._redirect.write(link)

    def _is_foreign(self, port: int) -> bool:
        """Whether another user's process has connected from this port, or one that the kernel does
        not know. With a kernel that never says, the token alone protects."""
        return self._tells_peers and tcp_peer_user(self.port, port) != os.geteuid()

    def close(self) -> None:
        """Give everything back."""
        self._redirect.remove()
        self._socket.close()
        self._claim.release()


class _EndingServer(uvicorn.Server):
    """Ends the streams of open pages first, which would otherwise be waited for."""

    def __init__(self, config: uvicorn.Config, feed: LiveFeed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._feed.stop()
        await super().shutdown(sockets)


def _listen(port: int, register: Path) -> tuple[socket.socket, PortClaim]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        return sock, PortClaim.listen(register, sock, MAX_CONNECTIONS)
    except OSError as error:
        sock.close()
        hint = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise Refused(f"port {port} of loopback cannot be had: {hint}") from None
