"""Why a session ended: said over the line, in the log, and to the person."""

from __future__ import annotations

import enum


class Ending(enum.StrEnum):
    """Why a session's door was closed."""

    REVOKED = "revoked"
    IDLE = "idle"
    """`limits.idle` went by without an allowed request that used a credential."""
    EXPIRED = "expired"
    """`limits.ttl` is over."""
    STOPPED = "stopped"
    """A person ended it, or the gateway."""
    LOST = "lost"
    """The data plane that served it ended, or was ended because it did not turn any more."""
    DONE = "done"
    """Its sandbox has ended."""
