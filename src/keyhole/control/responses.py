"""Writes answers as bytes. Every answer has its length, and the connection ends after it.

One function maps an error to the answer that the peer sees. The answer for anything that does not
exist is the same, whatever it is.
"""

from __future__ import annotations

import enum
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from keyhole.control.operation_table import FAULT
from keyhole.control.values import ErrorBody
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.control.operation_table import Operation

MAX_WHY = 1000
"""Characters of a reason, as `table.FAULT` has it."""

JSON = "application/json"
NDJSON = "application/x-ndjson"


class ApiError(enum.Enum):
    """The errors of the API: the code in the answer, its HTTP status, and the usual message."""

    FAULT = ("fault", 500, "something broke in the gateway; its log has more")
    FORBIDDEN = ("forbidden", 403, "only processes of the gateway's own user on this host may ask")
    NOT_FOUND = ("not-found", 404, "there is nothing like that")
    NOT_ALLOWED = ("not-allowed", 405, "this method does nothing here")
    MALFORMED = ("malformed", 400, "the request cannot be understood")
    TOO_LATE = ("too-late", 408, "the request took too long to arrive")
    REFUSED = ("refused", 409, "the gateway will not do that")
    TOO_LARGE = ("too-large", 413, "the request is too large")
    TOO_SLOW = ("too-slow", 504, "the gateway took too long, and gave it up")
    STOPPING = ("stopping", 503, "the gateway is about to end")

    def __init__(self, code: str, status: int, why: str) -> None:
        self.code = code
        self.status = status
        self.why = why


class RequestRejected(KeyholeError):
    """A request that is answered with a problem."""

    def __init__(self, problem: ApiError, why: str = "", allow: tuple[str, ...] = ()) -> None:
        super().__init__(why or problem.why)
        self.problem = problem
        self.why = why or problem.why
        self.allow = allow
        """Allowed methods, for NOT_ALLOWED (RFC 9110 §15.5.6)."""


def error_response(rejected: RequestRejected) -> bytes:
    """The answer to a request that was not done."""
    fault = ErrorBody(rejected.problem.code, visible(rejected.why)[:MAX_WHY])
    body = _json(FAULT.write(fault, "answer"))
    return _answer(rejected.problem.status, JSON, body, rejected.allow)


def success_response(operation: Operation, written: object) -> bytes:
    """The answer of an operation, as its shape wrote it; None for an empty one."""
    if operation.answer is None:
        return _answer(operation.status, None, b"")
    return _answer(operation.status, JSON, _json(written))


def text_response(content_type: str, body: bytes) -> bytes:
    """An answer that is not JSON."""
    return _answer(HTTPStatus.OK, content_type, body)


def stream_head() -> bytes:
    """The head of a stream of lines, which ends with the connection."""
    lines = (
        "HTTP/1.1 200 OK",
        "Connection: close",
        f"Content-Type: {NDJSON}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
    )
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def stream_line(written: object) -> bytes:
    """One line of a stream."""
    return _json(written)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _answer(
    status: int, content_type: str | None, body: bytes, allow: tuple[str, ...] = ()
) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Connection: close"]
    if allow:
        lines.append(f"Allow: {', '.join(allow)}")
    if content_type is not None:
        lines += [
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            # If a proxy brings it to a browser, the browser must treat it as data.
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
        ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
