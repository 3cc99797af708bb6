"""Judges the first bytes that a browser sends to a published port: only the port's own name passes.

The name is `SESSION.localhost`. Attack (DNS rebinding): a page of a foreign site, whose name now
resolves to 127.0.0.1, asks this port. Its requests have the foreign name in Host, or in the hello
of TLS, and are refused.

The first request of a connection is enough. A browser opens a connection for one origin and never
uses it for another (a connection is shared between names only in HTTP/2 over TLS, where one
certificate names both). A page chooses neither the first bytes of a connection nor Host, and bytes
that it hides in a body follow a head that was judged. A program of this host that lies about Host
could as well open the right name.
"""

from __future__ import annotations

import ipaddress
from http import HTTPStatus

from keyhole.gateway import refusal_messages
from keyhole.gateway.hello import judge_hello
from keyhole.http.field import END_OF_HEAD, END_SIZE, MAX_HEAD
from keyhole.http.named_host import named_host
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed
from keyhole.model.host import Host
from keyhole.wire.client_flight import ClientFlight
from keyhole.wire.stream_step import StreamStep

_HANDSHAKE = 22
"""The first byte of a hello (RFC 8446 §5.1); no method of HTTP begins with it."""

_STATUS = {
    Reason.FOREIGN_NAME: HTTPStatus.MISDIRECTED_REQUEST,
    Reason.UPSTREAM_UNREACHABLE: HTTPStatus.BAD_GATEWAY,
}


def published_name(session: str) -> Host:
    """The name under which the ports of a session are published."""
    return Host(f"{session}.localhost")


class PublishedGate:
    """Judges the first request, or the hello, of one connection."""

    __slots__ = ("_flight", "_held", "_host", "_inner", "_local", "_outer", "_refused")

    waits = True

    def __init__(self, host: Host, outer: int, inner: int) -> None:
        self._host = host
        self._outer = outer
        self._inner = inner
        self._held = bytearray()
        self._local = False
        self._refused: str | None = None
        """Its decision on the head; empty if it may pass."""
        self._flight: ClientFlight | None = None

    def feed(self, data: bytes) -> StreamStep:
        """Judge the next bytes."""
        if not self._held and self._flight is None and data[0] == _HANDSHAKE:
            self._flight = ClientFlight(lambda hello: judge_hello(hello, self._host))
        if self._flight is not None:
            return self._flight.feed(data)
        if self._refused is None:
            begin = max(0, len(self._held) - END_SIZE)
            self._held += data
            end = self._held.find(END_OF_HEAD, begin)
            if end < 0 and len(self._held) <= MAX_HEAD:
                return StreamStep()
            self._refused = self._judge(bytes(self._held[: max(end, 0)]))
        if self._refused:
            return StreamStep(refusal=self._refused)
        return StreamStep(bytes(self._held), free=True)

    def _judge(self, head: bytes) -> str:
        """The reason against a head; empty if it may pass."""
        try:
            named = named_host(head)
        except Malformed:
            return Reason.HTTP_MALFORMED
        if named == f"{self._host.name}:{self._outer}".encode("ascii"):
            return ""
        self._local = _is_local(named)
        return Reason.FOREIGN_NAME

    def last_bytes(self, reason: str, rule: str) -> bytes:
        """A page that says what to open instead; an alert for a client that speaks TLS."""
        if self._flight is not None:
            return refusal_messages.alert(reason)
        status = _STATUS.get(Reason(reason), HTTPStatus.BAD_REQUEST)
        body = f"keyhole: {self._words(reason)}\n".encode("ascii")
        fields = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Cross-Origin-Resource-Policy: same-origin",
            "Connection: close",
            "\r\n",
        )
        return "\r\n".join(fields).encode("ascii") + body

    def _words(self, reason: str) -> str:
        if reason == Reason.UPSTREAM_UNREACHABLE:
            return f"nothing in the sandbox accepts connections on port {self._inner} yet"
        if reason != Reason.FOREIGN_NAME:
            return "a published port speaks HTTP/1.1 or TLS"
        if self._local:
            # A person typed this. A page of another origin cannot read the answer.
            return f"this port is open under its own name: http://{self._host}:{self._outer}/"
        # A page of a rebound name can read this, so it does not learn the session's id.
        return "this port is open under its own name, which `keyhole ports` lists"

    def close(self) -> None:
        """Nothing to release."""


def _is_local(named: bytes) -> bool:
    """Whether this is `localhost` or an address, with or without a port."""
    text = named.decode("latin-1")
    if text.partition(":")[0] == "localhost":
        return True
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
