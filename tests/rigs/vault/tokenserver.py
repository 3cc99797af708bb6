"""A token endpoint on loopback: TLS, one answer for each connection, and what it was asked.

Used beside services of the same kind by tests/system/clients, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import trustme

from keyhole.vault.login_provider import EndpointAccess
from tests.rigs.gateway.origins import Origin, tls_for
from tests.rigs.gateway.talk import Message, Talk
from tests.rigs.policies import book
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    import socket

HOSTS = ("platform.claude.com", "auth.openai.com", "oauth2.googleapis.com")


Reply = Callable[[Message], Iterable[bytes]]


def posted(asked: Message) -> dict[str, Any]:
    """What was posted, whatever the form."""
    if asked.headers["content-type"] == "application/json":
        return dict(json.loads(asked.body))
    return dict(parse_qsl(asked.body.decode()))


def answer(status: int, document: object, *more: str) -> list[bytes]:
    """An ordinary answer in JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *more, "", ""]
    return ["\r\n".join(lines).encode() + body]


@dataclass(repr=False)
class TokenServer:
    """Answers with what `reply` gives, piece by piece. What it was asked is in no repr."""

    authority: trustme.CA
    hosts: tuple[str, ...] = HOSTS
    reply: Reply = lambda _: answer(500, {})
    asked: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._origin = Origin(self._converse, tls_for(self.authority, *self.hosts))
        self.port = self._origin.port

    def reach(self, patience: float = PATIENCE) -> EndpointAccess:
        return EndpointAccess(lambda: book(self.connect), self.trusting, patience)

    @property
    def connect(self) -> str:
        """The table of a policy that leads here."""
        lines = [f'"{host}:443" = "127.0.0.1:{self.port}"\n' for host in self.hosts]
        return "[upstream.connect]\n" + "".join(lines)

    def trusting(self) -> ssl.SSLContext:
        """A context that knows the authority alone."""
        return ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())

    def close(self) -> None:
        """End it; a test may have done so before."""
        with contextlib.suppress(OSError):
            self._origin.close()

    def _converse(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE)
        asked = Talk(sock).request()
        if asked is not None:
            self.asked.append(asked)
            for piece in self.reply(asked):
                sock.sendall(piece)


def unsigned(**claims: object) -> str:
    """A JSON Web Token that nobody signed."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + ".sig"
