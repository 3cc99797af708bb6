"""From a name that policy allowed to addresses, by the host's own resolver.

Called by `upstream.py` alone. The addresses are not judged here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.model.decision import Address
    from keyhole.model.host import Host

CACHE_TTL = 30.0
"""Seconds that an answer is used again. getaddrinfo tells no TTL; this is what load balancers
that move their names use, and what judged an address judges it anew for every connection."""

MAX_CACHED = 4096
"""Names remembered; under a wildcard the sandbox chooses them."""

HOSTS_FILE = Path("/etc/hosts")

WORKERS = 32
"""Threads that wait for getaddrinfo, which cannot be cancelled."""


class Unresolved(Exception):
    """The name has no address, or no resolver answered: nobody's decision."""


class Resolver(Protocol):
    """Where addresses come from."""

    async def resolve(self, host: Host) -> Sequence[Address]:
        """The name's addresses in the order to try; raises Unresolved."""


class SystemResolver:
    """getaddrinfo in threads, with a small cache, one lookup at a time for each name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="resolve")
        self._cache: dict[Host, tuple[float, tuple[Address, ...]]] = {}
        self._asking: dict[Host, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, host: Host) -> Sequence[Address]:
        """The addresses, from the cache while they are fresh."""
        known = self._cache.get(host)
        if known is not None and known[0] > self._loop.time():
            return known[1]
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = self._loop.run_in_executor(self._pool, _lookup, host.name)
            asking.add_done_callback(lambda done: self._answered(host, done))
        # Shielded: one client that leaves does not take the answer from the others.
        return await asyncio.shield(asking)

    def close(self) -> None:
        """Let the threads go; one that waits for a server ends on its own."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answered(self, host: Host, done: asyncio.Future[tuple[Address, ...]]) -> None:
        del self._asking[host]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._cache) >= MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache.pop(host, None)
        self._cache[host] = (self._loop.time() + CACHE_TTL, done.result())


def _lookup(name: str) -> tuple[Address, ...]:
    fixed = _from_hosts_file(name)
    if fixed:
        return fixed
    try:
        # The dot at the end: no search list may turn an allowed name into another.
        found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(str(error)) from None
    addresses = (ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    return tuple(dict.fromkeys(addresses))


def _from_hosts_file(name: str) -> tuple[Address, ...]:
    """What the host's own table says; glibc does not look there for a name that ends in a dot."""
    found: list[Address] = []
    try:
        lines = HOSTS_FILE.read_text("utf-8", "replace").split("\n")
    except OSError:
        return ()
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        if name not in (each.lower() for each in names):
            continue
        with contextlib.suppress(ValueError):
            found.append(ipaddress.ip_address(address.partition("%")[0]))
    return tuple(dict.fromkeys(found))
