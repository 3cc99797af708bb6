"""Writes the table as an OpenAPI 3.1 document and as Markdown, for docs/; not used at run time.

`tests/rigs/control/publish.py` writes both; a test compares them with what is in docs/.
"""

from __future__ import annotations

import json
from typing import Any

from keyhole.control import connection, server
from keyhole.control.event_feed import MAX_FEED, MAX_FEEDS
from keyhole.control.operation_table import (
    AUTHORITY,
    FAULT,
    MAX_ASKS,
    OPERATIONS,
    PARAMETERS,
    Operation,
)
from keyhole.control.prometheus import CONTENT_TYPE, MAX_SAMPLES
from keyhole.control.received_door import MAX_DESCRIPTORS
from keyhole.control.request import MAX_BODY, MAX_HEAD
from keyhole.control.responses import JSON, NDJSON, ApiError
from keyhole.control.values import PAGE

VERSION = "1"
"""Version of the API; it is the `/v1` of every path."""

_DESCRIPTORS = (
    "The sockets that `door` lists come beside the request by SCM_RIGHTS, in that order: exactly as"
    " many, `tcp` and `udp` at least."
)


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    records = {record.name: record for record in FAULT.nested()}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
        for record in (operation.body, operation.answer):
            if record is not None:
                records |= {each.name: each for each in record.nested()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyhole's control socket",
            "version": VERSION,
            "description": "HTTP/1.1 over a Unix socket, one request for each connection. Only"
            " processes of the gateway's own user are answered. No answer has a secret.",
        },
        "servers": [{"url": f"http://{AUTHORITY}"}],
        "paths": paths,
        "components": {"schemas": {name: records[name].definition() for name in sorted(records)}},
    }


def openapi_text() -> str:
    """The document as it is in docs/: a line for each operation and each schema."""
    return _laid_out(openapi_document(), 3) + "\n"


def _laid_out(value: object, depth: int, indent: str = "") -> str:
    """JSON with one member on a line down to a depth, and in one line below it."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    inner = f"{indent}  "
    members = (
        f"{inner}{json.dumps(name)}: {_laid_out(member, depth - 1, inner)}"
        for name, member in value.items()
    )
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def operation_table() -> str:
    """A table with a row for each operation."""
    rows = ["| request | takes | answers | does |", "|---|---|---|---|"]
    for each in OPERATIONS:
        takes = []
        if each.query is not None:
            takes.append(f"query {_members(each.query.fields)}")
        if each.body is not None:
            takes.append(_members(each.body.fields))
        if each.descriptors:
            takes.append("descriptors")
        answers = "text" if each.metrics else each.answer.name if each.answer else "nothing"
        answers = f"lines of {answers}" if each.stream else answers
        rows.append(
            f"| `{each.method} {each.path}` | {', '.join(takes) or '–'} | {each.status},"
            f" {answers} | {each.does} |"
        )
    return "\n".join(rows)


def problem_table() -> str:
    """A table with a row for each error."""
    rows = ["| status | `error` | usual words |", "|---|---|---|"]
    rows += [f"| {p.status} | `{p.code}` | {p.why} |" for p in sorted(ApiError, key=_by_status)]
    return "\n".join(rows)


def bound_table() -> str:
    """A table with a row for each bound."""
    rows = ["| bound | is |", "|---|---|"]
    rows += [f"| {what} | {value} |" for what, value in _BOUNDS]
    return "\n".join(rows)


_BOUNDS = (
    ("bytes of a request's head", MAX_HEAD),
    ("bytes of a request's body", MAX_BODY),
    ("descriptors beside a request", MAX_DESCRIPTORS),
    ("seconds for a request to arrive whole", f"{connection.RECEIVE_SECONDS:g}"),
    ("seconds for the gateway to do it", f"{connection.WORK_SECONDS:g}"),
    ("seconds for the answer to be read", f"{connection.SEND_SECONDS:g}"),
    ("connections at a time; more wait", server.MAX_CONVERSATIONS),
    ("operations at a time, except those that cut off, end or show", server.MAX_AT_WORK),
    ("sessions in one answer", PAGE),
    ("samples of the metrics", MAX_SAMPLES),
    ("questions in one answer", MAX_ASKS),
    ("streams of events at a time", MAX_FEEDS),
    ("bytes that wait for the reader of a stream; beyond them, it is cut off", MAX_FEED),
)


def _by_status(problem: ApiError) -> int:
    return problem.status


def _members(fields: Any) -> str:  # noqa: ANN401 - only its names matter
    return ", ".join(f"`{name}`" for name in fields)


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": operation.name, "summary": operation.does}
    if operation.descriptors:
        made["description"] = _DESCRIPTORS
    parameters = [
        _parameter(name, "path", PARAMETERS[name], required=True)
        for name in PARAMETERS
        if "{" + name + "}" in operation.path
    ]
    if operation.query is not None:
        parameters += [
            _parameter(name, "query", field, required=not field.optional)
            for name, field in operation.query.fields.items()
        ]
    if parameters:
        made["parameters"] = parameters
    if operation.body is not None:
        made["requestBody"] = {
            "required": True,
            "description": f"At most {MAX_BODY} bytes.",
            "content": {JSON: {"schema": operation.body.schema()}},
        }
    made["responses"] = {str(operation.status): _success(operation)} | {
        str(problem.status): {
            "description": problem.why,
            "content": {JSON: {"schema": FAULT.schema()}},
        }
        for problem in sorted(ApiError, key=_by_status)
    }
    return made


def _parameter(name: str, where: str, field: Any, *, required: bool) -> dict[str, Any]:  # noqa: ANN401
    return {
        "name": name,
        "in": where,
        "required": required,
        "description": field.meaning,
        "schema": field.shape.schema(),
    }


def _success(operation: Operation) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "done"}
    if operation.metrics:
        done["content"] = {CONTENT_TYPE: {"schema": {"type": "string"}}}
    elif operation.stream and operation.answer is not None:
        done["description"] = "lines of JSON, each of this schema, until the reader leaves"
        done["content"] = {NDJSON: {"schema": operation.answer.schema()}}
    elif operation.answer is not None:
        done["content"] = {JSON: {"schema": operation.answer.schema()}}
    return done
