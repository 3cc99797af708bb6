"""The id of a session, and the events about the session itself."""

from __future__ import annotations

import secrets

from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind


def new_session() -> str:
    """An id that no other session has."""
    return secrets.token_hex(6)


def session_event(what: str, **details: str | int) -> Event:
    """The event that it started, ended, or was changed in between."""
    return Event(EventKind.SESSION, Verdict.ALLOW, what, details=tuple(details.items()))


def refused_event(what: str, **details: str | int) -> Event:
    """Something that concerns a session, or the gateway itself, was refused."""
    return Event(EventKind.SESSION, Verdict.DENY, what, details=tuple(details.items()))


def noted_event(what: str, **details: str | int) -> Event:
    """An event that the holder of a sandbox reports; a refusal is one by its name."""
    made = refused_event if what.endswith("-refused") else session_event
    return made(what, **details)
