"""Watches for new interfaces in the sandbox's network.

Root can move an interface into any network, and an engine can connect a container to one even if it
was started without. The ruleset lets nothing through a new interface, but an engine's resolver
would be reached on loopback. So a run ends when its network is no longer empty (I2). The holder
made the socket inside, before it checked the interfaces.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

_CHUNK = 65536
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, sender (netlink(7))."""
_INFO = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, kind, index, flags, change (rtnetlink(7))."""
_ATTRIBUTE = struct.Struct("=HH")
_RTM_NEWLINK, _IFLA_IFNAME = 16, 3
_LOOPBACK = 1
"""The number of `lo` in every network: the kernel makes it first (LOOPBACK_IFINDEX)."""
_KERNEL = 0


class InterfaceWatch:
    """Calls `added` once, from a thread of its own, with the name of an interface."""

    def __init__(self, links: socket.socket, added: Callable[[str], None]) -> None:
        """Takes ownership of `links`."""
        self._links = links
        self._added = added
        links.setblocking(False)
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        os.write(self._stop_write, b"x")
        self._thread.join()
        self._links.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._links, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._links.fileno() in ready and (name := self._read()):
                self._added(name)
                return
            if self._stop_read in ready:
                return

    def _read(self) -> str:
        try:
            data, (sender, _) = self._links.recvfrom(_CHUNK)
        except BlockingIOError:
            return ""
        except OSError as error:
            # The kernel dropped messages, so the state is unknown.
            return f"unknown ({error.strerror})"
        if sender != _KERNEL:
            return ""
        return next(new_interfaces(data), "")


def new_interfaces(data: bytes) -> Iterator[str]:
    """The interfaces, except `lo`, that the kernel's messages report as present."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        message, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
        if kind == _RTM_NEWLINK and len(message) >= _INFO.size:
            index = _INFO.unpack_from(message)[2]
            if index != _LOOPBACK:
                yield _name_in(message[_INFO.size :]) or f"number {index}"


def _name_in(attributes: bytes) -> str:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if length < _ATTRIBUTE.size:
            break
        if kind == _IFLA_IFNAME:
            return attributes[_ATTRIBUTE.size : length].rstrip(b"\0").decode("utf-8", "replace")
        attributes = attributes[(length + 3) & ~3 :]
    return ""
