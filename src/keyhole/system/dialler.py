"""Makes every connection of Keyhole's own to another host: resolves, judges, dials what was judged
(I4).

Used by the gateway for a name and port that policy has allowed, and by the vault for its token
endpoints; a test walks the tree and finds any other module that resolves or connects.
"""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from aiohappyeyeballs import start_connection
from msgspec import Struct

from keyhole.model.decision import AddressDecision, Reason
from keyhole.model.errors import OverLimit, UpstreamFailed
from keyhole.model.reasons import sentence_of
from keyhole.policy.address import decide_address
from keyhole.system import proxy
from keyhole.system.resolver import Resolver, SystemResolver, unresolved
from keyhole.system.tls import insist_on_verifying

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from aiohappyeyeballs import AddrInfoType

    from keyhole.model.decision import Address
    from keyhole.model.host import Host
    from keyhole.policy.rulebook import Rulebook

CONNECT_TIMEOUT = 10.0
"""Seconds for resolving and dialling together."""

ATTEMPT_DELAY = 0.25
"""Seconds before the next address is tried beside the first (RFC 8305 §5)."""

_DISCARD = 9
"""Any port: the kernel needs one to choose a route."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried."""


class Dialled(Struct, frozen=True):
    """A connected socket, and the decision that allowed it. `early` has bytes that came after a
    proxy's answer."""

    sock: socket.socket
    decision: AddressDecision
    early: bytes = b""


class VerifiedStream(Struct, frozen=True):
    """TLS with the host that was dialled, its certificate verified for that name."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    decision: AddressDecision


class Dialler:
    """Dials for one session; all diallers of a process share a resolver."""

    def __init__(self, loop: asyncio.AbstractEventLoop, resolver: Resolver) -> None:
        self._loop = loop
        self._resolver = resolver

    def for_session(self) -> Dialler:
        """A dialler for another session, with its own share of the same resolver (I12)."""
        return Dialler(self._loop, self._resolver)

    async def dial(self, book: Rulebook, host: Host, port: int) -> Dialled:
        """A connection to an address that was judged for this name and port.

        Raises UpstreamFailed.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._dial(book, host, port)
        except TimeoutError:
            raise UpstreamFailed(Reason.UPSTREAM_UNREACHABLE, "timed out") from None
        except OverLimit as error:
            raise UpstreamFailed(error.reason, f"lookups: {error}", error.decision) from None
        except OSError as error:
            raise UpstreamFailed(Reason.UPSTREAM_UNREACHABLE, str(error)) from None

    async def dial_verified(
        self, book: Rulebook, host: Host, port: int, trust: ssl.SSLContext
    ) -> VerifiedStream:
        """The same, with TLS for the name, whatever address was dialled (I4).

        Raises OSError, too: the handshake's.
        """
        insist_on_verifying(trust)
        dialled = await self.dial(book, host, port)
        if dialled.early:
            dialled.sock.close()
            raise proxy.proxy_failed("the proxy answers for the host before it was asked")
        # The loop closes the socket when the handshake fails.
        reader, writer = await asyncio.open_connection(
            sock=dialled.sock,
            ssl=trust,
            server_hostname=host.name,
            ssl_handshake_timeout=CONNECT_TIMEOUT,
        )
        return VerifiedStream(reader, writer, dialled.decision)

    async def _dial(self, book: Rulebook, host: Host, port: int) -> Dialled:
        override = book.connect.get((host, port))
        if override is not None:
            # The policy names the address, so neither DNS nor the proxy is used.
            decision = decide_address(book, host, port, override.address)
            return Dialled(*await self._race([decision]))
        resolved = await self._resolver.resolve(host, self)
        judged = [decide_address(book, host, port, a, own=is_own(a)) for a in resolved]
        allowed = first_of([d for d in judged if d.allowed])
        if not allowed:
            raise _refused(judged[0]) if judged else unresolved("no address")
        url = book.policy.upstream.proxy
        if url is not None:
            return await self._through_proxy(url, allowed[0])
        return Dialled(*await self._race(allowed))

    async def _through_proxy(self, url: str, decision: AddressDecision) -> Dialled:
        """The proxy gets the judged address, not the name: it must not resolve again."""
        where = proxy.parse(url)
        # The proxy's own address is the person's choice and may be private: not judged.
        addresses = await self._resolver.resolve(where.host, self)
        hops = [AddressDecision(address=address, port=where.port) for address in addresses]
        try:
            sock, _ = await self._race(first_of(hops))
        except OSError as error:
            raise proxy.proxy_failed(f"{where.host}:{where.port}: {error}") from None
        try:
            early = await proxy.connect(self._loop, sock, decision)
        except BaseException:
            sock.close()
            raise
        return Dialled(sock, decision, early)

    async def _race(
        self, candidates: Sequence[AddressDecision]
    ) -> tuple[socket.socket, AddressDecision]:
        """The first address that answers. If one is slow, the next is tried beside it; if one
        refuses, the next is tried at once.

        The library gets judged addresses as numbers, and every socket that it connects is made here
        for one of them: nothing else is dialled.
        """
        if not candidates:
            raise OSError("no address")
        judged = {_by_number(decision): decision for decision in candidates}
        made: dict[socket.socket, AddressDecision] = {}

        def make(where: AddrInfoType) -> socket.socket:
            sock = socket.socket(where[0], socket.SOCK_STREAM)
            made[sock] = judged[where]
            return sock

        sock = await start_connection(
            list(judged),
            happy_eyeballs_delay=ATTEMPT_DELAY,
            # The library calls only `sock_connect` of the loop.
            loop=cast("asyncio.AbstractEventLoop", _Connecting(self._reach)),
            socket_factory=make,
        )
        return sock, made[sock]

    async def _reach(self, sock: socket.socket, where: tuple[str, int]) -> None:
        """Connect. uvloop's `sock_connect` would ask getaddrinfo, in a thread, for an address."""
        try:
            sock.connect(where)
        except BlockingIOError:
            writable = self._loop.create_future()
            self._loop.add_writer(sock, _settle, writable)
            try:
                await writable
            finally:
                self._loop.remove_writer(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error)) from None


