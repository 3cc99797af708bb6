"""The states of a client's connection and of a stream: one table for each.

`connection.py` and `stream.py` change their state by these tables alone. The state of a message on
the wire is the HTTP machine's (`keyhole/http/states.py`).
"""

from __future__ import annotations

import enum
from typing import TypeVar

from keyhole.model.errors import Misuse

S = TypeVar("S", bound=enum.IntEnum)


class Life(enum.IntEnum):
    """The states of a connection."""

    HELLO = 0
    SECURING = 1
    OPEN = 2
    LEAVING = 3
    """Our last bytes were sent; the client may still read them."""
    GONE = 4


LIFE = {
    Life.HELLO: {Life.SECURING, Life.LEAVING, Life.GONE},
    Life.SECURING: {Life.OPEN, Life.LEAVING, Life.GONE},
    Life.OPEN: {Life.LEAVING, Life.GONE},
    Life.LEAVING: {Life.LEAVING, Life.GONE},
    Life.GONE: {Life.GONE},
}
"""The states that may follow each state of a connection."""


class Stage(enum.IntEnum):
    """The stages of a stream."""

    JUDGE = 0
    TOKEN = 1
    """A token is being fetched for it."""
    COLLECT = 2
    """Its body must be seen before it can be sent."""
    CONNECT = 3
    """A connection to the origin is being dialled."""
    EXCHANGE = 4
    """Request and response are under way."""
    RELAY = 5
    """It has become a WebSocket."""
    ASK = 6
    """A person is asked about it."""
    OVER = 7


STAGES = {
    Stage.JUDGE: {Stage.ASK, Stage.TOKEN, Stage.COLLECT, Stage.CONNECT, Stage.EXCHANGE, Stage.OVER},
    Stage.ASK: {Stage.JUDGE, Stage.OVER},
    Stage.TOKEN: {Stage.JUDGE, Stage.COLLECT, Stage.CONNECT, Stage.EXCHANGE, Stage.OVER},
    Stage.COLLECT: {Stage.CONNECT, Stage.EXCHANGE, Stage.OVER},
    Stage.CONNECT: {Stage.EXCHANGE, Stage.OVER},
    Stage.EXCHANGE: {Stage.CONNECT, Stage.RELAY, Stage.OVER},
    Stage.RELAY: {Stage.OVER},
    Stage.OVER: {Stage.OVER},
}
"""The stages that may follow each stage of a stream. An exchange dials again where a kept
connection was closed, or where a storage host redirects a download."""


def move(table: dict[S, set[S]], now: S, to: S) -> S:
    """The next state. Raises Misuse for a step that the table does not have."""
    if to not in table[now]:
        raise Misuse(f"from {now} to {to}")
    return to
