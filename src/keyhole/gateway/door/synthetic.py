"""The addresses that names have inside: 198.18.0.0/15, one per name, never reused (I4)."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.model.host import Host

FIRST = int(IPv4Address("198.18.0.0"))
"""RFC 2544's benchmarking range, which no real network uses."""

MAX_NAMES = 65_000
"""Names that a session may learn, about 20 MiB of table; under a wildcard the sandbox chooses."""

_USABLE_PER_BLOCK = 254
"""Usable addresses of each 256: some programs take the first and the last for a network's edges."""


class SyntheticNames:
    """The names of one session by their addresses."""

    __slots__ = ("_addresses", "_names")

    def __init__(self) -> None:
        self._addresses: dict[Host, IPv4Address] = {}
        self._names: dict[str, Host] = {}

    def address(self, host: Host) -> IPv4Address | None:
        """The name's address, assigned now if it has none; None when the table is full."""
        known = self._addresses.get(host)
        if known is not None or len(self._addresses) >= MAX_NAMES:
            return known
        block, place = divmod(len(self._addresses), _USABLE_PER_BLOCK)
        address = IPv4Address(FIRST + block * 256 + place + 1)
        self._addresses[host] = address
        self._names[str(address)] = host
        return address

    def __contains__(self, host: Host) -> bool:
        return host in self._addresses

    def __len__(self) -> int:
        return len(self._addresses)

    def name(self, address: str) -> Host | None:
        """The name that has this address; None for any other address."""
        return self._names.get(address)
