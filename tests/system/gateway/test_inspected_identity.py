"""A request to an inspected host is for that host and has one reading, or it is refused (I4)."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.stage import Stage, service, serving, set_up
from tests.rigs.gateway.talk import get, head, ok
from tests.rigs.wire.hellos import openssl_hello, with_extension

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

Play = tuple[Stage, Service]


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """One open door for all; each test uses connections of its own."""
    origin = Service(lambda message: ok(message.body))
    with serving(origin, tls) as server, set_up(authority) as stage:
        stage.open(service("own", "ok.example", more='deny = ["* /denied"]'), ok_example=server)
        yield stage, origin


def refused(play: Play, raw: bytes) -> dict[str, object]:
    """Send bytes behind a good request; they are refused, and no origin hears of them.

    The good request is the control: door, policy and origin work. Another one afterwards shows
    that the connection which was kept to the origin was not touched.
    """
    stage, origin = play
    talk = stage.visit()
    talk.send(get("/control"))
    assert talk.answer().status == 200
    before, events = len(origin.seen), len(stage.watch.events)
    talk.send(raw)
    answer = talk.answer()
    assert talk.rest() == b""
    assert answer.status == 400
    assert answer.one("connection") == "close"
    body = json.loads(answer.body)
    assert body["reason"] == "http-malformed"
    assert body["retry"] is False
    assert stage.watch.reasons("request")[-1] == "http-malformed"
    assert len(stage.watch.events) > events
    after = stage.ask(get("/after"))
    assert after.answer().status == 200
    assert [seen.start for seen in origin.seen[before:]] == ["GET /after HTTP/1.1"]
    return dict(body)


CHUNKED = ("Transfer-Encoding: chunked",)
TWO_READINGS = {
    "two lengths": head("POST", "/a", "Content-Length: 5", *CHUNKED) + b"hello",
    "a coding with a tab": head("POST", "/a", "Transfer-Encoding\t: chunked") + b"hello",
    "a folded line": get("/a", "X-A: b\r\n c: d"),
    "a bare LF": get("/a", "X-A: b\nTransfer-Encoding: chunked"),
    "a second host": get("/a", "Host: other.example"),
    "another host": get("/a", host="other.example"),
    "another host in the target": get("https://other.example/a"),
    "our name as a user": get("https://ok.example@other.example/a"),
    "CONNECT": head("CONNECT", "other.example:443"),
    "HTTP/2 without a word": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a size with 0x": head("POST", "/a", *CHUNKED) + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size that ends in LF": head("POST", "/a", *CHUNKED) + b"5\nhello\r\n0\r\n\r\n",
    "a trailer with a key": head("POST", "/a", *CHUNKED) + b"0\r\nX_Api_Key: mine\r\n\r\n",
}
"""One of each kind; all spellings are in unit/http, and what follows in unit/gateway."""


@pytest.mark.parametrize("case", TWO_READINGS)
def test_a_request_that_can_be_read_in_two_ways_is_refused(play: Play, case: str) -> None:
    """I4, I6."""
    refused(play, TWO_READINGS[case])


def test_a_hello_for_another_name_ends_before_tls(play: Play) -> None:
    """I4: other.example is inspected nowhere, so this would be a way around."""
    stage, _ = play
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        stage.visit(sni="other.example")
    assert stage.watch.until("sni-mismatch").host == "ok.example"
    assert stage.ask(get("/control")).answer().status == 200


def test_an_encrypted_hello_is_ignored_where_tls_ends_here(play: Play) -> None:
    """I4: this end has no key for it, so the name outside is the one that is served. Browsers and
    Bun send one that encrypts nothing. Control: with another name outside it is refused."""
    stage, _ = play
    answers = []
    for name in ("ok.example", "other.example"):
        with stage.namespace.connect("ok.example", 443) as client:
            client.sendall(with_extension(openssl_hello(name), 0xFE0D, bytes(200)))
            answers.append(client.recv(6))
    handshake, alert = 0x16, 0x15
    assert [answer[0] for answer in answers] == [handshake, alert]
    assert answers[0][5] == 2  # the server's hello
    assert stage.watch.until("sni-mismatch").host == "ok.example"


def test_a_request_inside_a_body_stays_in_it(play: Play) -> None:
    """I4: smuggled in a body, a request is neither judged nor served."""
    stage, origin = play
    inner = get("/denied", "X-Smuggled: yes")
    for sent in (
        head("POST", "/a", f"Content-Length: {len(inner)}") + inner,
        head("POST", "/a", "Transfer-Encoding: chunked")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner),
    ):
        before = len(origin.seen)
        talk = stage.ask(sent, get("/next"))
        assert talk.answer("POST").body == inner
        assert talk.answer().status == 200
        new = origin.seen[before:]
        assert [seen.start.split()[1] for seen in new] == ["/a", "/next"]
        assert new[0].body == inner


def test_a_request_behind_a_body_is_judged_by_itself(play: Play) -> None:
    """I4: what stands behind a body is a request of its own, also when the origin would wait."""
    stage, origin = play
    before = len(origin.seen)
    talk = stage.ask(head("POST", "/a", "Content-Length: 5") + b"hello" + get("/denied"))
    assert talk.answer("POST").body == b"hello"
    assert talk.answer().status == 403
    assert [seen.start for seen in origin.seen[before:]] == ["POST /a HTTP/1.1"]


def test_a_denied_path_is_answered_with_what_to_type(play: Play) -> None:
    """I3: silence is no, and the answer says what to type."""
    stage, origin = play
    before = len(origin.seen)
    answer = stage.ask(head("DELETE", "/denied")).answer()
    body = json.loads(answer.body)
    assert answer.status == 403
    assert body["error"] == "denied"
    assert body["rule"] == "services.own.deny[0]"
    assert body["reason"] == "denied-by-rule"
    assert "`keyhole why --method DELETE https://ok.example/denied`" in body["why"]
    assert body["retry"] is False
    assert len(origin.seen) == before


def test_dns_over_https_is_refused(play: Play) -> None:
    """I3: names would be resolved past the gateway."""
    stage, origin = play
    before = len(origin.seen)
    for request in (
        get("/q?dns=AAABAAAB"),
        get("/q?a=b&%64ns=AAABAAAB"),
        get("/q", "Accept: application/dns-message"),
        get("/q", "Accept: text/html, Application/DNS-JSON"),
        head("POST", "/q", "Content-Type: application/dns-message", "Content-Length: 1") + b"x",
    ):
        answer = stage.ask(request).answer()
        assert answer.status == 403
        assert json.loads(answer.body)["reason"] == "dns-over-https"
    assert len(origin.seen) == before
    assert stage.ask(get("/q?dnssec=1")).answer().status == 200


def test_the_origin_is_only_ever_this_one(play: Play, tls: ssl.SSLContext) -> None:
    """I4: a redirect is passed to the client and never followed."""
    stage, _ = play
    trap = Service()
    moved = Service(lambda _: ok(b"", b"Location: https://other.example/x", status=b"302 Found"))
    with serving(trap, tls) as other, serving(moved, tls) as server:
        check_redirect(stage, server, other, trap)


def check_redirect(stage: Stage, server: Origin, other: Origin, trap: Service) -> None:
    with set_up(stage.authority) as fresh:
        both = service("own", "ok.example") + service("second", "other.example", inject="")
        fresh.open(both, ok_example=server, other_example=other)
        answer = fresh.ask(get("/a")).answer()
        assert answer.status == 302
        assert answer.one("location") == "https://other.example/x"
        assert not trap.seen
        # The control: the other origin can be reached, without the first one's credential.
        talk = fresh.ask(get("/x", host="other.example"), name="other.example")
        assert talk.answer().status == 200
        assert trap.seen[0].one("authorization") is None
