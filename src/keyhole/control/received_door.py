"""Descriptors that came with a request: received, checked, handed on or closed.

A door is checked by the kernel's facts about each socket, not by what the request says: its kind,
and the network namespace it was created in (I5). Descriptors belong to one connection, which
carries one request; no other request can use them, and no answer carries any.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.operation_table import DOOR
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DESCRIPTORS = len(DOOR)
"""As many as a door has; the kernel closes any beyond."""

SO_NETNS_COOKIE = 71
"""From <asm-generic/socket.h>, Linux 5.14: which namespace a socket belongs to, for good."""

_SIZE = array.array("i").itemsize
# CMSG_SPACE rounds up, and the kernel would put another descriptor into the padding.
ANCILLARY = socket.CMSG_LEN(MAX_DESCRIPTORS * _SIZE)
"""Bytes of room for descriptors in one message."""

_NO_LINGER = struct.pack("ii", 0, 0)


class _Kind(Struct, frozen=True):
    family: int
    type: int
    protocol: int
    listens: bool


_KINDS = {
    "tcp": _Kind(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, True),
    "udp": _Kind(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP, False),
    "tcp6": _Kind(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, True),
    "line": _Kind(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, False),
}
_REQUIRED = frozenset({"tcp", "udp"})


class ReceivedDescriptors:
    """The descriptors that one connection has sent. `close` is called at its end in any case."""

    __slots__ = ("_held", "too_many")

    def __init__(self) -> None:
        self._held: list[int] = []
        self.too_many = False
        """Whether more came than a door has; the rest was closed."""

    def __len__(self) -> int:
        return len(self._held)

    def take_in(self, ancillary: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        """The descriptors of one message, which `recvmsg` has made this process's."""
        if flags & socket.MSG_CTRUNC:
            self.too_many = True
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came = array.array("i")
                came.frombytes(data[: len(data) - len(data) % _SIZE])
                self._held += came
        if len(self._held) > MAX_DESCRIPTORS:
            self.too_many = True
        if self.too_many:
            self.close()

    def as_door(self, names: Sequence[str], own_namespace: bytes) -> ReceivedDoor:
        """Check them as the sockets that the request lists, in its order; raises Refused."""
        try:
            if len(names) != len(self._held):
                raise Refused("there are not as many descriptors as names of sockets")
            if not set(names) >= _REQUIRED:
                raise Refused("a door has at least tcp and udp")
            sockets = self._as_sockets()
        except Refused:
            self.close()
            raise
        door = ReceivedDoor(dict(zip(names, sockets, strict=True)))
        try:
            door.judge(own_namespace)
        except (Refused, OSError) as error:
            door.close()
            raise Refused(error.message if isinstance(error, Refused) else _NO_SOCKET) from None
        return door

    def _as_sockets(self) -> list[socket.socket]:
        found: list[socket.socket] = []
        try:
            while self._held:
                found.append(socket.socket(fileno=self._held[0]))
                del self._held[0]
        except OSError:
            for each in found:
                _close(each)
            raise Refused(_NO_SOCKET) from None
        return found

    def close(self) -> None:
        """Close the descriptors that were not taken."""
        while self._held:
            descriptor = self._held.pop()
            try:
                found = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
            else:
                _close(found)


_NO_SOCKET = "a descriptor is not a socket of the kind that its name says"


class DoorSockets(Struct, frozen=True):
    """A door that was taken: listening TCP sockets, the DNS socket, and the line to its opener."""

    tcp: socket.socket
    udp: socket.socket
    tcp6: socket.socket | None
    line: socket.socket | None


class ReceivedDoor:
    """A door that was received and not taken yet. It is closed unless the gateway takes it."""

    __slots__ = ("_sockets", "namespace")

    def __init__(self, sockets: dict[str, socket.socket]) -> None:
        self._sockets = sockets
        self.namespace = b""
        """The cookie of its network namespace, a number that the kernel never reuses."""

    def judge(self, own_namespace: bytes) -> None:
        """Raise Refused unless each socket is of its kind, and all belong to one foreign
        namespace.

        The line leads to a process of the host, so it belongs to the gateway's namespace.
        """
        namespaces = set()
        for name, sock in self._sockets.items():
            kind = _KINDS[name]
            if _seen(sock) != kind:
                raise Refused(_NO_SOCKET)
            namespace = namespace_of(sock)
            if name != "line":
                namespaces.add(namespace)
            elif namespace != own_namespace:
                raise Refused("the line belongs to the gateway's own network namespace")
        if len(namespaces) != 1:
            raise Refused("the sockets of a door belong to one network namespace")
        (self.namespace,) = namespaces
        if self.namespace == own_namespace:
            # Any process of this host could connect to it, and would be taken for the sandbox.
            raise Refused("a door belongs to a network namespace of its own, not to the gateway's")

    def take(self) -> DoorSockets:
        """Return the sockets, once; from now on the caller closes them."""
        sockets, self._sockets = self._sockets, {}
        if not sockets:
            raise RuntimeError("a door is taken once")
        return DoorSockets(sockets["tcp"], sockets["udp"], sockets.get("tcp6"), sockets.get("line"))

    def close(self) -> None:
        """Close it, unless it was taken."""
        sockets, self._sockets = self._sockets, {}
        for each in sockets.values():
            _close(each)


def namespace_of(sock: socket.socket) -> bytes:
    """The cookie of the network namespace that a socket was created in."""
    return sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)


def _seen(sock: socket.socket) -> _Kind:
    def ask(option: int) -> int:
        return sock.getsockopt(socket.SOL_SOCKET, option)

    return _Kind(
        ask(socket.SO_DOMAIN),
        ask(socket.SO_TYPE),
        ask(socket.SO_PROTOCOL),
        bool(ask(socket.SO_ACCEPTCONN)),
    )


def _close(sock: socket.socket) -> None:
    """Attack: a TCP socket with unsent bytes and SO_LINGER, whose close would stop the loop."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    except OSError:
        pass
    finally:
        sock.close()
