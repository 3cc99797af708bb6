"""Plain HTTP where a rule names port 80: every request's Host is the connection's name (I4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.clients import CONVERSE
from tests.rigs.gateway.origins import Origin, web
from tests.rigs.gateway.rig import Rig, Watch, policy

if TYPE_CHECKING:
    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]
GOOD = "GET /a HTTP/1.1\\r\\nHost: ok.example\\r\\n\\r\\n"


@pytest.fixture
def server(origin: Make) -> Origin:
    return origin(web)


@pytest.fixture
def watch(namespace: Namespace, rig: Rig, server: Origin) -> Watch:
    """A door behind which ok.example:80 is allowed."""
    text = policy("ok.example:80", **{"ok.example:80": server.address})
    return rig.open(namespace.door, text)[1]


def test_curl_fetches_and_keeps_the_connection_alive(
    namespace: Namespace, watch: Watch, server: Origin
) -> None:
    done = namespace.run(
        "curl", "-sS", "http://ok.example/a", "http://ok.example/b", "-d", "x=1", "--next",
        "-sS", "http://ok.example/c",
    )  # fmt: skip
    assert done.stdout == "POST /a HTTP/1.1|x=1POST /b HTTP/1.1|x=1GET /c HTTP/1.1|"
    assert server.connections == 1


@pytest.mark.parametrize(
    ("request_text", "status", "reason"),
    [
        ("GET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n", "403", "host-mismatch"),
        ("GET / HTTP/1.1\\r\\n\\r\\n", "400", "http-malformed"),
        ("GET http://evil.example/ HTTP/1.1\\r\\nHost: ok.example\\r\\n\\r\\n", "400",
         "http-malformed"),
        ("CONNECT ok.example:80 HTTP/1.1\\r\\nHost: ok.example\\r\\n\\r\\n", "403", "http-upgrade"),
        ("SSH-2.0-client\\r\\n\\r\\n", "400", "http-malformed"),
    ],
)  # fmt: skip
def test_a_refused_request_is_answered_in_json_and_never_reaches_the_origin(
    namespace: Namespace, watch: Watch, server: Origin, request_text: str, status: str, reason: str
) -> None:
    said = namespace.python(CONVERSE, "ok.example", "80", f"send:{request_text},rest")
    head, _, body = said.partition("\\r\\n\\r\\n")
    assert head.startswith(f"b'HTTP/1.1 {status} ")
    answer = json.loads(body.removesuffix("'"))
    assert set(answer) == {"error", "message", "rule", "reason", "why", "retry"}
    assert (answer["reason"], answer["retry"]) == (reason, False)
    watch.until(reason, port=80)
    assert server.connections == 0
    # positive control
    assert "200 OK" in namespace.python(CONVERSE, "ok.example", "80", f"send:{GOOD},read")


def test_a_later_request_of_the_same_connection_is_judged_too(
    namespace: Namespace, watch: Watch, server: Origin
) -> None:
    evil = GOOD.replace("ok.example", "evil.example")
    said = namespace.python(CONVERSE, "ok.example", "80", f"send:{GOOD},read,send:{evil},rest")
    assert "200 OK" in said
    assert "403 Forbidden" in said
    assert "GET /a HTTP/1.1|" in said
    watch.until("host-mismatch", port=80)
    assert dict(watch.until("closed").details)["end"] == "host-mismatch"
