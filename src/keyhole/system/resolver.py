"""From a name that policy allowed to addresses, by the host's own resolver.

Called by `dialler.py` alone. The addresses are not judged here.

getaddrinfo cannot be cancelled, and a name whose servers never answer keeps a thread for as long as
resolv.conf says: half a minute, or more. Attack: a sandbox asks for such names until no thread is
left, and nobody else's name resolves (I12). So each session has a share of the threads, and one
that has none gets one whatever the others hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keyhole.system.faults import mention
from keyhole.system.places import Bounds, Places

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from keyhole.model.decision import Address
    from keyhole.model.host import Host

CACHE_TTL = 30.0
"""Seconds that an answer is used again. getaddrinfo tells no TTL; this is what load balancers
that move their names use, and what judged an address judges it anew for every connection."""

MAX_CACHED = 4096
"""Names remembered; under a wildcard the sandbox chooses them."""

HOSTS_FILE = Path("/etc/hosts")

PLACES = Bounds(total=32, each=4, waiting=64, first_always=True)
"""Lookups at work. For one session: programs ask for a few names at a time, and the answers are
cached. Each that waits is a connection that waits, too."""

PLACE_WAIT = 5.0
"""Seconds that a name waits for a thread of its session's: half of the time for dialling."""


class Unresolved(Exception):
    """The name has no address, or no resolver answered: nobody's decision."""


class Resolver(Protocol):
    """Where addresses come from."""

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        """The name's addresses in the order to try; raises Unresolved or OverShare.

        `who` has a share of what lookups take: a session.
        """


class SystemResolver:
    """getaddrinfo in threads, with a small cache, one lookup at a time for each name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places = Places(PLACES)
        self._cache: dict[Host, tuple[float, tuple[Address, ...]]] = {}
        self._lookups: dict[Host, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        """The addresses, from the cache while they are fresh."""
        found = self._known(host)
        if found is not None:
            return found
        if host not in self._lookups:
            await self._places.take(who, PLACE_WAIT)
            # Somebody else may have asked for the same name meanwhile.
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
            found: tuple[Address, ...] | Unresolved
            try:
                found = _lookup(host.name)
            except Unresolved as error:
                found = error
            except Exception as error:  # noqa: BLE001 - without an answer, its place is never free
                found = Unresolved(mention(error))
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._answered, host, who, found)

        try:
            # A daemon: the process may end while a server is still waited for.
            threading.Thread(target=work, name="resolve", daemon=True).start()
        except RuntimeError:
            error = Unresolved("this host has no thread left for a resolver")
            self._loop.call_soon(self._answered, host, who, error)

    def _answered(self, host: Host, who: Hashable, found: tuple[Address, ...] | Unresolved) -> None:
        lookup = self._lookups.pop(host)
        if isinstance(found, Unresolved):
            lookup.set_exception(found)
            lookup.exception()  # seen, also where nobody waits any more
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
