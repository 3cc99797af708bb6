"""Grants to a running session beside its policy: one host, for a time and a number of connections.

The door keeps them, and `egress.py` consults them when the policy has no rule. A grant opens a
tunnel and nothing else: it names one host and port, never a pattern, and never an inspected host
(I3). The caller passes the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.model.host import DEFAULT_PORT, Host

if TYPE_CHECKING:
    from keyhole.policy.rulebook import Rulebook

MAX_GRANTS = 64
"""Grants that a session has at once: enough for a person, with room for a script."""

MAX_USES = 1_000_000
"""Connections of one grant; more need a change of the policy."""

DNS_PORT = 53
"""Everything sent to this port is a question to the gateway itself."""

LAST_PORT = 65535


class Grant(Struct, frozen=True):
    """One host and port, until a time and for a number of further connections."""

    host: Host
    port: int
    expires: float
    """The end, by the caller's clock."""
    uses: int

    @property
    def rule(self) -> str:
        """The name by which decisions cite it."""
        return f"grants.{self.host}"


class Grants:
    """The grants of one session, at most one for each host and port."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[Host, int], Grant] = {}

    def add(self, grant: Grant) -> None:
        """Add a grant; it replaces one for the same host and port. Raises Refused."""
        key = (grant.host, grant.port)
        if key not in self._kept and len(self._kept) >= MAX_GRANTS:
            raise Refused(f"a session has at most {MAX_GRANTS} grants at once")
        self._kept[key] = grant

    def find(self, host: Host, port: int, now: float) -> Grant | None:
        """The grant of a host and port while it is valid; a used-up one has no uses."""
        found = self._kept.get((host, port))
        return found if found is not None and now < found.expires else None

    def take(self, grant: Grant) -> None:
        """Count a connection that this grant allowed."""
        self._kept[grant.host, grant.port] = replace(grant, uses=grant.uses - 1)

    def rule_for_name(self, host: Host, now: float) -> str | None:
        """The rule by which a granted name exists, at any port."""
        for grant in self._kept.values():
            if grant.host == host and now < grant.expires:
                return grant.rule
        return None

    def expire(self, now: float) -> tuple[Grant, ...]:
        """Remove expired grants and return them."""
        over = tuple(grant for grant in self._kept.values() if now >= grant.expires)
        for grant in over:
            del self._kept[grant.host, grant.port]
        return over

    def reconcile(self, book: Rulebook) -> tuple[Grant, ...]:
        """Remove grants that another policy does not permit, and return them."""
        over = tuple(grant for grant in self._kept.values() if book.rules_of_name(grant.host))
        for grant in over:
            del self._kept[grant.host, grant.port]
        return over

    def views(self) -> tuple[Grant, ...]:
        """All grants."""
        return tuple(self._kept.values())


def grantable(book: Rulebook, host: Host, port: int, seconds: float, uses: int) -> None:
    """Raise Refused, with the reason, if this may not be granted beside the policy."""
    for rules in book.rules_of_name(host):
        raise Refused(
            f"{host} is a host of {rules.service.rule}: what of it is open is the policy's to say"
        )
    known = book.grant(host, port)
    if known is not None:
        where = host if port == DEFAULT_PORT else f"{host}:{port}"
        raise Refused(f"{where} is allowed already, by {known.rule}")
    if not 0 < port <= LAST_PORT or port == DNS_PORT:
        raise Refused(f"port {port} is not one that can be granted")
    if not (0 < seconds < math.inf and 0 < uses <= MAX_USES):
        raise Refused(f"a grant has a time, and from 1 to {MAX_USES} uses")
