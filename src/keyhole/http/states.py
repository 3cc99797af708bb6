"""The states of one request and its response on an HTTP/1.1 connection: one table for both sides.

Used by `server.py`, which reads requests and writes responses, and by `client.py`, which writes
requests and reads responses. Each machine keeps a state for the request and one for the response,
and changes them by these tables alone. A step that the table does not have is an error of the
caller's (`Misuse`), never of the peer's.
"""

from __future__ import annotations

import enum

from keyhole.model.errors import Misuse


class State(enum.IntEnum):
    """How far a message has come. An integer, since those are looked up without a call."""

    IDLE = 0
    """Nothing of it has begun."""
    BODY = 1
    """Its head is through; its body is under way."""
    DONE = 2
    """It is whole."""
    SWITCHED = 3
    """The connection speaks another protocol (RFC 9110 §7.8)."""
    CLOSED = 4
    """Nothing follows on this connection."""


class Step(enum.IntEnum):
    """A step of a message."""

    HEAD = 0
    """Its head, and a body follows."""
    WHOLE = 1
    """Its head, and it has no body."""
    INTERIM = 2
    """A response of class 1xx before the real one."""
    END = 3
    SWITCH = 4
    NEXT = 5
    """Both messages are whole, and the connection takes another request."""
    CLOSE = 6


OVER = "the stream is over"


class _Row(dict[Step, State]):
    def __missing__(self, step: Step) -> State:
        raise Misuse(f"{step.name} is not possible here")


REQUEST = {
    State.IDLE: _Row({Step.HEAD: State.BODY, Step.WHOLE: State.DONE, Step.CLOSE: State.CLOSED}),
    State.BODY: _Row({Step.END: State.DONE, Step.CLOSE: State.CLOSED}),
    State.DONE: _Row(
        {Step.NEXT: State.IDLE, Step.SWITCH: State.SWITCHED, Step.CLOSE: State.CLOSED}
    ),
    State.SWITCHED: _Row({Step.CLOSE: State.CLOSED}),
    State.CLOSED: _Row({Step.CLOSE: State.CLOSED}),
}
"""The steps of a request: its body has ended before the connection can switch or take the next
request."""

RESPONSE = {
    State.IDLE: _Row(
        {
            Step.INTERIM: State.IDLE,
            Step.HEAD: State.BODY,
            Step.SWITCH: State.SWITCHED,
            Step.CLOSE: State.CLOSED,
        }
    ),
    State.BODY: _Row({Step.END: State.DONE, Step.CLOSE: State.CLOSED}),
    State.DONE: _Row({Step.NEXT: State.IDLE, Step.CLOSE: State.CLOSED}),
    State.SWITCHED: _Row({Step.CLOSE: State.CLOSED}),
    State.CLOSED: _Row({Step.CLOSE: State.CLOSED}),
}
"""The steps of a response: it may begin while the request's body is still on its way."""
