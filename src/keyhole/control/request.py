"""Reads one request, from bytes as they come, into an operation and its values.

Called by `connection.py`; touches no socket. Heads are read by `wire/`, which refuses anything
that two readers could understand differently. Everything that the peer chooses is bounded (I9).
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from keyhole.control.operation_table import AUTHORITY, OPERATIONS, PARAMETERS, Operation
from keyhole.control.responses import JSON, ApiError, RequestRejected
from keyhole.control.shapes import IntegerShape, RecordShape
from keyhole.http.field import END_OF_HEAD, find_end
from keyhole.http.request import CHUNKED, RequestHead, RequestReader, Treatment
from keyhole.model.errors import Malformed, Unparsable

MAX_HEAD = 8 * 1024
"""Bytes of a head: curl's has 100."""

MAX_BODY = 64 * 1024
"""Bytes of a body: 64 paths of a kilobyte each. It takes a millisecond to read."""

_HTTP_PORT = 80
_QUERY_PAIR = re.compile(r"([a-z]{1,32})=([A-Za-z0-9_.-]{0,64})")
_MAX_QUERY = 256
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")


class ControlRequest(Struct, frozen=True):
    """A complete request: the operation and its values."""

    operation: Operation
    parameters: dict[str, str]
    query: Any = None
    body: Any = None


def _treat(name: bytes) -> Treatment:
    return Treatment.COLLECT if name == b"content-type" else Treatment.DROP


_reader = RequestReader(AUTHORITY, _HTTP_PORT, _treat, {})
"""The reader of heads; it keeps no state, so that all connections share it."""


class RequestBuffer:
    """The part of one request that has arrived."""

    __slots__ = ("_asked", "_data", "_length", "_searched")

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0
        self._asked: ControlRequest | None = None
        self._length = 0

    def __bool__(self) -> bool:
        """Whether any byte has arrived."""
        return bool(self._data) or self._asked is not None

    def feed(self, data: bytes) -> ControlRequest | None:
        """Take the next bytes; returns the request once it is complete. Raises RequestRejected."""
        self._data += data
        if self._asked is None:
            self._read_head()
        if self._asked is None or len(self._data) < self._length:
            return None
        if len(self._data) > self._length:
            raise RequestRejected(ApiError.MALFORMED, "more bytes than one request has")
        return self._read_body(self._asked)

    def _read_head(self) -> None:
        try:
            end = find_end(self._data, self._searched)
            if end > MAX_HEAD or (end < 0 and len(self._data) > MAX_HEAD):
                raise RequestRejected(ApiError.TOO_LARGE, f"a head has at most {MAX_HEAD} bytes")
            self._searched = len(self._data)
            if end < 0:
                return
            head = _reader.parse(bytes(self._data[:end]))
        except Malformed as error:
            raise RequestRejected(ApiError.MALFORMED, error.why) from None
        del self._data[: end + len(END_OF_HEAD)]
        self._asked, self._length = _ask(head), head.length

    def _read_body(self, asked: ControlRequest) -> ControlRequest:
        if asked.operation.body is None:
            return asked
        try:
            body = asked.operation.body.read(read_json(bytes(self._data)), "body")
        except Unparsable as error:
            raise RequestRejected(ApiError.MALFORMED, error.message) from None
        return ControlRequest(asked.operation, asked.parameters, asked.query, body)


def _ask(head: RequestHead) -> ControlRequest:
    if head.http10:
        raise RequestRejected(ApiError.MALFORMED, "HTTP/1.1 is spoken here")
    # 1. The operation exists; the path is compared as it was sent.
    operation, parameters = _find(head.method, head.path)
    # 2. The framing is of the plainest kind.
    if head.length == CHUNKED:
        raise RequestRejected(ApiError.MALFORMED, "a body comes with Content-Length, not in chunks")
    if head.expects_continue:
        raise RequestRejected(ApiError.MALFORMED, "send the body without `Expect`")
    if head.length > MAX_BODY:
        raise RequestRejected(ApiError.TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
    # 3. There is a body if, and only if, the operation takes one.
    if operation.body is None and head.length:
        raise RequestRejected(ApiError.MALFORMED, "this takes no body")
    if operation.body is not None:
        if [field.value.lower() for field in head.collected] != [JSON.encode()]:
            raise RequestRejected(ApiError.MALFORMED, f"the body's Content-Type is {JSON}")
        if not head.length:
            raise RequestRejected(ApiError.MALFORMED, "this takes a body")
    # 4. The same for a query.
    return ControlRequest(operation, parameters, _read_query(operation, head.query))


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    methods = []
    for operation in OPERATIONS:
        parameters = operation.matches(path)
        if parameters is None:
            continue
        if operation.method != method:
            methods.append(operation.method)
            continue
        try:
            for name, value in parameters.items():
                PARAMETERS[name].shape.read(value, name)
        except Unparsable:
            raise RequestRejected(ApiError.NOT_FOUND) from None
        return operation, parameters
    if methods:
        why = f"here one can {' or '.join(methods)}"
        raise RequestRejected(ApiError.NOT_ALLOWED, why, tuple(methods))
    raise RequestRejected(ApiError.NOT_FOUND)


def _read_query(operation: Operation, query: str | None) -> object:
    record = operation.query
    if record is None:
        if query is not None:
            raise RequestRejected(ApiError.MALFORMED, "this takes no query")
        return None
    try:
        return record.read(_query_values(record, query or ""), "query")
    except Unparsable as error:
        raise RequestRejected(ApiError.MALFORMED, error.message) from None


def _query_values(record: RecordShape[Any], query: str) -> dict[str, object]:
    found: dict[str, object] = {}
    if len(query) > _MAX_QUERY:
        raise Unparsable(f"query: at most {_MAX_QUERY} characters")
    for pair in query.split("&") if query else ():
        match = _QUERY_PAIR.fullmatch(pair)
        if match is None or match[1] in found:
            raise Unparsable("query: name=value, plainly written, each name once")
        name, value = match.groups()
        field = record.fields.get(name)
        is_number = field is not None and isinstance(field.shape, IntegerShape)
        found[name] = int(value) if is_number and _NUMBER.fullmatch(value) else value
    return found


def read_json(data: bytes) -> object:
    """Read JSON in UTF-8 that has only one meaning; raises Unparsable."""
    try:
        # Given bytes, json would also accept UTF-16 and UTF-32.
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except Unparsable:
        raise  # a ValueError, too
    except (ValueError, RecursionError):
        raise Unparsable("body: is not JSON, in UTF-8 and not too deep") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # RFC 8259 §4: "the behavior of software that receives such an object is unpredictable".
        raise Unparsable("body: a member stands twice in one object")
    return found


def _no_number(_: str) -> object:
    raise Unparsable("body: numbers are whole")
