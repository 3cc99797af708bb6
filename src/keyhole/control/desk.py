"""Has an operation done and writes its answer. Called by `conversation.py`, once for each request.

What an operation may raise is translated here, and nowhere else; whatever it raises beyond that is
a fault, which the conversation answers without its words.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from keyhole.control import prometheus
from keyhole.control.answer import Problem, Rejected, success, text
from keyhole.control.interface import NoSuch, Operations, Refused
from keyhole.control.shape import ListOf
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keyhole.control.handed import HandedDoor
    from keyhole.control.peer import Peer
    from keyhole.control.request import Asked
    from keyhole.control.shape import Record


TURN_SECONDS = 0.002
"""How long an answer may be written before the loop looks at doors again. A turn of a busy loop
takes longer than a session takes to be written: a turn for each would be half a second a page."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request with all that came with it."""

    asked: Asked
    door: HandedDoor | None
    peer: Peer

    @property
    def session(self) -> str:
        """The id in the path."""
        return self.asked.parameters["id"]


_PERFORM: dict[str, Callable[[Operations, Call], Coroutine[Any, Any, Any]]] = {
    "status": lambda o, _: o.status(),
    "health": lambda o, _: o.health(),
    "metrics": lambda o, _: _metrics(o),
    "list_sessions": lambda o, c: o.list_sessions(c.asked.query),
    "show_session": lambda o, c: o.show_session(c.session),
    "open_session": lambda o, c: o.open_session(c.asked.body, c.door, c.peer),
    "open_door": lambda o, c: o.open_door(c.session, _door(c), c.peer),
    "stop_session": lambda o, c: o.stop_session(c.session, c.peer),
    "revoke_session": lambda o, c: o.revoke_session(c.session, c.peer),
    "revoke_all": lambda o, c: o.revoke_all(c.peer),
    "grant": lambda o, c: o.grant(c.session, c.asked.body, c.peer),
    "reload": lambda o, c: o.reload(c.peer),
    "secret_changed": lambda o, c: o.secret_changed(c.asked.parameters["name"], c.peer),
    "stop_gateway": lambda o, c: o.stop_gateway(c.peer),
}
PERFORMED = frozenset(_PERFORM)
"""What can be done: a test compares it with the table."""


async def perform(operations: Operations, call: Call) -> bytes:
    """Do what is asked; the answer."""
    operation = call.asked.operation
    try:
        value = await _PERFORM[operation.name](operations, call)
    except NoSuch:
        raise Rejected(Problem.NOT_FOUND) from None
    except Refused as refused:
        raise Rejected(Problem.REFUSED, refused.why) from None
    if operation.metrics:
        return text(prometheus.CONTENT_TYPE, value)
    return success(operation, await _written(operation.answer, value))


async def _written(record: Record | None, value: object) -> dict[str, object] | None:
    """An answer by its shape, whose Misshapen is a fault of ours. Long lists take several turns."""
    if record is None:
        return None
    found: dict[str, object] = {}
    begun = time.monotonic()
    for name, field in record.fields.items():
        member, shape = getattr(value, name), field.shape
        if not isinstance(shape, ListOf):
            found[name] = shape.write(member, f"answer.{name}")
            continue
        found[name] = items = []
        for item in shape.bounded(member, f"answer.{name}"):
            items.append(shape.shape.write(item, f"answer.{name}[]"))
            if time.monotonic() - begun > TURN_SECONDS:
                await asyncio.sleep(0)
                begun = time.monotonic()
    return found


def _door(call: Call) -> HandedDoor:
    if call.door is None:  # its shape has at least two sockets, and all of them are here
        raise TypeError("a request for a door came through without one")
    return call.door


async def _metrics(operations: Operations) -> bytes:
    """In turns: thousands of lines must not keep connections waiting."""
    found: list[str] = []
    for line in prometheus.lines(await operations.metrics()):
        found.append(line)
        if not len(found) % prometheus.TURN:
            await asyncio.sleep(0)
    return "".join(found).encode("utf-8", "backslashreplace")
