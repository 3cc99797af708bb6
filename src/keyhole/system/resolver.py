"""Resolves names that the policy allowed, by the host's own resolver.

Called by `dialler.py` alone. The addresses are not judged here.

getaddrinfo cannot be cancelled, and a name whose servers never answer keeps a thread for the
timeout in resolv.conf: half a minute, or more. Attack: a sandbox uses such names until no thread is
left, and no other sandbox can resolve a name (I12). So each session has a share of the threads, and
one that has none gets one whatever the others hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from keyhole.model.decision import Reason
from keyhole.model.errors import UpstreamFailed
from keyhole.system.faults import mention
from keyhole.system.share_pool import ShareBounds, SharePool

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from keyhole.model.decision import Address
    from keyhole.model.host import Host

CACHE_TTL = 30.0
"""Seconds that a result is cached. getaddrinfo reports no TTL; load balancers use about this one,
and an address is judged again for every connection."""

MAX_CACHED = 4096
"""Names remembered; under a wildcard the sandbox chooses them."""

HOSTS_FILE = Path("/etc/hosts")

PLACES = ShareBounds("shares.lookups", total=32, each=4, waiting=64, first_always=True)
"""Lookups at a time. For one session: programs ask for a few names at a time, and the answers are
cached. For each lookup that waits, a connection waits."""


def share_of_lookups(workers: int) -> ShareBounds:
    """The places of one of so many processes that resolve names."""
    return replace(PLACES, total=max(PLACES.each, PLACES.total // workers))


PLACE_WAIT = 5.0
"""Seconds that a name waits for a thread of its session's: half of the time for dialling."""


class Resolver(Protocol):
    """A source of addresses."""

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        """The name's addresses in the order to try; raises UpstreamFailed or OverLimit.

        `who` is the session that the lookup is charged to.
        """


class SystemResolver:
    """getaddrinfo in threads, with a small cache, one lookup at a time for each name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, places: ShareBounds = PLACES) -> None:
        self._loop = loop
        self._places = SharePool(places)
        self._cache: dict[Host, tuple[float, tuple[Address, ...]]] = {}
        self._lookups: dict[Host, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        """The addresses, from the cache while they are fresh."""
        found = self._known(host)
        if found is not None:
            return found
        if host not in self._lookups:
            await self._places.take(who, PLACE_WAIT)
            # Another caller may have resolved the same name meanwhile.
            found = self._known(host)
            if found is None and host not in self._lookups:
                self._start(host, who)
            else:
                self._places.leave(who)
            if found is not None:
                return found
        # Shielded: one client that leaves does not take the answer from the others.
        return await asyncio.shield(self._lookups[host])

    def _known(self, host: Host) -> tuple[Address, ...] | None:
        known = self._cache.get(host)
        return known[1] if known is not None and known[0] > self._loop.time() else None

    def _start(self, host: Host, who: Hashable) -> None:
        self._lookups[host] = self._loop.create_future()

        def work() -> None:
            found: tuple[Address, ...] | UpstreamFailed
            try:
                found = _lookup(host.name)
            except UpstreamFailed as error:
                found = error
            except Exception as error:  # noqa: BLE001 - without an answer, its place is never free
                found = unresolved(mention(error))
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
                self._loop.call_soon_threadsafe(self._answered, host, who, found)

        try:
            # A daemon: the process may end while a server is still waited for.
            threading.Thread(target=work, name="resolve", daemon=True).start()
        except RuntimeError:
            error = unresolved("this host has no thread left for a resolver")
            self._loop.call_soon(self._answered, host, who, error)

    def _answered(
        self, host: Host, who: Hashable, found: tuple[Address, ...] | UpstreamFailed
    ) -> None:
        lookup = self._lookups.pop(host)
        if isinstance(found, UpstreamFailed):
            lookup.set_exception(found)
            lookup.exception()  # retrieved, also when no caller is left
        else:
            lookup.set_result(found)
            if len(self._cache) >= MAX_CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache.pop(host, None)
            self._cache[host] = (self._loop.time() + CACHE_TTL, found)
        self._places.leave(who)


def _lookup(name: str) -> tuple[Address, ...]:
    fixed = _from_hosts_file(name)
    if fixed:
        return fixed
    try:
        # The dot at the end: no search list may turn an allowed name into another.
        found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unresolved(str(error)) from None
    addresses = (ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)
    return tuple(dict.fromkeys(addresses))


def _from_hosts_file(name: str) -> tuple[Address, ...]:
    """Addresses in the host's own table; glibc does not use it for a name that ends in a dot."""
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


def unresolved(why: str) -> UpstreamFailed:
    """The name has no address, or no resolver answered. Not a decision of the policy."""
    return UpstreamFailed(Reason.NAME_UNRESOLVED, why)
