"""A service that holds its clients to one version of HTTP (`services.N.http`), with real TLS."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import Stage, service
from tests.rigs.gateway.talk import Talk, get, ok
from tests.rigs.http.http2 import PREFACE, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.gateway.origins import Origin

RULE = "services.own.http"


def pinned(version: str) -> str:
    return service("own", "ok.example", more=f'http = "{version}"' if version else "")


@pytest.fixture
def origin_of(origin: Callable[..., Origin], tls: ssl.SSLContext) -> Origin:
    return origin(Service(lambda _: ok(b"x")), tls)


def visit(stage: Stage, *offered: str) -> Talk:
    """A client that offers these protocols; without any, one that knows no ALPN."""
    context = stage.client_context()
    if offered:
        context.set_alpn_protocols(offered)
    plain = stage.namespace.connect("ok.example")
    try:
        secure = context.wrap_socket(
            plain, server_hostname="ok.example", suppress_ragged_eofs=False
        )
    except OSError:
        plain.close()
        raise
    return Talk(secure)


def agreed(talk: Talk) -> str | None:
    assert isinstance(talk.sock, ssl.SSLSocket)
    return talk.sock.selected_alpn_protocol()


@pytest.mark.parametrize(
    ("version", "offered", "expected"),
    [
        ("", ("h2", "http/1.1"), "h2"),
        ("", ("http/1.1", "h2"), "h2"),
        ("", ("http/1.1",), "http/1.1"),
        ("", ("h2",), "h2"),
        ("", (), None),
        ("1.1", ("h2", "http/1.1"), "http/1.1"),
        ("1.1", ("http/1.1",), "http/1.1"),
        ("1.1", (), None),
        ("2", ("http/1.1", "h2"), "h2"),
        ("2", ("h2",), "h2"),
    ],
)
def test_a_client_gets_the_version_that_the_service_names(
    stage: Stage, origin_of: Origin, version: str, offered: tuple[str, ...], expected: str | None
) -> None:
    stage.open(pinned(version), ok_example=origin_of)
    talk = visit(stage, *offered)
    assert agreed(talk) == expected
    if expected == "h2":
        talk.send(PREFACE + settings())
        assert talk.sock.recv(9)[3] == 4  # SETTINGS
    else:
        talk.send(get("/a"))
        assert talk.answer().body == b"x"
    talk.close()


@pytest.mark.parametrize(
    ("version", "offered"), [("2", ("http/1.1",)), ("1.1", ("h2",)), ("2", ("http/1.0", "h3"))]
)
def test_a_client_that_offers_another_version_alone_gets_an_alert(
    stage: Stage, origin_of: Origin, version: str, offered: tuple[str, ...]
) -> None:
    """RFC 7301 §3.2. I8: the event names the key. Control: the test above."""
    stage.open(pinned(version), ok_example=origin_of)
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        visit(stage, *offered)
    event = stage.watch.until("http-version")
    assert (event.rule, event.host, event.verdict.name) == (RULE, "ok.example", "DENY")
    assert any("the service's `http`" in line for line in stage.watch.lines)


def test_a_client_without_alpn_reads_why_its_requests_are_refused(
    stage: Stage, origin_of: Origin
) -> None:
    """It speaks HTTP/1.1, so it is answered in that; nothing reaches the origin."""
    stage.open(pinned("2"), ok_example=origin_of)
    talk = visit(stage)
    for _ in range(2):
        talk.send(get("/a"))
        answer = talk.answer()
        said = json.loads(answer.body)
        assert (answer.status, said["reason"], said["rule"]) == (403, "http-version", RULE)
        assert "`http`" in said["why"]
    talk.close()
    assert stage.watch.until("http-version", path="/a").rule == RULE
    assert not origin_of.open


@pytest.mark.parametrize("offered", [("http/1.1",), ("h2",), ()])
def test_a_change_of_the_version_ends_connections_of_the_other(
    stage: Stage, origin_of: Origin, offered: tuple[str, ...]
) -> None:
    """The client that connects again gets the version now in force. Control: by a change that
    names the version that it speaks, it goes on."""
    stage.open(pinned(""), ok_example=origin_of)
    talk = visit(stage, *offered)
    http2 = offered == ("h2",)
    talk.send(PREFACE + settings() if http2 else get("/a"))
    if not http2:
        assert talk.answer().body == b"x"
    stage.change(pinned("2" if http2 else "1.1"), ok_example=origin_of)
    if not http2:
        talk.send(get("/b"))
        assert talk.answer().body == b"x"
    stage.change(pinned("1.1" if http2 else "2"), ok_example=origin_of)
    with talk.sock, pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
        list(iter(lambda: talk.sock.recv(65536), b""))
    closed = stage.watch.until("closed")
    assert dict(closed.details)["end"] == "policy-changed"
    again = visit(stage, "h2", "http/1.1")
    assert agreed(again) == ("http/1.1" if http2 else "h2")
    again.close()