def own_dialler() -> Dialler:
    """A dialler for the running loop, with a resolver of its own."""
    loop = asyncio.get_running_loop()
    return Dialler(loop, SystemResolver(loop))


def still_allowed(book: Rulebook, host: Host, port: int, dialled: AddressDecision) -> bool:
    """Whether a connection of another policy would also be dialled under this one."""
    address = dialled.address
    if address is None:
        return False
    again = decide_address(book, host, port, address)
    return again.allowed and (again.address, again.port) == (address, dialled.port)


def is_own(address: Address) -> bool:
    """Whether an address is one of this host's, by the kernel's routes; nothing is sent.

    For those alone, the kernel chooses the destination itself as the source. Checked for every
    connection: addresses come and go.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _DISCARD))
        except OSError:
            return False  # no route: it will not be reached either
        return str(probe.getsockname()[0]) == str(address)


def _refused(decision: AddressDecision) -> UpstreamFailed:
    """The error if policy permits none of the addresses that the name resolved to."""
    return UpstreamFailed(decision.reason, sentence_of(decision.reason), decision)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def first_of(decisions: list[AddressDecision]) -> list[AddressDecision]:
    """The addresses to try, in the resolver's order; the race alternates between families.

    Each family gets half of the places, and those that the other does not use.
    """
    versions = {d: d.address.version for d in decisions if d.address is not None}
    families = [[d for d in versions if versions[d] == version] for version in (4, 6)]
    turns = zip_longest(*families)
    tried = [d for turn in turns for d in turn if d is not None][:MAX_ADDRESSES]
    return sorted(tried, key=decisions.index)


class _Connecting:
    """The part of a loop that the race uses."""

    def __init__(self, reach: Callable[[socket.socket, tuple[str, int]], Awaitable[None]]) -> None:
        self.sock_connect = reach


def _by_number(decision: AddressDecision) -> AddrInfoType:
    """The address in the form of `getaddrinfo`."""
    if decision.address is None:
        raise OSError("no address was judged")
    family = socket.AF_INET if decision.address.version == 4 else socket.AF_INET6
    return family, socket.SOCK_STREAM, 0, "", (str(decision.address), decision.port)
