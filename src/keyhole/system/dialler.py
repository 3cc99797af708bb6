"""Every connection of Keyhole's own to another host: resolve, judge, dial what was judged (I4).

Used by the gateway for a name and port that policy has allowed, and by the vault for its token
endpoints; a test walks the tree and finds any other module that resolves or connects.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from keyhole.model.decision import AddressDecision, Decision, Reason
from keyhole.model.value import dataclass
from keyhole.policy.address import decide_address
from keyhole.system import proxy
from keyhole.system.places import OverShare
from keyhole.system.resolver import Resolver, SystemResolver, Unresolved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.model.decision import Address
    from keyhole.model.host import Host
    from keyhole.policy.rulebook import Rulebook

CONNECT_TIMEOUT = 10.0
"""Seconds for resolving and dialling together."""

ATTEMPT_DELAY = 0.25
"""Seconds before the next address is tried beside the first (RFC 8305 §5)."""

_DISCARD = 9
"""A port, since one is needed."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried."""


OVER = Decision(reason=Reason.OVER_SHARE, rule="shares.lookups")
"""A session asks for more names at a time than it may."""


class AddressRefused(Exception):
    """Every address that the name resolved to is one that policy does not let the gateway dial."""

    def __init__(self, decision: AddressDecision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class Unreachable(Exception):
    """The network's or the origin's fault, or the session's share is used up, which is then the
    `decision`; `reason` is a stable code."""

    def __init__(self, reason: str, message: str, decision: Decision | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connected socket and what allowed it. `early` came behind a proxy's answer."""

    sock: socket.socket
    decision: AddressDecision
    early: bytes = b""


class Dialler:
    """Dials for one session; those of a process share a resolver."""

    def __init__(self, loop: asyncio.AbstractEventLoop, resolver: Resolver) -> None:
        self._loop = loop
        self._resolver = resolver

    def for_session(self) -> Dialler:
        """Another, with a share of its own of the same resolver (I12)."""
        return Dialler(self._loop, self._resolver)

    async def dial(self, book: Rulebook, host: Host, port: int) -> Dialled:
        """A connection to an address that was judged for this name and port."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._dial(book, host, port)
        except TimeoutError:
            raise Unreachable(Reason.UPSTREAM_UNREACHABLE, "timed out") from None
        except Unresolved as error:
            raise Unreachable(Reason.NAME_UNRESOLVED, str(error)) from None
        except OverShare as error:
            raise Unreachable(Reason.OVER_SHARE, f"lookups: {error}", OVER) from None
        except proxy.ProxyFailed as error:
            raise Unreachable(Reason.PROXY_FAILED, str(error)) from None
        except OSError as error:
            raise Unreachable(Reason.UPSTREAM_UNREACHABLE, str(error)) from None

    async def _dial(self, book: Rulebook, host: Host, port: int) -> Dialled:
        override = book.connect.get((host, port))
        if override is not None:
            # The policy says where, so neither DNS nor the proxy has a say.
            decision = decide_address(book, host, port, override.address)
            return Dialled(await self._connect(decision), decision)
        resolved = await self._resolver.resolve(host, self)
        judged = [decide_address(book, host, port, a, own=is_own(a)) for a in resolved]
        allowed = interleave([d for d in judged if d.allowed])[:MAX_ADDRESSES]
        if not allowed:
            raise AddressRefused(judged[0]) if judged else Unresolved("no address")
        url = book.policy.upstream.proxy
        if url is not None:
            return await self._through_proxy(url, allowed[0])
        sock, decision = await self._race(allowed)
        return Dialled(sock, decision)

    async def _through_proxy(self, url: str, decision: AddressDecision) -> Dialled:
        """The proxy is told the judged address, not the name: it must not resolve anew."""
        where = proxy.parse(url)
        # The proxy's own address is the person's choice and may be private: not judged.
        addresses = await self._resolver.resolve(where.host, self)
        hops = [AddressDecision(address=address, port=where.port) for address in addresses]
        try:
            sock, _ = await self._race(hops[:MAX_ADDRESSES])
        except OSError as error:
            raise proxy.ProxyFailed(f"{where.host}:{where.port}: {error}") from None
        try:
            early = await proxy.connect(self._loop, sock, decision)
        except BaseException:
            sock.close()
            raise
        return Dialled(sock, decision, early)

    async def _race(
        self, candidates: Sequence[AddressDecision]
    ) -> tuple[socket.socket, AddressDecision]:
        """The first address that answers; a slow one gets company, a refused one a successor."""
        if len(candidates) == 1:
            return await self._connect(candidates[0]), candidates[0]
        waiting = list(reversed(candidates))
        attempts: dict[asyncio.Task[socket.socket], AddressDecision] = {}
        failure: OSError = OSError("no address")
        try:
            while waiting or attempts:
                if waiting:
                    candidate = waiting.pop()
                    attempts[self._loop.create_task(self._connect(candidate))] = candidate
                delay = ATTEMPT_DELAY if waiting else None
                done, _ = await asyncio.wait(
                    attempts, timeout=delay, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    candidate = attempts.pop(task)
                    error = task.exception()
                    if error is None:
                        return task.result(), candidate
                    failure = error if isinstance(error, OSError) else failure
            raise failure
        finally:
            await _abandon(list(attempts))

    async def _connect(self, decision: AddressDecision) -> socket.socket:
        """Dial exactly what the decision says."""
        address = decision.address
        if address is None:
            raise OSError("no address was judged")
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await self._reach(sock, (str(address), decision.port))
        except BaseException:
            sock.close()
            raise
        return sock

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


def dial_blocking(book: Rulebook, host: Host, port: int, patience: float) -> Dialled:
    """The same for a thread that runs no loop; the socket that comes back does not block either.

    Raises AddressRefused and Unreachable, as `Dialler.dial` does.
    """

    async def dial() -> Dialled:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience):
                return await Dialler(loop, SystemResolver(loop)).dial(book, host, port)
        except TimeoutError:
            raise Unreachable(Reason.UPSTREAM_UNREACHABLE, "timed out") from None

    return asyncio.run(dial())


def still_allowed(book: Rulebook, host: Host, port: int, dialled: AddressDecision) -> bool:
    """Whether what was dialled under another policy would be dialled under this one, too."""
    address = dialled.address
    if address is None:
        return False
    again = decide_address(book, host, port, address)
    return again.allowed and (again.address, again.port) == (address, dialled.port)


def is_own(address: Address) -> bool:
    """Whether an address is one of this host's, by the kernel's routes; nothing is sent.

    Only then is the source that the kernel chooses the destination itself. Asked for every
    connection: addresses come and go.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _DISCARD))
        except OSError:
            return False  # no route: it will not be reached either
        return str(probe.getsockname()[0]) == str(address)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _abandon(tasks: list[asyncio.Task[socket.socket]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, socket.socket):
            result.close()


def interleave(decisions: list[AddressDecision]) -> list[AddressDecision]:
    """Families in turn, beginning with the resolver's first choice (RFC 8305 §4)."""
    if not decisions:
        return []
    first = decisions[0].address
    version = 0 if first is None else first.version
    same = [d for d in decisions if d.address is not None and d.address.version == version]
    others = [d for d in decisions if d not in same]
    turns = [each for pair in zip(same, others, strict=False) for each in pair]
    longer = same if len(same) > len(others) else others
    return turns + longer[len(turns) // 2 :]
