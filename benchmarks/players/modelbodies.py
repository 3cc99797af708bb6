"""Bodies of requests to a model, for measurements and tests: one as an agent sends it, and bodies
of many bytes in the shapes that take a reader longest.

Each is a whole request of Anthropic's Messages API that asks for no closed feature, so that it is
read and judged to its end.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from benchmarks.players import duties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "api.anthropic.com"
"""A host of the catalogue: its connections are kept after a body."""

JUDGED, PASSED = "/v1/messages", "/v1/passed"
"""Paths of requests whose bodies are judged, and are passed on as they come."""

SMALL = "/v1/models"
"""A request without a body."""

AS_AN_AGENT, COMPACT = "as an agent", "as an agent, without spaces"
"""As Python's `json` writes by default, with spaces and escapes, and as `JSON.stringify` and most
agents write."""

AGENT = 200 << 10
"""Bytes of an agent's request in the middle of its work."""

LONG = 10 << 20
"""Bytes of a request with a few pictures in it."""

TOOLS = 24
_WORDS = "the file that you named has a function with two callers, and one of them is a test; "
_CODE = 'def join(parts):\n    """Join them."""\n    return "\\n".join(parts)  # é, ✓\n\n'
_DEPTH = 100
_MOST_VALUES = 90_000


def agent_body(size: int = AGENT, *, compact: bool = False) -> bytes:
    """A body as a coding agent sends it: tools with schemas, a system prompt, a conversation with
    calls of tools and their results."""
    write = functools.partial(
        json.dumps,
        ensure_ascii=not compact,
        separators=(",", ":") if compact else (", ", ": "),
    )
    messages: list[dict[str, Any]] = []
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32000,
        "stream": True,
        "system": [{"type": "text", "text": _WORDS * 120, "cache_control": {"type": "ephemeral"}}],
        "tools": [_tool(number) for number in range(TOOLS)],
        "messages": messages,
    }
    made, number = len(write(body)), 0
    while made < size:
        turn = _turn(number)
        messages += turn
        made += len(write(turn))
        number += 1
    return write(body).encode()


def _tool(number: int) -> dict[str, Any]:
    names = [f"argument_{i}" for i in range(6)]
    properties = {name: {"type": "string", "description": _WORDS * 2} for name in names}
    return {
        "name": f"tool_{number}",
        "description": _WORDS * 12,
        "input_schema": {
            "type": "object",
            "properties": properties,
            "required": names[:2],
            "additionalProperties": False,
        },
    }


def _turn(number: int) -> list[dict[str, Any]]:
    call = f"toolu_{number:020}"
    use = {
        "type": "tool_use",
        "id": call,
        "name": "tool_1",
        "input": {"argument_0": f"/a/{number}"},
    }
    result = {"type": "tool_result", "tool_use_id": call, "content": _CODE * (3 + number % 30)}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": _WORDS * 2}, use]},
        {"role": "user", "content": [result]},
    ]


def _wrapped(content: bytes) -> bytes:
    return (
        b'{"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "assistant", '
        b'"content": [{"type": "tool_use", "id": "a", "name": "b", "input": %b}]}]}' % content
    )


def _filled(size: int, piece: Callable[[int], bytes], most: int = _MOST_VALUES) -> bytes:
    """A list of pieces, up to a size or a number of values."""

    def pieces() -> Iterator[bytes]:
        made = 0
        for number in range(most):
            found = piece(number)
            made += len(found) + 1
            if made > size:
                return
            yield found

    return b"[%b]" % b",".join(pieces())


def _padded(size: int, body: bytes) -> bytes:
    return body + b" " * (size - len(body))


def _deep(size: int) -> bytes:
    nested = b'{"a":[' * (_DEPTH // 2) + b"]}" * (_DEPTH // 2)
    return _filled(size, lambda _: nested, _MOST_VALUES // _DEPTH)


@functools.cache
def made(shape: str, size: int) -> bytes:
    """A body of a shape."""
    return agent_body(size, compact=True) if shape == COMPACT else SHAPES[shape](size)


def addressed(head: bytes) -> bytes:
    """A head of a measurement, for the host of models."""
    return head.replace(duties.HOST.encode(), HOST.encode(), 1)


SHAPES: dict[str, Callable[[int], bytes]] = {
    AS_AN_AGENT: agent_body,
    "one long text": lambda size: _wrapped(b'"%b"' % (b"a" * size)),
    "deep": lambda size: _padded(size, _wrapped(_deep(size))),
    "many names": lambda size: _wrapped(
        b"{%b}" % _filled(size, lambda n: b'"%0100d":%d' % (n, n))[1:-1]
    ),
    "many short texts": lambda size: _wrapped(_filled(size, lambda n: b'"%0100d"' % n)),
    "many empty texts": lambda size: _padded(size, _wrapped(_filled(size, lambda _: b'""'))),
    "long escapes": lambda size: _wrapped(b'"%b"' % (rb"\u00e9\n" * (size // 8))),
    "escapes and letters": lambda size: _wrapped(b'"%b"' % (rb"\na" * (size // 3))),
    "surrogates": lambda size: _wrapped(b'"%b"' % (rb"\ud83d\ude00" * (size // 12))),
    "letters of three bytes": lambda size: _wrapped(b'"%b"' % ("✓".encode() * (size // 3))),
    "long numbers": lambda size: _wrapped(_filled(size, lambda n: b"1%063d" % n)),
    "long fractions": lambda size: _wrapped(_filled(size, lambda n: b"1.%050de-9" % n)),
    "spaces": lambda size: _wrapped(b"[" + b" " * size + b"]"),
    "blocks of content": lambda size: _padded(
        size,
        b'{"model":"claude-sonnet-4-5","max_tokens":64,"messages":[{"role":"user","content":%b}]}'
        % _filled(size, lambda _: b'{"type":"text","text":"a"}', _MOST_VALUES // 3),
    ),
}
"""Bodies of about so many bytes by shape; where values are counted, near the most of them."""
