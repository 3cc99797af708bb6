"""Bodies that an origin may leave unread: refused where HTTP defines none, and never followed by
another request on the same connection (I3, I4, I6)."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Handler, Origin, Service, web
from tests.rigs.gateway.stage import BEARER, SECRET, Stage, service, serving
from tests.rigs.gateway.talk import END, Talk, get, head, ok

if TYPE_CHECKING:
    import socket

    import trustme

Make = Callable[..., Origin]

KNOWN = "api.model.example"
MODEL = f"""[services.own]
use = "model"
inject = {BEARER}
secret = "file:/nowhere"
allow = ["GET,POST /v1/**"]
"""
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: ok.example\r\nContent-Length: 5000\r\n\r\n"


class Ignoring:
    """An origin that answers without reading a body: what follows the head is the next request.

    Only of what was smuggled in that way it reads the body, which is whatever comes next.
    """

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.got: list[bytes] = []
        """All that came by each connection."""

    def __call__(self, sock: socket.socket) -> None:
        number, talk = len(self.got), Talk(sock)
        self.got.append(b"")
        while True:
            asked = talk.until(END) + END
            self.got[number] += asked
            while b"/smuggled" in asked and (more := talk.more()):
                self.got[number] += more
            talk.send(self.reply)


@pytest.fixture
def known(authority: trustme.CA) -> ssl.SSLContext:
    """A certificate of the host that the catalogue knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(KNOWN).configure_cert(context)
    return context


FOUND = ok(b"x", b"Location: /v1/2", status=b"307 Temporary Redirect")


@pytest.mark.parametrize("catalogued", [False, True])
def test_an_unread_body_is_never_followed_by_a_judged_request(
    stage: Stage, tls: ssl.SSLContext, known: ssl.SSLContext, catalogued: bool
) -> None:
    """I4, I6: the smuggled request must not get the next one, and its credential, as its body.
    Which connections are used again is in unit/gateway/upstream/test_pool.py."""
    origin, host = Ignoring(FOUND), KNOWN if catalogued else "ok.example"
    with serving(origin, known if catalogued else tls) as server:
        if catalogued:
            stage.open(MODEL, api_model_example=server)
        else:
            stage.open(service("own", "ok.example"), ok_example=server)
        length = f"Content-Length: {len(SMUGGLED)}"
        talk = stage.ask(head("POST", "/v1/1", length, host=host) + SMUGGLED, name=host)
        assert talk.answer().status == 307
        # The next request is judged, sent and answered, on another connection.
        stage.ask(get("/v1/2", host=host), name=host).answer()
        stage.close_talks()
        first = origin.got[0]
        assert first.startswith(b"POST /v1/1 ")
        assert first.count(SECRET.encode()) == 1
        assert b"/v1/2" not in first
        assert [got for got in origin.got if got.startswith(b"GET /v1/2 ")]


# ── a body where HTTP defines none ────────────────────────────────────────────────────────────────

BODILESS = ["GET", "HEAD", "DELETE", "OPTIONS"]
SIZED, PIECES = ("Content-Length: 3", b"a=b"), ("Transfer-Encoding: chunked", b"0\r\n\r\n")


@pytest.mark.parametrize("method", BODILESS)
@pytest.mark.parametrize("line_and_body", [SIZED, PIECES], ids=["length", "chunks"])
@pytest.mark.parametrize("allow", ["GET,HEAD,DELETE,OPTIONS /**", "* /**"])
def test_a_body_where_http_defines_none_is_refused(
    stage: Stage, tls: ssl.SSLContext, method: str, line_and_body: tuple[str, bytes], allow: str
) -> None:
    """I3, I4: servers differ on reading it. The control is no body, in both spellings of none."""
    origin, (line, body) = Service(), line_and_body
    with serving(origin, tls) as server:
        stage.open(service("own", "ok.example", allow=allow), ok_example=server)
        talk = stage.ask(head(method, "/a", line) + body)
        answer = talk.answer(method)
        assert answer.status == 403
        if method != "HEAD":
            said = json.loads(answer.body)
            assert (said["error"], said["reason"]) == ("denied", "body-not-granted")
            assert f"--method {method}+body https://ok.example/a" in said["why"]
        assert stage.watch.until("body-not-granted", method=f"{method}+body", path="/a")
        assert not origin.seen
        for lines in ((), ("Content-Length: 0",)):
            assert stage.ask(head(method, "/a", *lines)).answer(method).status == 200


