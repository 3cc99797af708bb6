"""Reads a server's answer: one message of JSON, or a stream of events with a message each.

The gateway gives it the answer's bytes as they come and passes on what it returns.
An event leaves when it is whole, so a stream stays live.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, ResponseUnfit, Unparsable
from keyhole.model.host import Host
from keyhole.policy.body import AnswerRewriter
from keyhole.policy.mcp.raw_messages import MAX_ANSWER
from keyhole.wire.event_stream import (
    MEDIA_TYPE,
    EventStreamReader,
    StreamEvent,
    escape_breaks,
    write_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.model.host import HostPattern
    from keyhole.policy.mcp.memory import McpMemory
    from keyhole.policy.mcp.server_messages import ServerFilter

MAX_ERROR = 8192
"""Bytes of an error in the server's own words that are passed on."""

MAX_FAILED = 64 << 10
"""Bytes of an answer with an error's status that are read."""

SESSION_FIELD = "mcp-session-id"

_OK, _UNAUTHORIZED, _BAD_REQUEST = 200, 401, 400
_JSON = "application/json"
_SESSION = re.compile(r"[!-~]{1,1024}")
_PLACE = re.compile(r"/(?!/)[!-~]{0,2047}")
_ADDRESS = re.compile(r"https://([A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?(?=/)")
_MESSAGE, _ENDPOINT = "message", "endpoint"
_COMMENT = StreamEvent()


class McpAnswer(AnswerRewriter):
    """The answer to one request."""

    def __init__(
        self,
        messages: ServerFilter,
        memory: McpMemory,
        hosts: tuple[HostPattern, ...],
        *,
        opens: bool = False,
    ) -> None:
        """`hosts` are the server's; `opens` says that the request may begin a session of MCP."""
        self._messages = messages
        self._memory = memory
        self._hosts = hosts
        self._opens = opens
        # Not a bound method: the cycle would keep an answer that was cut.
        self._read: Callable[[McpAnswer, bytes], bytes] = _read_nothing
        self._stream = EventStreamReader(MAX_ANSWER)
        self._whole = bytearray()
        self._failed = False
        memory.answers.add(self)

    @property
    def held(self) -> int:
        """Bytes of a message that has not ended."""
        return len(self._whole) + self._stream.held

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """As `AnswerRewriter`."""
        if status == _UNAUTHORIZED:
            # If it were passed on, the client would begin a login of its own in the sandbox.
            raise ResponseUnfit(Reason.CREDENTIAL_REFUSED)
        given = fields.get(SESSION_FIELD, "")
        if self._opens and _SESSION.fullmatch(given):
            self._memory.sessions.put(given, True)
        media = fields.get("content-type", "").partition(";")[0].strip().lower()
        if status >= _BAD_REQUEST:
            self._failed = True
            self._read = McpAnswer._read_whole
        elif status == _OK:
            self._read = self._reading(media)
        return True

    @staticmethod
    def _reading(media: str) -> Callable[[McpAnswer, bytes], bytes]:
        if media == MEDIA_TYPE:
            return McpAnswer._read_stream
        if media == _JSON:
            return McpAnswer._read_whole
        if not media:
            return _read_nothing  # the end of a session has no body, and no type
        raise Malformed("the origin's answer is neither JSON nor a stream of events")

    def feed(self, piece: bytes) -> bytes:
        """As `AnswerRewriter`."""
        return self._read(self, piece)

    def end(self) -> bytes:
        """As `AnswerRewriter`. An event that has not ended is not passed on."""
        data = bytes(self._whole)
        self._whole.clear()
        if not data:
            return b""
        try:
            return self._messages.filter(data)
        except Malformed:
            if self._failed:
                return data[:MAX_ERROR]
            raise

    def _read_whole(self, piece: bytes) -> bytes:
        if self._failed:
            piece = piece[: MAX_FAILED - len(self._whole)]
        if len(self._whole) + len(piece) > MAX_ANSWER:
            raise Malformed(f"its message has more than {MAX_ANSWER} bytes")
        self._whole += piece
        self._memory.check_held()
        return b""

    # ── events ────────────────────────────────────────────────────────────────────────────────────

    def _read_stream(self, piece: bytes) -> bytes:
        events = self._stream.feed(piece)
        self._memory.check_held()
        return b"".join(map(self._pass, events))

    def _pass(self, event: StreamEvent) -> bytes:
        if event.name == _ENDPOINT:
            return self._pass_endpoint(event)
        if event.name not in ("", _MESSAGE):
            return write_event(_COMMENT)
        if event.id:
            self._memory.event_ids.put(event.id, True)
        if not event.data:
            return write_event(event)
        data = self._messages.filter(event.data)
        if not data:
            # Its id stays: a client that comes back asks from there on.
            return write_event(StreamEvent(id=event.id, retry=event.retry))
        return write_event(StreamEvent(event.name, escape_breaks(data), event.id, event.retry))

    def _pass_endpoint(self, event: StreamEvent) -> bytes:
        """The older transport: the server says where messages go, which is a path of its own
        host (I4)."""
        said = (event.data or b"").decode("latin-1")
        address = _ADDRESS.match(said)
        own = address is not None and self._is_own(address[1])
        place = said[address.end() :] if address is not None and own else said
        if not _PLACE.fullmatch(place) or "#" in place or "\\" in place:
            raise Malformed("the origin's endpoint is not a path of its own host")
        self._memory.endpoints.put(place, True)
        return write_event(StreamEvent(_ENDPOINT, place.encode("ascii")))

    def _is_own(self, name: str) -> bool:
        """Whether a name is the server's. The client is given the path alone, so it stays where it
        is."""
        try:
            host = Host.parse(name)
        except Unparsable:
            return False
        return any(pattern.matches(host) for pattern in self._hosts)


def _read_nothing(_answer: McpAnswer, _piece: bytes) -> bytes:
    return b""
