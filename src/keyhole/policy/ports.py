"""Ports of a sandbox that a browser of this host can open, and ports of the host that it can use.

Read by `schema.py` and by the flag `--publish`.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable

LEAST_PORT, MAX_PORT = 1024, 65535
"""Below, a port needs rights that neither a sandbox nor its user has."""

DOOR_PORT = 15001
"""The door's own port inside; `sandbox.empty_network` listens there."""

ANY_PORT = 0
"""As the outer port: a free one is chosen at each start."""

MAX_PORTS = 16
"""Ports of each list: a project has a handful of servers (I9)."""

_PORT = re.compile(r"0|[1-9][0-9]{0,4}")


class PublishedPort(Struct, frozen=True, order=True):
    """A port of the host's loopback that leads to a port of the sandbox's."""

    outer: int
    """The host's; ANY_PORT: a free one."""
    inner: int

    @classmethod
    def parse(cls, text: str) -> PublishedPort:
        """Read `PORT`, or `OUTER:INNER`."""
        outer, colon, inner = text.partition(":")
        first = _number(outer)
        second = _number(inner) if colon else first
        if first != ANY_PORT:
            check_port(first)
        return cls(first, check_inner_port(second))

    def __str__(self) -> str:
        return str(self.outer) if self.outer == self.inner else f"{self.outer}:{self.inner}"


def read_published(value: object) -> PublishedPort:
    """An item of `sandbox.publish`: a number, or a text of two."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Unparsable('a port is expected, as 8123 or "5173:3000"')
    return PublishedPort.parse(str(value))


def read_host_port(value: object) -> int:
    """An item of `sandbox.host_ports`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unparsable("a port is expected, as 11434")
    return check_inner_port(value)


def check_inner_port(port: int) -> int:
    """The same port, if a server in the sandbox can have it."""
    if port == DOOR_PORT:
        raise Unparsable(f"port {DOOR_PORT} inside is the door's own")
    return check_port(port)


def check_port(port: int) -> int:
    """The same port, if a process without rights can listen on it."""
    if not LEAST_PORT <= port <= MAX_PORT:
        raise Unparsable(f"a port is a number from {LEAST_PORT} to {MAX_PORT}")
    return port


def refuse_ambiguous(published: tuple[PublishedPort, ...], host_ports: tuple[int, ...]) -> None:
    """Raise Unparsable where a port of this host, or one inside, would lead to two places, or there
    are too many."""
    if len(published) > MAX_PORTS:
        raise Unparsable(f"at most {MAX_PORTS} ports are published")
    outer = [each.outer for each in published if each.outer != ANY_PORT]
    for port in outer:
        if outer.count(port) > 1:
            raise Unparsable(f"port {port} of this host is named twice")
    for each in published:
        if each.inner in host_ports:
            # One server listens on a port: the sandbox's, or Keyhole's own for the host's.
            raise Unparsable(
                f"port {each.inner} inside is published, and cannot lead to the host too"
            )


def _number(text: str) -> int:
    if not _PORT.fullmatch(text):
        raise Unparsable('a port is expected, as 8123 or "5173:3000"')
    return int(text)