@pytest.mark.parametrize("method", BODILESS)
def test_a_rule_with_body_allows_one(stage: Stage, tls: ssl.SSLContext, method: str) -> None:
    """I3: at its path alone, for its method alone."""
    origin = Service()
    with serving(origin, tls) as server:
        stage.open(service("own", "ok.example", allow=f"{method}+body /_search"), ok_example=server)
        request = head(method, "/_search", "Content-Length: 3") + b"a=b"
        assert stage.ask(request).answer(method).status == 200
        assert origin.seen[-1].body == b"a=b"
        assert stage.watch.until("rule", method=f"{method}+body").rule == "services.own.allow[0]"
        assert stage.ask(head(method, "/_search")).answer(method).status == 200
        elsewhere = head(method, "/other", "Content-Length: 3") + b"a=b"
        assert stage.ask(elsewhere).answer(method).status == 403
        another = head("DELETE" if method == "GET" else "GET", "/_search", "Content-Length: 1")
        assert stage.ask(another + b"a").answer().status == 403


def test_a_method_that_is_called_like_a_rules_word_is_refused(
    stage: Stage, tls: ssl.SSLContext
) -> None:
    """I3: `GET+body` and `WEBSOCKET` are no methods."""
    origin = Service()
    with serving(origin, tls) as server:
        allow = '* /**", "GET+body /**", "WEBSOCKET /**'
        stage.open(service("own", "ok.example", allow=allow), ok_example=server)
        for method in ("GET+body", "WEBSOCKET"):
            answer = stage.ask(head(method, "/a")).answer()
            assert json.loads(answer.body)["reason"] == "method-refused"
        assert not origin.seen
        assert stage.ask(get("/a")).answer().status == 200


@pytest.mark.parametrize("line_and_body", [SIZED, PIECES], ids=["length", "chunks"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_on_port_80_a_tunnel_takes_no_such_body(
    stage: Stage, method: str, line_and_body: tuple[str, bytes]
) -> None:
    """I4: an origin that does not read it takes it for a request of which nothing was judged."""
    line, body = line_and_body
    handler: Handler = web
    with serving(handler, None) as server:
        stage.open('[egress]\nallow = ["ok.example:80"]', ok_example__80=server)
        plain = Talk(stage.namespace.connect("ok.example", 80))
        plain.send(head(method, "/a", "Content-Length: 0"))
        assert plain.answer().status == 200
        plain.send(head("POST", "/a", "Content-Length: 1") + b"x")
        assert plain.answer().status == 200
        plain.send(head(method, "/a", line) + body)
        answer = plain.answer()
        assert (answer.status, json.loads(answer.body)["reason"]) == (403, "body-not-granted")
        plain.close()


def test_on_port_80_a_services_rule_allows_a_body(stage: Stage) -> None:
    """I3: there, too, a rule says so or nothing does."""
    with serving(web, None) as server:
        policy = service("own", "ok.example:80", inject="", allow="GET+body /_search")
        stage.open(policy, ok_example__80=server)
        plain = Talk(stage.namespace.connect("ok.example", 80))
        plain.send(get("/_search", "Content-Length: 3") + b"a=b")
        assert plain.answer().body == b"GET /_search HTTP/1.1|a=b"
        plain.send(get("/other", "Content-Length: 3") + b"a=b")
        assert plain.answer().status == 403
        plain.close()


def test_on_port_80_no_connection_becomes_a_websocket(stage: Stage) -> None:
    """I3: whatever a rule says of the service; the control is the same request without."""
    with serving(web, None) as server:
        policy = service("own", "ok.example:80", inject="", allow="GET,WEBSOCKET /chat")
        stage.open(policy, ok_example__80=server)
        for lines, status in (((), 200), (("Connection: Upgrade", "Upgrade: websocket"), 403)):
            plain = Talk(stage.namespace.connect("ok.example", 80))
            plain.send(get("/chat", *lines))
            assert plain.answer().status == status
            plain.close()
