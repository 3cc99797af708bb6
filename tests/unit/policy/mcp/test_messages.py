"""JSON-RPC of a client has one meaning, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.errors import Malformed
from keyhole.policy.mcp.messages import MAX_BATCH, MessageKind, read_messages

if TYPE_CHECKING:
    from keyhole.wire.strict_json import JsonValue

REQUEST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def test_the_three_kinds_are_told_apart() -> None:
    (request,) = read_messages(REQUEST | {"params": {"a": 1}})
    (notification,) = read_messages({"jsonrpc": "2.0", "method": "x"})
    (result,) = read_messages({"jsonrpc": "2.0", "id": "a", "result": {}})
    (error,) = read_messages({"jsonrpc": "2.0", "id": 1, "error": {}})
    assert (request.kind, request.id, request.params) == (MessageKind.REQUEST, 1, {"a": 1})
    assert notification.kind is MessageKind.NOTIFICATION
    assert (result.kind, result.failed) == (MessageKind.RESPONSE, False)
    assert (error.kind, error.failed) == (MessageKind.RESPONSE, True)


def test_a_batch_is_read_message_by_message() -> None:
    batch: list[Any] = [REQUEST, REQUEST | {"id": "1"}, {"jsonrpc": "2.0", "method": "x"}]
    assert [each.kind.name for each in read_messages(batch)] == ["REQUEST", "REQUEST",
                                                                 "NOTIFICATION"]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        None,
        "ping",
        [],
        [REQUEST] * 2,  # the same id twice
        [REQUEST | {"id": n} for n in range(MAX_BATCH + 1)],
        [[REQUEST]],
        {},
        REQUEST | {"jsonrpc": "1.0"},
        REQUEST | {"jsonrpc": 2.0},
        {"id": 1, "method": "ping"},
        REQUEST | {"id": None},
        REQUEST | {"id": True},
        REQUEST | {"id": 1.5},
        REQUEST | {"id": 1.0},
        REQUEST | {"id": []},
        REQUEST | {"id": {}},
        REQUEST | {"id": 2**53},
        REQUEST | {"id": "x" * 257},
        REQUEST | {"method": 7},
        REQUEST | {"method": "x" * 129},
        REQUEST | {"params": []},
        REQUEST | {"params": "x"},
        REQUEST | {"params": None},
        REQUEST | {"Method": "tools/call"},
        REQUEST | {"\u017fpare": 1},
        REQUEST | {"result": {}},  # a call that hides in a response
        REQUEST | {"error": {}},
        {"jsonrpc": "2.0", "method": "x", "result": {}},
        {"jsonrpc": "2.0", "result": {}},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "params": {}},
        {"jsonrpc": "2.0", "id": 1, "error": "x"},
    ],
)
def test_what_has_no_meaning_or_two_is_malformed(value: JsonValue) -> None:
    assert read_messages(REQUEST)  # control
    with pytest.raises(Malformed):
        read_messages(value)
