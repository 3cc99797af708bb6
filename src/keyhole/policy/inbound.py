"""Which peers may connect to a pod, and at which of its ports.

Used by `schema.py`. A pod can send data to a peer that connects to it, so this is also a way out.
Each entry names one port and one kind of peer; no entry stands for everyone.
"""

from __future__ import annotations

import ipaddress
import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.policy.ports import DOOR_PORT, MAX_PORT

MAX_INBOUND = 16
"""Entries of the list (I9)."""

_EXPECTED = '"PORT from ADDRESS", "PORT from NETWORK" or "PORT from LABEL=VALUE" is expected'
_ENTRY = re.compile(r"([1-9][0-9]{0,4}) from (\S{1,400})")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._/-]{0,315}[A-Za-z0-9])?)=([A-Za-z0-9._-]{1,63})")


class InboundRule(Struct, frozen=True):
    """One port, and the peers that may connect to it: of a network, or pods with a label."""

    port: int
    network: str = ""
    label: tuple[str, str] | None = None
    """A label of pods in the namespace of the policy."""

    @classmethod
    def parse(cls, text: str) -> InboundRule:
        """Read one entry. Raises Unparsable."""
        found = _ENTRY.fullmatch(text)
        if found is None:
            raise Unparsable(_EXPECTED)
        port, peer = int(found[1]), found[2]
        if port > MAX_PORT:
            raise Unparsable(f"a port is a number from 1 to {MAX_PORT}")
        if port == DOOR_PORT:
            raise Unparsable(f"port {DOOR_PORT} inside is the door's own")
        label = _LABEL.fullmatch(peer)
        if label is not None:
            return cls(port, label=(label[1], label[3]))
        try:
            network = ipaddress.ip_network(peer)
        except ValueError:
            raise Unparsable(_EXPECTED) from None
        if network.prefixlen == 0:
            raise Unparsable("everyone is not a peer; name the network or the pods")
        return cls(port, str(network))

    def __str__(self) -> str:
        peer = "=".join(self.label) if self.label else self.network
        return f"{self.port} from {peer}"

    def names_address(self, address: str) -> bool:
        """Whether a peer is in the network of this rule."""
        if not self.network:
            return False
        given, network = ipaddress.ip_address(address), ipaddress.ip_network(self.network)
        return given.version == network.version and given in network

    def covers(self, other: InboundRule) -> bool:
        """Whether this rule admits every peer that the other rule admits."""
        if self.port != other.port:
            return False
        if self.label or other.label:
            return self.label == other.label
        outer, inner = ipaddress.ip_network(self.network), ipaddress.ip_network(other.network)
        if isinstance(outer, ipaddress.IPv4Network) and isinstance(inner, ipaddress.IPv4Network):
            return inner.subnet_of(outer)
        if isinstance(outer, ipaddress.IPv6Network) and isinstance(inner, ipaddress.IPv6Network):
            return inner.subnet_of(outer)
        return False


def read_inbound(value: object) -> InboundRule:
    """An item of `sandbox.inbound`."""
    if not isinstance(value, str):
        raise Unparsable(_EXPECTED)
    return InboundRule.parse(value)
