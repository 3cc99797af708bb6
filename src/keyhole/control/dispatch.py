"""Runs an operation and writes its answer. Called by `connection.py`, once for each request.

Errors that an operation may raise are translated here and nowhere else. Any other exception is a
fault, which the conversation answers without the exception's text.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.control import prometheus
from keyhole.control.interface import NoSuchSession, Operations
from keyhole.control.responses import ApiError, RequestRejected, success_response, text_response
from keyhole.control.shapes import ListShape
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keyhole.control.event_feed import EventFeed
    from keyhole.control.peer import Peer
    from keyhole.control.received_door import ReceivedDoor
    from keyhole.control.request import ControlRequest
    from keyhole.control.shapes import RecordShape


TURN_SECONDS = 0.002
"""How long an answer is written before the loop looks at doors again. A turn of a busy loop takes
longer than one session takes to write, so a turn for each would be half a second a page."""


class OperationCall(Struct, frozen=True):
    """A request with its peer, values and descriptors."""

    asked: ControlRequest
    door: ReceivedDoor | None
    peer: Peer

    @property
    def session(self) -> str:
        """The id in the path."""
        return self.asked.parameters["id"]


_PERFORM: dict[str, Callable[[Operations, OperationCall], Coroutine[Any, Any, Any]]] = {
    "status": lambda o, _: o.status(),
    "health": lambda o, _: o.health(),
    "metrics": lambda o, _: _metrics(o),
    "list_sessions": lambda o, c: o.list_sessions(c.asked.query),
    "show_session": lambda o, c: o.show_session(c.session),
    "open_session": lambda o, c: o.open_session(c.asked.body, c.door, c.peer),
    "open_door": lambda o, c: o.open_door(c.session, _door(c), c.peer),
    "stop_session": lambda o, c: o.stop_session(c.session, c.peer),
    "resume_session": lambda o, c: o.resume_session(c.session, c.peer),
    "revoke_session": lambda o, c: o.revoke_session(c.session, c.peer),
    "revoke_all": lambda o, c: o.revoke_all(c.peer),
    "grant": lambda o, c: o.grant(c.session, c.asked.body, c.peer),
    "list_asks": lambda o, _: o.list_asks(),
    "answer_ask": lambda o, c: o.answer_ask(
        c.session, c.asked.parameters["ask"], c.asked.body, c.peer
    ),
    "reload": lambda o, c: o.reload(c.peer),
    "invite": lambda o, c: o.invite(c.asked.body, c.peer),
    "secret_changed": lambda o, c: o.secret_changed(c.asked.parameters["name"], c.peer),
    "stop_gateway": lambda o, c: o.stop_gateway(c.peer),
}
STREAMED = frozenset({"watch"})
PERFORMED = frozenset(_PERFORM) | STREAMED
"""The names of all operations, which a test compares with the table."""


async def perform(operations: Operations, call: OperationCall) -> bytes:
    """Run the operation and return its answer."""
    operation = call.asked.operation
    try:
        value = await _PERFORM[operation.name](operations, call)
    except NoSuchSession:
        raise RequestRejected(ApiError.NOT_FOUND) from None
    except Refused as refused:
        raise RequestRejected(ApiError.REFUSED, refused.message) from None
    if operation.metrics:
        return text_response(prometheus.CONTENT_TYPE, value)
    return success_response(operation, await _written(operation.answer, value))


def begin_stream(operations: Operations, call: OperationCall) -> EventFeed:
    """Begin a stream of events. Raises RequestRejected."""
    try:
        return operations.watch(call.asked.query)
    except Refused as refused:
        raise RequestRejected(ApiError.REFUSED, refused.message) from None


async def _written(record: RecordShape[Any] | None, value: object) -> dict[str, object] | None:
    """Write an answer by its shape, over several turns if it is long. Unparsable: a fault here."""
    if record is None:
        return None
    found: dict[str, object] = {}
    begun = time.monotonic()
    for name, field in record.fields.items():
        member, shape = getattr(value, name), field.shape
        if not isinstance(shape, ListShape):
            found[name] = shape.write(member, f"answer.{name}")
            continue
        found[name] = items = []
        for item in shape.bounded(member, f"answer.{name}"):
            items.append(shape.shape.write(item, f"answer.{name}[]"))
            if time.monotonic() - begun > TURN_SECONDS:
                await asyncio.sleep(0)
                begun = time.monotonic()
    return found


def _door(call: OperationCall) -> ReceivedDoor:
    if call.door is None:  # the shape requires at least two sockets, and all of them came
        raise TypeError("a request for a door came through without one")
    return call.door


async def _metrics(operations: Operations) -> bytes:
    """Write metrics in a thread, so that thousands of samples delay no connection."""
    return await asyncio.to_thread(prometheus.exposition, await operations.metrics())
