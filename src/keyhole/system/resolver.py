"""From a name that policy allowed to addresses, by the host's own resolver.

Called by `dialler.py` alone. The addresses are not judged here.

getaddrinfo cannot be cancelled, and a name whose servers never answer keeps a thread for as long as
resolv.conf says: half a minute, or more. Attack: a sandbox asks for such names until no thread is
left, and nobody else's name resolves (I12). So each session has a share of the threads, sessions
that wait take turns, and one that has no thread gets one whatever the others hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import deque
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

THREADS = 32
"""Lookups at work for all sessions together. Beyond it, a session that has none at work may still
start one: the most there can be is this and one for each session."""

THREADS_OF_SESSION = 4
"""Lookups at work for one session: programs ask for a few names at a time, and the answers are
cached."""

MAX_WAITING = 64
"""Names of one session that wait for a thread; each is a connection that waits, too."""

THREAD_WAIT = 5.0
"""Seconds that a name waits for a thread of its session's: half of the time for dialling."""

RULE = "shares.lookups"
"""What is written down as the rule when a session's share is used up."""


class Unresolved(Exception):
    """The name has no address, or no resolver answered: nobody's decision."""


class OverShare(Exception):
    """The session's own lookups occupy its whole share."""


class Share:
    """One session's part of a resolver."""

    __slots__ = ("at_work", "waiting")

    def __init__(self) -> None:
        self.at_work = 0
        """Threads that look something up for it."""
        self.waiting: dict[Host, int] = {}
        """Names that wait for a thread, in the order they were asked for, and by how many."""


class Resolver(Protocol):
    """Where addresses come from."""

    async def resolve(self, host: Host, share: Share) -> Sequence[Address]:
        """The name's addresses in the order to try; raises Unresolved or OverShare."""


class _Lookup:
    """One name that is being looked up, for all that ask for it."""

    __slots__ = ("answer", "askers", "started")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.askers = 0
        self.started: asyncio.Future[None] = loop.create_future()
        self.answer: asyncio.Future[tuple[Address, ...]] = loop.create_future()


class SystemResolver:
    """getaddrinfo in threads, with a small cache, one lookup at a time for each name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cache: dict[Host, tuple[float, tuple[Address, ...]]] = {}
        self._lookups: dict[Host, _Lookup] = {}
        self._at_work = 0
        self._turns: deque[Share] = deque()
        """Sessions with names that wait; the first is asked first, and goes to the end."""

    async def resolve(self, host: Host, share: Share) -> Sequence[Address]:
        """The addresses, from the cache while they are fresh."""
        known = self._cache.get(host)
        if known is not None and known[0] > self._loop.time():
            return known[1]
        lookup = self._lookups.get(host)
        if lookup is None or not lookup.started.done():
            lookup = await self._wait_for_thread(host, share)
        # Shielded: one client that leaves does not take the answer from the others.
        return await asyncio.shield(lookup.answer)

    async def _wait_for_thread(self, host: Host, share: Share) -> _Lookup:
        waiting = share.waiting
        if host not in waiting and len(waiting) >= MAX_WAITING:
            raise OverShare(f"{MAX_WAITING} names of this session wait for a resolver")
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = _Lookup(self._loop)
        lookup.askers += 1
        waiting[host] = waiting.get(host, 0) + 1
        if share not in self._turns:
            self._turns.append(share)
        self._start_waiting()
        try:
            async with asyncio.timeout(THREAD_WAIT):
                await asyncio.shield(lookup.started)
        except TimeoutError:
            words = f"{share.at_work} other names of this session have no answer yet"
            raise OverShare(words) from None
        finally:
            self._leave(host, share, lookup)
        return lookup

    def _leave(self, host: Host, share: Share, lookup: _Lookup) -> None:
        """Whoever asked waits for a thread no longer; a name that nobody waits for is dropped."""
        lookup.askers -= 1
        share.waiting[host] -= 1
        if not share.waiting[host]:
            del share.waiting[host]
        if not lookup.askers and not lookup.started.done():
            del self._lookups[host]

    def _start_waiting(self) -> None:
        """Give threads to names that wait, session by session, while there are any to give."""
        passed = 0
        while passed < len(self._turns):
            share = self._turns.popleft()
            name = next(filter(self._is_waiting, share.waiting), None)
            if name is None:
                continue
            self._turns.append(share)
            if self._may_start(share):
                self._start(name, share)
                passed = 0
            else:
                passed += 1

    def _is_waiting(self, host: Host) -> bool:
        lookup = self._lookups.get(host)
        return lookup is not None and not lookup.started.done()

    def _may_start(self, share: Share) -> bool:
        if share.at_work >= THREADS_OF_SESSION:
            return False
        return self._at_work < THREADS or not share.at_work

    def _start(self, host: Host, share: Share) -> None:
        lookup = self._lookups[host]
        lookup.started.set_result(None)
        share.at_work += 1
        self._at_work += 1

        def work() -> None:
            found: tuple[Address, ...] | Unresolved
            try:
                found = _lookup(host.name)
            except Unresolved as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._answered, host, share, found)

        try:
            # A daemon: the process may end while a server is still waited for.
            threading.Thread(target=work, name="resolve", daemon=True).start()
        except RuntimeError:
            error = Unresolved("this host has no thread left for a resolver")
            self._loop.call_soon(self._answered, host, share, error)

    def _answered(self, host: Host, share: Share, found: tuple[Address, ...] | Unresolved) -> None:
        lookup = self._lookups.pop(host)
        share.at_work -= 1
        self._at_work -= 1
        if isinstance(found, Unresolved):
            lookup.answer.set_exception(found)
            lookup.answer.exception()  # told already, where nobody waits any more
        else:
            lookup.answer.set_result(found)
            if len(self._cache) >= MAX_CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache.pop(host, None)
            self._cache[host] = (self._loop.time() + CACHE_TTL, found)
        self._start_waiting()


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
