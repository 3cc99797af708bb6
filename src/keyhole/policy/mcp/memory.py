"""What one session knows of one MCP server: bounded tables, of this session alone.

Filled by the filters of answers, and asked by the judge of the next request. A full table forgets
its oldest entry, so that the server's ids cost a bounded amount of memory (I9) and the client at
worst begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakSet

from keyhole.model.errors import Malformed
from keyhole.policy.mcp.pins import ToolPins

if TYPE_CHECKING:
    from keyhole.policy.mcp_grant import McpGrant

MAX_SESSIONS = 64
"""Sessions that the server opened for this sandbox: agents have a few clients."""

MAX_ENDPOINTS = 64
"""Endpoints of the older transport: one for each open stream."""

MAX_ASKED = 256
"""Requests of the server that the client may still answer."""

MAX_REFUSED = 256
"""Refused calls of the older transport whose answer has not come on its stream yet."""

MAX_EVENT_IDS = 4096
"""Ids of a server's events that a client may resume from, of 1 KiB at most. A stream that reports
progress sends hundreds before another one is resumed."""

MAX_HELD = 16 << 20
"""Bytes of unfinished messages in all answers of one server to one session."""

V = TypeVar("V")


class BoundedTable(Generic[V]):
    """A mapping that forgets its oldest entry when it is full."""

    __slots__ = ("_entries", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[str, V] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def put(self, key: str, value: V) -> None:
        """Remember it as the newest."""
        self._entries.pop(key, None)
        if len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value

    def get(self, key: str) -> V | None:
        """The value, if it is remembered."""
        return self._entries.get(key)

    def take(self, key: str) -> V | None:
        """The value, which is forgotten."""
        return self._entries.pop(key, None)


class HoldingAnswer(Protocol):
    """An answer that holds bytes until a message is whole."""

    @property
    def held(self) -> int:
        """Bytes of a message that has not ended."""

    def __hash__(self) -> int: ...


class McpMemory:
    """The tables of one session and service."""

    def __init__(self, grant: McpGrant) -> None:
        self.sessions: BoundedTable[bool] = BoundedTable(MAX_SESSIONS)
        self.endpoints: BoundedTable[bool] = BoundedTable(MAX_ENDPOINTS)
        self.asked: BoundedTable[bool] = BoundedTable(MAX_ASKED)
        """The server's requests by id, and whether the client may answer with a result."""
        self.refused: BoundedTable[str] = BoundedTable(MAX_REFUSED)
        """Calls of the older transport by id, and why they were refused."""
        self.event_ids: BoundedTable[bool] = BoundedTable(MAX_EVENT_IDS)
        self.pins = ToolPins(dict(grant.accepted), pin=grant.pin)
        self.answers: WeakSet[HoldingAnswer] = WeakSet()
        """Answers that are being read; one that was cut leaves by itself."""

    def check_held(self) -> None:
        """Refuse to hold more of unfinished messages. Raises Malformed."""
        if sum(answer.held for answer in self.answers) > MAX_HELD:
            raise Malformed(f"its unfinished messages have more than {MAX_HELD} bytes")
