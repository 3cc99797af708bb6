"""An audit event: what happened, the decision, and the rule that decided (I8).

Made by the shells, written by `audit/`, which adds the time, the session and the chain.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from keyhole.model.decision import NO_RULE, Decision, Verdict


class EventKind(enum.StrEnum):
    """The subject of an event."""

    SESSION = "session"
    DNS = "dns"
    CONNECT = "connect"
    REQUEST = "request"
    BODY = "body"
    USAGE = "usage"
    REF = "ref"
    ASK = "ask"
    DECOY = "decoy"
    SIGN = "sign"
    CHANGES = "changes"
    LIMIT = "limit"
    AUDIT = "audit"


class Event(Struct, frozen=True):
    """One thing that happened. `details` are small, flat and never hold a secret."""

    kind: EventKind
    verdict: Verdict
    reason: str
    rule: str = NO_RULE
    host: str = ""
    details: tuple[tuple[str, str | int | float], ...] = ()

    @classmethod
    def of(
        cls, kind: EventKind, decision: Decision, host: str, **details: str | int | float
    ) -> Event:
        """The event of a decision."""
        return cls(
            kind, decision.verdict, decision.reason, decision.rule, host, tuple(details.items())
        )
