"""Moves a pod's interfaces into another network, with their addresses and routes.

Called by `pod_network.py` in a thread that is in the pod's network. The kernel forgets addresses
and routes of an interface that changes its network; they are read before and set again there, as
the cluster's own network plugin made them, whatever it is (rtnetlink(7)).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOPBACK = "lo"
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ADDRESS_SIZE, _ROUTE_SIZE = 8, 12
"""Bytes of struct ifaddrmsg and struct rtmsg."""
_RTM_SETLINK, _RTM_NEWADDR, _RTM_GETADDR, _RTM_NEWROUTE, _RTM_GETROUTE = 19, 20, 22, 24, 26
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLM_F_REPLACE, _NLM_F_CREATE = 0x100, 0x400
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFLA_NET_NS_FD = 28
_RT_TABLE_MAIN = 254
_RTA_OIF, _RTA_GATEWAY = 4, 5
_IFA_LOCAL, _IFA_ADDRESS = 2, 1
_RT_SCOPE_UNIVERSE = 0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1

MAX_ANSWERS = 256
"""Messages of the kernel about one network; a pod has an interface and a handful of routes."""
_CHUNK = 65536


class MovedInterfaces(Struct, frozen=True):
    """The interfaces that a pod had, and their settings as the kernel tells them."""

    names: tuple[str, ...] = ()
    settings: tuple[tuple[int, bytes], ...] = ()
    """Addresses and then routes, each as the message that sets it."""
    addresses: tuple[str, ...] = ()
    """The pod's own addresses."""


def move_interfaces(away: int) -> MovedInterfaces:
    """Move every interface but `lo` to the network with this descriptor. Raises OSError."""
    found = [(index, name) for index, name in socket.if_nameindex() if name != _LOOPBACK]
    if not found:
        return MovedInterfaces()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        indexes = {index for index, _ in found}
        addresses = [each for each in _dump(netlink, _RTM_GETADDR) if _index_of(each) in indexes]
        routes = [each for each in _dump(netlink, _RTM_GETROUTE) if _is_of(each, indexes)]
        # A gateway must be reachable before a route by it is accepted.
        routes.sort(key=lambda each: _RTA_GATEWAY in _attributes(each, _ROUTE_SIZE))
        for index, name in found:
            _move(netlink, index, name, away)
    return MovedInterfaces(
        tuple(name for _, name in found),
        tuple(
            [(_RTM_NEWADDR, each) for each in addresses]
            + [(_RTM_NEWROUTE, each) for each in routes]
        ),
        tuple(filter(None, map(_global_address, addresses))),
    )


def set_up_again(moved: MovedInterfaces) -> None:
    """Give interfaces their settings in the network that this thread is in. Raises OSError."""
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control,
    ):
        for name in (_LOOPBACK, *moved.names):
            _bring_up(control, name)
        for kind, body in moved.settings:
            # The kernel has made some of them itself: the route to the own subnet, addresses of
            # the link. A route that it does not take back leads to peers that get no answer.
            passed = FileExistsError if kind == _RTM_NEWADDR else OSError
            with contextlib.suppress(passed):
                _ask(netlink, kind, body, _NLM_F_CREATE | _NLM_F_REPLACE)


def _bring_up(control: socket.socket, name: str) -> None:
    request = struct.pack("16sh14x", name.encode(), 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
    changed = struct.pack("16sh14x", name.encode(), flags | _IFF_UP)
    fcntl.ioctl(control, _SIOCSIFFLAGS, changed)


def _move(netlink: socket.socket, index: int, name: str, away: int) -> None:
    body = struct.pack("=BxHiII", 0, 0, index, 0, 0)
    body += struct.pack("=HHI", 8, _IFLA_NET_NS_FD, away)
    try:
        _ask(netlink, _RTM_SETLINK, body)
    except OSError as error:
        why = f"the interface {name} cannot be taken away: {error.strerror}"
        raise OSError(error.errno, why) from None


def _ask(netlink: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    flags |= _NLM_F_REQUEST | _NLM_F_ACK
    netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    error = -struct.unpack_from("=i", netlink.recv(4096), _HEADER.size)[0]
    if error:
        raise OSError(error, os.strerror(error))


def _dump(netlink: socket.socket, kind: int) -> list[bytes]:
    """The bodies of the messages with which the kernel answers."""
    body = struct.pack("=BxxxxxxxI", 0, 0)
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    found: list[bytes] = []
    while len(found) < MAX_ANSWERS:
        data = netlink.recv(_CHUNK)
        while len(data) >= _HEADER.size:
            length, answered, *_ = _HEADER.unpack_from(data)
            if answered in (_NLMSG_DONE, _NLMSG_ERROR) or length < _HEADER.size:
                return found
            found.append(data[_HEADER.size : length])
            data = data[(length + 3) & ~3 :]
    return found


def _index_of(address: bytes) -> int:
    return int(struct.unpack_from("=I", address, 4)[0])


def _is_of(route: bytes, indexes: set[int]) -> bool:
    """Whether a route is of the main table and leads through one of these interfaces."""
    out = _attributes(route, _ROUTE_SIZE).get(_RTA_OIF)
    return route[4] == _RT_TABLE_MAIN and out is not None and _number(out) in indexes


def _number(data: bytes) -> int:
    return int(struct.unpack("=I", data)[0])


def _global_address(message: bytes) -> str:
    """The address in a message, unless it is one of the link alone."""
    given = _attributes(message, _ADDRESS_SIZE)
    address = given.get(_IFA_LOCAL) or given.get(_IFA_ADDRESS)
    if address is None or message[3] != _RT_SCOPE_UNIVERSE:
        return ""
    return socket.inet_ntop(message[0], address)


def _attributes(message: bytes, size: int) -> dict[int, bytes]:
    return dict(_each_attribute(message[size:]))


def _each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
