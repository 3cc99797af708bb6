"""The addresses that names have inside: 198.18.0.0/15, one per name, never reused (I4)."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.model.host import Host

FIRST = int(IPv4Address("198.18.0.0"))
"""RFC 2544's benchmarking range: on no network that a program could mean."""

MAX_NAMES = 65_000
"""Names that a session may learn, about 20 MiB of table; under a wildcard the sandbox chooses."""

_USABLE_PER_BLOCK = 254
"""Of each 256 addresses, the first and the last look like a network's edges to some programs."""


class SyntheticNames:
    """Which name an address stands for in one session."""

    __slots__ = ("_addresses", "_names")

    def __init__(self) -> None:
        self._addresses: dict[Host, IPv4Address] = {}
        self._names: dict[str, Host] = {}

    def address(self, host: Host) -> IPv4Address | None:
        """The name's address, given out now if it has none; None when the table is full."""
        known = self._addresses.get(host)
        if known is not None or len(self._addresses) >= MAX_NAMES:
            return known
        block, place = divmod(len(self._addresses), _USABLE_PER_BLOCK)
        address = IPv4Address(FIRST + block * 256 + place + 1)
        self._addresses[host] = address
        self._names[str(address)] = host
        return address

    def name(self, address: str) -> Host | None:
        """The name that an address was given out for; None for any other."""
        return self._names.get(address)
