"""Values that all connections of a gateway share, and the destination of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.gateway.body_memory import BodyMemory
    from keyhole.gateway.budgets import Commons
    from keyhole.gateway.slots import Slots
    from keyhole.model.decision import EgressDecision
    from keyhole.model.host import Host
    from keyhole.system.dialler import Dialler
    from keyhole.system.share_pool import SharePool


def _takes_all(_: int) -> bool:
    """Without a register of Keyhole's own ports, every port may be one (I3)."""
    return True


class DoorContext(Struct, frozen=True):
    """Shared by all doors of a gateway."""

    loop: asyncio.AbstractEventLoop
    upstream: Dialler
    slots: Slots
    commons: Commons
    fetches: SharePool
    """Threads that read large fetches."""
    bodies: SharePool
    """Long bodies that are judged at the same time."""
    memory: BodyMemory
    """For bodies that are collected."""
    is_own_port: Callable[[int], bool] = _takes_all
    """Whether a port of the host is Keyhole's own."""


class Destination(Struct, frozen=True):
    """The destination of a connection, and the decision that allowed it."""

    host: Host
    port: int
    decision: EgressDecision
