"""Decides whether the gateway may dial an address for a host (I4).

Attack: an allowed name resolves to the metadata service, to the user's own loopback or to a machine
of the private network, by the owner's choice or by rebinding.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.model.decision import Address, AddressDecision, Reason, Verdict
from keyhole.policy.rulebook import Rulebook

if TYPE_CHECKING:
    from keyhole.model.host import Host

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, Oracle, DigitalOcean …
        "169.254.170.2",  # AWS containers
        "169.254.170.23",  # AWS pod identity
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server: a public address
        "192.0.0.192",  # Oracle classic
        "fd00:ec2::254",  # AWS over IPv6: inside the private range
        "fd00:ec2::23",
        "fd20:ce::254",  # Google over IPv6
    )
)

_EMBEDDING = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local NAT64
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
    )
)
"""IPv6 ranges that contain an IPv4 address, which would not be judged."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All addresses that were ever assigned; `is_global` is true for site-local addresses too."""

_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""Ranges that `[upstream] private` can open: RFC 1918, RFC 6598 and unique local addresses."""


def decide_address(
    book: Rulebook, host: Host, port: int, resolved: Address, *, own: bool = False
) -> AddressDecision:
    """Decide one resolved address; the decision carries the address and port to dial.

    `own`: it belongs to an interface of this host, where a service may trust the gateway as it
    trusts loopback.
    """
    override = book.connect.get((host, port))
    if override:
        rule = "upstream.connect"
        return AddressDecision(
            Verdict.ALLOW, Reason.CONNECT_OVERRIDE, rule, override.address, override.port
        )
    refusal = _refusal(resolved, own=own)
    if refusal is None:
        return AddressDecision(Verdict.ALLOW, Reason.PUBLIC_ADDRESS, "default", resolved, port)
    if refusal is Reason.ADDRESS_PRIVATE:
        for index, pattern in enumerate(book.policy.upstream.private):
            if pattern.matches(host):
                rule = f"upstream.private[{index}]"
                return AddressDecision(Verdict.ALLOW, Reason.PRIVATE_GRANTED, rule, resolved, port)
    return AddressDecision(reason=refusal)


def has_exception(book: Rulebook, host: Host, port: int) -> bool:
    """Whether the policy itself opens addresses of this host that are not public."""
    private = book.policy.upstream.private
    return (host, port) in book.connect or any(pattern.matches(host) for pattern in private)


def public_alone(book: Rulebook) -> Rulebook:
    """The same rules without these exceptions, for hosts that another server names."""
    upstream = replace(book.policy.upstream, private=(), connect=())
    return Rulebook(replace(book.policy, upstream=upstream))


def _refusal(address: Address, *, own: bool) -> Reason | None:
    """The reason why an address may not be dialled; None for a public one."""
    if address in _METADATA:
        return Reason.ADDRESS_METADATA
    if own or address.is_loopback:
        return Reason.ADDRESS_LOOPBACK
    if address.is_link_local:
        return Reason.ADDRESS_LINK_LOCAL
    if address.is_multicast:
        return Reason.ADDRESS_MULTICAST
    if address.version == 6 and any(address in network for network in _EMBEDDING):
        return Reason.ADDRESS_EMBEDDED
    if any(address in network for network in _PRIVATE if network.version == address.version):
        return Reason.ADDRESS_PRIVATE
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return Reason.ADDRESS_RESERVED
    return None if address.is_global else Reason.ADDRESS_RESERVED
