"""Authorities, and a server on loopback for clients that are programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.certs.authority import Authority
from tests.rigs.gateway.origins import Origin

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def authority() -> Authority:
    """The authority of this session."""
    return Authority.create("a1b2c3")


@pytest.fixture(scope="session")
def neighbour() -> Authority:
    """The authority of somebody else's."""
    return Authority.create("d4e5f6")


@pytest.fixture
def serve() -> Iterator[Callable[[ssl.SSLContext], int]]:
    """Serves `hello` over HTTPS with a context; the answer is the port."""
    made: list[Origin] = []

    def start(context: ssl.SSLContext) -> int:
        made.append(Origin(_hello, context))
        return made[-1].port

    yield start
    for each in made:
        each.close()


def _hello(sock: socket.socket) -> None:
    if sock.recv(65536):
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
