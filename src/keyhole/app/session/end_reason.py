"""Why a session ended: for the channel, the audit log, and the user."""

from __future__ import annotations

import enum


class EndReason(enum.StrEnum):
    """Why a session's door was closed."""

    REVOKED = "revoked"
    IDLE = "idle"
    """No allowed request used a credential for as long as `limits.idle` says."""
    EXPIRED = "expired"
    """`limits.ttl` is over."""
    STOPPED = "stopped"
    """A person or the gateway ended it."""
    LOST = "lost"
    """The data plane that served it ended, or was killed because its loop was stuck."""
    DONE = "done"
    """The sandbox has ended."""
