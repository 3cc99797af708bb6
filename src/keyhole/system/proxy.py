"""A corporate HTTP proxy between the gateway and the origin: CONNECT, and nothing else.

Called by `dialler.py`. No credential is sent: the policy holds none for a proxy.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason
from keyhole.model.errors import UpstreamFailed
from keyhole.model.host import Host, HostPattern

if TYPE_CHECKING:
    import asyncio
    import socket

    from keyhole.model.decision import AddressDecision

MAX_REPLY = 16 * 1024
"""Bytes of a proxy's answer; an HTML page after the head is not read."""

MAX_WORDS = 100
"""Characters of a proxy's reason that are repeated."""

_HTTP_PORT = 80
_READ = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([\x20-\x7e]*))?")


class ProxyAddress(Struct, frozen=True):
    """The address of the proxy."""

    host: Host
    port: int


def parse(url: str) -> ProxyAddress:
    """Parse a URL that the policy's schema has accepted."""
    scheme, _, rest = url.partition("://")
    if scheme != "http":
        raise proxy_failed("a proxy that is itself reached by https is not supported yet")
    pattern = HostPattern.parse(rest.rstrip("/"))
    return ProxyAddress(pattern.host, pattern.port if ":" in rest else _HTTP_PORT)


async def connect(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, decision: AddressDecision
) -> bytes:
    """Request a tunnel to the judged address; returns bytes that the origin has already sent."""
    address = decision.address
    ip = f"[{address}]" if address is not None and address.version == 6 else str(address)
    where = f"{ip}:{decision.port}"
    await loop.sock_sendall(sock, f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    reply = b""
    while b"\r\n\r\n" not in reply:
        more = await loop.sock_recv(sock, _READ)
        reply += more
        if not more or len(reply) > MAX_REPLY:
            raise proxy_failed("the proxy's answer has no end")
    head, _, early = reply.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if status is None:
        raise proxy_failed("the proxy does not speak HTTP")
    if not status[1].startswith(b"2"):
        words = (status[2] or b"")[:MAX_WORDS].decode("ascii")
        raise proxy_failed(f"the proxy answered {status[1].decode('ascii')} {words}".rstrip())
    return early


def proxy_failed(why: str) -> UpstreamFailed:
    """The message is for the person who configured it."""
    return UpstreamFailed(Reason.PROXY_FAILED, why)
