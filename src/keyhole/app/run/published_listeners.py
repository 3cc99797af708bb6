"""Listens on this host's loopback for the published ports of a run.

Done by the process that holds the sandbox, before it starts: the data plane, which serves these
ports, may bind none. Both loopback addresses are taken, so that no other program's page answers
under the sandbox's name.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from keyhole.app.run.port_claims import PortClaim, is_claimed
from keyhole.model.errors import Refused
from keyhole.policy.ports import ANY_PORT, PublishedPort

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BACKLOG = 128
"""Connections that wait to be accepted."""

_TRIES = 16
"""How often a free port is chosen until it is free for both addresses."""

_MISSING = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of a host without IPv6."""


class PublishedListeners:
    """The ports that one run publishes."""

    def __init__(self) -> None:
        self.ports: tuple[PublishedPort, ...] = ()
        """As they are published: with the port that was chosen."""
        self.sockets: list[socket.socket] = []
        self._claims: list[PortClaim] = []

    @classmethod
    def open(cls, wanted: Sequence[PublishedPort], register: Path) -> PublishedListeners:
        """Listen on all of them. Raises Refused, ResourceUnusable."""
        made = cls()
        try:
            for each in wanted:
                made._add(each, register)
        except BaseException:
            made.close()
            raise
        return made

    def _add(self, wanted: PublishedPort, register: Path) -> None:
        for left in reversed(range(_TRIES if wanted.outer == ANY_PORT else 1)):
            try:
                self._listen(wanted, register)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and left:
                    continue
                raise Refused(_taken(wanted, register, error)) from None
            return

    def _listen(self, wanted: PublishedPort, register: Path) -> None:
        four = _bound(socket.AF_INET, "127.0.0.1", wanted.outer)
        opened = [four]
        claim = None
        try:
            port = four.getsockname()[1]
            try:
                opened.append(_bound(socket.AF_INET6, "::1", port))
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
            # Claimed before it is listened on: a connection that reaches it finds the claim.
            claim = PortClaim.take(register, port)
            if claim is None:
                raise OSError(errno.EADDRINUSE, "claimed")
            for each in opened:
                each.listen(BACKLOG)
        except BaseException:
            for each in opened:
                each.close()
            if claim is not None:
                claim.release()
            raise
        self.sockets += opened
        self._claims.append(claim)
        self.ports = (*self.ports, PublishedPort(port, wanted.inner))

    @property
    def inner_ports(self) -> dict[int, int]:
        """The port inside, by that of the host."""
        return {each.outer: each.inner for each in self.ports}

    def close(self) -> None:
        """Give the ports back. A second call does nothing."""
        for each in self.sockets:
            each.close()
        for claim in self._claims:
            claim.release()


def _bound(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Connections of the run before may still wait for their last packets.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _taken(wanted: PublishedPort, register: Path, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"port {wanted.outer} of this host cannot be published: {error.strerror}"
    ours = is_claimed(register, wanted.outer)
    who = "another sandbox publishes it (`keyhole ports`)" if ours else "another program has it"
    return (
        f"port {wanted.outer} of this host is taken: {who};"
        f" `--publish 0:{wanted.inner}` chooses a free one"
    )
