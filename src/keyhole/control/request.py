"""One request, read from bytes as they come into an operation and its values.

Called by `conversation.py`; touches no socket. Heads are read by `wire/`, which refuses whatever
two readers could understand differently. Everything that the peer chooses is bounded here (I9).
"""

from __future__ import annotations

import json
import re
from typing import Any

from keyhole.control.answer import JSON, Problem, Rejected
from keyhole.control.shape import Misshapen, Record, Whole
from keyhole.control.table import AUTHORITY, OPERATIONS, PARAMETERS, Operation
from keyhole.model.value import dataclass
from keyhole.wire.httpfield import END_OF_HEAD, Malformed, find_end
from keyhole.wire.httprequest import CHUNKED, RequestHead, RequestReader, Treatment

MAX_HEAD = 8 * 1024
"""Bytes of a head: curl's has 100."""

MAX_BODY = 64 * 1024
"""Bytes of a body: 64 paths of a kilobyte each. It takes a millisecond to read."""

_HTTP_PORT = 80
_QUERY_PAIR = re.compile(r"([a-z]{1,32})=([A-Za-z0-9_.-]{0,64})")
_MAX_QUERY = 256
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    operation: Operation
    parameters: dict[str, str]
    query: Any = None
    body: Any = None


def _treat(name: bytes) -> Treatment:
    return Treatment.COLLECT if name == b"content-type" else Treatment.DROP


_reader = RequestReader(AUTHORITY, _HTTP_PORT, _treat, {})
"""It keeps nothing of a request, so that all connections share one."""


class RequestBuffer:
    """What has come of one request."""

    __slots__ = ("_asked", "_data", "_length", "_searched")

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0
        self._asked: Asked | None = None
        self._length = 0

    def __bool__(self) -> bool:
        """Whether anything has come."""
        return bool(self._data) or self._asked is not None

    def feed(self, data: bytes) -> Asked | None:
        """Take the next bytes: the request when it is whole; Rejected as soon as it cannot be."""
        self._data += data
        if self._asked is None:
            self._read_head()
        if self._asked is None or len(self._data) < self._length:
            return None
        if len(self._data) > self._length:
            raise Rejected(Problem.MALFORMED, "more bytes than one request has")
        return self._read_body(self._asked)

    def _read_head(self) -> None:
        try:
            end = find_end(self._data, self._searched)
            if end > MAX_HEAD or (end < 0 and len(self._data) > MAX_HEAD):
                raise Rejected(Problem.TOO_LARGE, f"a head has at most {MAX_HEAD} bytes")
            self._searched = len(self._data)
            if end < 0:
                return
            head = _reader.parse(bytes(self._data[:end]))
        except Malformed as error:
            raise Rejected(Problem.MALFORMED, error.why) from None
        del self._data[: end + len(END_OF_HEAD)]
        self._asked, self._length = _ask(head), head.length

    def _read_body(self, asked: Asked) -> Asked:
        if asked.operation.body is None:
            return asked
        try:
            body = asked.operation.body.read(read_json(bytes(self._data)), "body")
        except Misshapen as error:
            raise Rejected(Problem.MALFORMED, error.why) from None
        return Asked(asked.operation, asked.parameters, asked.query, body)


def _ask(head: RequestHead) -> Asked:
    if head.http10:
        raise Rejected(Problem.MALFORMED, "HTTP/1.1 is spoken here")
    # 1. What is asked exists; a path is compared as it was sent.
    operation, parameters = _find(head.method, head.path)
    # 2. Its framing is of the plainest kind.
    if head.length == CHUNKED:
        raise Rejected(Problem.MALFORMED, "a body comes with Content-Length, not in chunks")
    if head.expects_continue:
        raise Rejected(Problem.MALFORMED, "send the body without `Expect`")
    if head.length > MAX_BODY:
        raise Rejected(Problem.TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
    # 3. There is a body where there should be one, and only there.
    if operation.body is None and head.length:
        raise Rejected(Problem.MALFORMED, "this takes no body")
    if operation.body is not None:
        if [field.value.lower() for field in head.collected] != [JSON.encode()]:
            raise Rejected(Problem.MALFORMED, f"the body's Content-Type is {JSON}")
        if not head.length:
            raise Rejected(Problem.MALFORMED, "this takes a body")
    # 4. The same for a query.
    return Asked(operation, parameters, _read_query(operation, head.query))


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
        except Misshapen:
            raise Rejected(Problem.NOT_FOUND) from None
        return operation, parameters
    if methods:
        why = f"here one can {' or '.join(methods)}"
        raise Rejected(Problem.NOT_ALLOWED, why, tuple(methods))
    raise Rejected(Problem.NOT_FOUND)


def _read_query(operation: Operation, query: str | None) -> object:
    record = operation.query
    if record is None:
        if query is not None:
            raise Rejected(Problem.MALFORMED, "this takes no query")
        return None
    try:
        return record.read(_query_values(record, query or ""), "query")
    except Misshapen as error:
        raise Rejected(Problem.MALFORMED, error.why) from None


def _query_values(record: Record, query: str) -> dict[str, object]:
    found: dict[str, object] = {}
    if len(query) > _MAX_QUERY:
        raise Misshapen(f"query: at most {_MAX_QUERY} characters")
    for pair in query.split("&") if query else ():
        match = _QUERY_PAIR.fullmatch(pair)
        if match is None or match[1] in found:
            raise Misshapen("query: name=value, plainly written, each name once")
        name, value = match.groups()
        field = record.fields.get(name)
        is_number = field is not None and isinstance(field.shape, Whole)
        found[name] = int(value) if is_number and _NUMBER.fullmatch(value) else value
    return found


def read_json(data: bytes) -> object:
    """Read JSON in UTF-8 that has one meaning; Misshapen else."""
    try:
        # Bytes would be taken for UTF-16 or UTF-32 if they look like it.
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError):
        raise Misshapen("body: is not JSON, in UTF-8 and not too deep") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # RFC 8259 §4: "the behavior of software that receives such an object is unpredictable".
        raise Misshapen("body: a member stands twice in one object")
    return found


def _no_number(_: str) -> object:
    raise Misshapen("body: numbers are whole")
