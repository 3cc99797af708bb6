"""One worker's shares of the limits that all sandboxes of a gateway have together.

Made by `data_plane.py`. The control process gives the shares (`limit_shares.py`), and asks for
their use when a worker says that it lacks some.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.app.daemon.plane_messages import LimitUse, LimitUses

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from keyhole.audit.log import AuditLog
    from keyhole.gateway.gateway import Gateway

AUDIT = "audit_per_second"


class CommonLimits:
    """The limits of the gateway room and of the audit log."""

    def __init__(self, tell: Callable[[], None] | None) -> None:
        """`tell` informs the control process that something lacks; None: this worker has it
        all."""
        self._tell = tell
        self._told = tell is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._log: AuditLog | None = None

    def attach(self, loop: asyncio.AbstractEventLoop, gateway: Gateway, log: AuditLog) -> None:
        """The places where the limits are kept."""
        self._loop, self._gateway, self._log = loop, gateway, log

    def lack(self) -> None:
        """A limit refused. Told once until the control process looks."""
        if self._told or self._loop is None or self._tell is None:
            return
        self._told = True
        if threading.current_thread() is threading.main_thread():
            self._tell()
        else:  # the audit log's
            self._loop.call_soon_threadsafe(self._tell)

    def share(self, shares: Mapping[str, float]) -> LimitUses:
        """Take over new shares, and return the use of all limits since the last call."""
        if self._gateway is None or self._log is None:
            return LimitUses(())
        self._told = self._tell is None
        self._gateway.share_limits(shares)
        if AUDIT in shares:
            self._log.share_rate(shares[AUDIT])
        uses = self._gateway.look_at_limits()
        written = self._log.look_at_rate()
        if written is not None:
            uses[AUDIT] = written
        return LimitUses(tuple(LimitUse(name, *use) for name, use in uses.items()))
