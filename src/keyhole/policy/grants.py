"""What a person grants a running session beside its policy: one host, for a time, so many times.

Kept by the door, asked by `egress.py` once the policy itself has no rule. A grant opens a tunnel
and nothing else: it names one host and port, never a pattern, and never a host whose requests the
policy judges (I3). It is handed the time and reads no clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.value import dataclass, replace

if TYPE_CHECKING:
    from keyhole.policy.rulebook import Rulebook

MAX_GRANTS = 64
"""Grants that a session has at once: what a person adds by hand, with room for a script."""

MAX_USES = 1_000_000
"""Connections of one grant: beyond it, the policy is the place to say so."""

DNS_PORT = 53
"""Where whatever is sent is a question to the gateway itself."""

LAST_PORT = 65535


class Ungrantable(Exception):
    """What cannot be granted at run time; the text is for a person."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One host and port, until a time and for a number of connections that are still to come."""

    host: Host
    port: int
    expires: float
    """By the clock of whoever asks."""
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
        """Grant this from now on, in place of what was granted for the same. Raises Ungrantable."""
        key = (grant.host, grant.port)
        if key not in self._kept and len(self._kept) >= MAX_GRANTS:
            raise Ungrantable(f"a session has at most {MAX_GRANTS} grants at once")
        self._kept[key] = grant

    def find(self, host: Host, port: int, now: float) -> Grant | None:
        """The grant of a host and port while it lasts; one that is used up has no uses."""
        found = self._kept.get((host, port))
        return found if found is not None and now < found.expires else None

    def take(self, grant: Grant) -> None:
        """A connection was let through by this."""
        self._kept[grant.host, grant.port] = replace(grant, uses=grant.uses - 1)

    def rule_for_name(self, host: Host, now: float) -> str | None:
        """The rule by which a name exists while it is granted, at whatever port."""
        for grant in self._kept.values():
            if grant.host == host and now < grant.expires:
                return grant.rule
        return None

    def expire(self, now: float) -> tuple[Grant, ...]:
        """Forget those whose time is over, and say which."""
        over = tuple(grant for grant in self._kept.values() if now >= grant.expires)
        for grant in over:
            del self._kept[grant.host, grant.port]
        return over

    def reconcile(self, book: Rulebook) -> tuple[Grant, ...]:
        """Forget those that another policy does not let anyone grant, and say which."""
        over = tuple(grant for grant in self._kept.values() if book.rules_of_name(grant.host))
        for grant in over:
            del self._kept[grant.host, grant.port]
        return over

    def views(self) -> tuple[Grant, ...]:
        """All of them, as they are now."""
        return tuple(self._kept.values())


def grantable(book: Rulebook, host: Host, port: int, seconds: float, uses: int) -> None:
    """Raise Ungrantable, with words, where this may not be granted beside the policy."""
    for rules in book.rules_of_name(host):
        raise Ungrantable(
            f"{host} is a host of {rules.service.rule}: what of it is open is the policy's to say"
        )
    known = book.grant(host, port)
    if known is not None:
        where = host if port == DEFAULT_PORT else f"{host}:{port}"
        raise Ungrantable(f"{where} is allowed already, by {known.rule}")
    if not 0 < port <= LAST_PORT or port == DNS_PORT:
        raise Ungrantable(f"port {port} is not one that can be granted")
    if not (0 < seconds < math.inf and 0 < uses <= MAX_USES):
        raise Ungrantable(f"a grant has a time, and from 1 to {MAX_USES} uses")
