"""Makes an empty network in which every address is local, and the sockets that receive everything.

Called by the helper in a new namespace without any other process. docs/ARCHITECTURE.md, "The door",
explains each step.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

TYPE_CHECKING = False  # `typing` takes a third of the import time here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

CAPTURE_PORT = 15001
DNS_PORT = 53
BACKLOG = 1024
"""Connections that wait to be accepted; the gateway pauses accepting above its own limits."""

INNER_SOCKETS = 64
"""Connections of browsers to published ports at a time; a browser opens six to a server, and one
for each WebSocket. With the rest of a door they fit one message, of 253 descriptors at most."""

_PUBLISHES = "publishes"

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IP_TRANSPARENT, _IPV6_TRANSPARENT, _IP_PKTINFO = 19, 75, 8

_RTMGRP_LINK = 1
_RTM_NEWROUTE, _NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_CREATE = 24, 1, 4, 0x400
_RT_TABLE_LOCAL, _RTPROT_BOOT, _RT_SCOPE_HOST, _RTN_LOCAL = 255, 3, 254, 2
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7

RULESET = f"""\
table inet keyhole {{
  chain pre {{ type filter hook prerouting priority mangle; policy accept;
    iif != "lo" drop
    ip daddr 127.0.0.0/8 return
    ip6 daddr ::1 return
    meta nfproto ipv4 meta l4proto tcp tproxy ip to :{CAPTURE_PORT} accept
    meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :{CAPTURE_PORT} accept
  }}
  chain out {{ type filter hook output priority 0; policy accept;
    oif != "lo" drop
  }}
}}
"""
"""Every TCP port leads to one listener. If an interface ever appears, nothing passes it."""


def bring_up_loopback() -> None:
    """Bring `lo` up: the only interface there is (I2)."""
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        raise RuntimeError(f"a new network namespace has {names}, not only lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def make_everything_local() -> None:
    """Routes by which every address is delivered to this host; sources stay 127.0.0.1 and ::1."""
    loopback = socket.if_nametoindex("lo")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        _add_local_route(netlink, socket.AF_INET, socket.inet_aton("127.0.0.1"), loopback)
        if os.path.exists("/proc/sys/net/ipv6/conf/lo"):
            source = socket.inet_pton(socket.AF_INET6, "::1")
            _add_local_route(netlink, socket.AF_INET6, source, loopback)


def load_ruleset(*nft: str) -> None:
    """Load the ruleset; `nft` are the words by which it is started."""
    with _memory_file() as ruleset, _memory_file() as said:
        ruleset.write(RULESET.encode())
        ruleset.seek(0)
        # Not by `subprocess`, whose import takes longer than nft does. The process that waits for
        # the helper bounds the time.
        child = os.posix_spawn(
            nft[0],
            [*nft, "-f", "-"],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ruleset.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, said.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, said.fileno(), 2),
            ],
        )
        if os.waitpid(child, 0)[1]:
            said.seek(0)
            told = said.read().decode("utf-8", "replace").strip()
            raise RuntimeError(f"nft refused the ruleset: {told}")


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("keyhole-nft", os.MFD_CLOEXEC), "w+b", buffering=0)


def open_door_sockets() -> list[socket.socket]:
    """The door's sockets: TCP over IPv4, DNS over UDP, and TCP over IPv6 where it exists."""
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
    tcp.bind(("0.0.0.0", CAPTURE_PORT))  # noqa: S104 - in a namespace that has only lo
    tcp.listen(BACKLOG)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
    udp.bind(("0.0.0.0", DNS_PORT))  # noqa: S104 - as above
    sockets = [tcp, udp]
    if _has_ipv6():
        tcp6 = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        tcp6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tcp6.setsockopt(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
        tcp6.bind(("::", CAPTURE_PORT))
        tcp6.listen(BACKLOG)
        sockets.append(tcp6)
    return sockets


def open_port_sockets(ports: str) -> list[socket.socket]:
    """The sockets for the ports that `ports_text` wrote."""
    words = ports.split(",") if ports else []
    numbers = [int(word) for word in words if word != _PUBLISHES]
    return _listen_for_host(numbers) + (_open_inner_sockets() if _PUBLISHES in words else [])


def ports_text(host_ports: Sequence[int], *, publishes: bool) -> str:
    """Ports of a sandbox in one word, for the process that makes its network."""
    return ",".join([*([_PUBLISHES] if publishes else []), *map(str, host_ports)])


def _open_inner_sockets() -> list[socket.socket]:
    """Sockets by which the gateway connects to servers in the sandbox: pairs of IPv4 and IPv6.

    No other process can make more: a socket belongs to the network that it was made in, so their
    number bounds the connections (I9).
    """
    families = [socket.AF_INET, *([socket.AF_INET6] if _has_ipv6() else [])]
    return [
        socket.socket(family, socket.SOCK_STREAM)
        for _ in range(INNER_SOCKETS)
        for family in families
    ]


def _listen_for_host(ports: Sequence[int]) -> list[socket.socket]:
    """Listeners on the sandbox's loopback whose connections the gateway passes to the host's."""
    found = []
    for port in ports:
        four = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        four.bind(("127.0.0.1", port))
        found.append(four)
        if _has_ipv6():
            six = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            six.bind(("::1", port))
            found.append(six)
    for each in found:
        each.listen(BACKLOG)
    return found


def _has_ipv6() -> bool:
    return socket.has_ipv6 and os.path.exists("/proc/sys/net/ipv6/conf/lo")


def watch_interfaces() -> socket.socket:
    """A socket on which the kernel reports every interface that this network gets from now on."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    netlink.bind((0, _RTMGRP_LINK))
    return netlink


def _add_local_route(netlink: socket.socket, family: int, source: bytes, interface: int) -> None:
    """RTM_NEWROUTE `local default dev lo src SOURCE` (rtnetlink(7)), and the kernel's answer."""
    message = struct.pack(
        "=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_BOOT, _RT_SCOPE_HOST, _RTN_LOCAL, 0
    )
    message += struct.pack("=HHI", 8, _RTA_OIF, interface)
    message += struct.pack("=HH", 4 + len(source), _RTA_PREFSRC) + source
    flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE
    header = struct.pack("=IHHII", 16 + len(message), _RTM_NEWROUTE, flags, 1, 0)
    netlink.send(header + message)
    answer = netlink.recv(4096)
    error = -struct.unpack_from("=i", answer, 16)[0]
    if error:
        raise OSError(error, f"no local route: {os.strerror(error)}")
