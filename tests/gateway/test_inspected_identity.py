"""A request to an inspected host is for that host and has one reading, or it is refused (I4)."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.gateway.origins import Origin, Service
from tests.gateway.stage import Stage, service, serving, set_up
from tests.gateway.talk import get, head, ok

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


POST = ("POST", "/a")
LENGTHS = {
    "length and chunks": (*POST, "Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunks and length": (*POST, "Transfer-Encoding: chunked", "Content-Length: 5"),
    "two lengths": (*POST, "Content-Length: 5", "Content-Length: 6"),
    "one length twice": (*POST, "Content-Length: 5", "Content-Length: 5"),
    "a list of lengths": (*POST, "Content-Length: 5, 5"),
    "a signed length": (*POST, "Content-Length: +5"),
    "a negative length": (*POST, "Content-Length: -5"),
    "an octal length": (*POST, "Content-Length: 05"),
    "a hexadecimal length": (*POST, "Content-Length: 0x5"),
    "an underscored length": (*POST, "Content-Length: 1_0"),
    "an empty length": (*POST, "Content-Length:"),
    "a length with a fraction": (*POST, "Content-Length: 5.0"),
    "a length of digits that are not ASCII": (*POST, "Content-Length: \xb2"),
    "a length beyond all": (*POST, "Content-Length: 99999999999999999999"),
    "a coding before chunked": (*POST, "Transfer-Encoding: gzip, chunked"),
    "a coding after chunked": (*POST, "Transfer-Encoding: chunked, gzip"),
    "chunked twice": (*POST, "Transfer-Encoding: chunked, chunked"),
    "two codings": (*POST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "almost chunked": (*POST, "Transfer-Encoding: xchunked"),
    "identity": (*POST, "Transfer-Encoding: identity"),
    "a vertical tab before chunked": (*POST, "Transfer-Encoding: \x0bchunked"),
    "chunked in quotes": (*POST, 'Transfer-Encoding: "chunked"'),
    "a coding as a variable": (*POST, "Transfer_Encoding: chunked"),
    "a length as a variable": (*POST, "Content_Length: 5"),
    "another expectation": (*POST, "Content-Length: 5", "Expect: 200-ok"),
}
FIELDS = {
    "a space before the colon": "X-A : b",
    "a tab before the colon": "Transfer-Encoding\t: chunked",
    "no colon": "nothing",
    "no name": ": value",
    "a folded line": "X-A: b\r\n c: d",
    "a fold with a tab": "X-A: b\r\n\tTransfer-Encoding: chunked",
    "NUL": "X-A: b\0c",
    "a bare CR": "X-A: b\rX-B: c",
    "a bare LF": "X-A: b\nTransfer-Encoding: chunked",
    "a control character": "X-A: b\x07",
    "a name that is none": "X(A): b",
    "a long line": f"X-A: {'b' * 17_000}",
    "many fields": "\r\n".join(f"X-{i}: {i}" for i in range(140)),
    "a second Host": "Host: ok.example",
    "another second Host": "Host: other.example",
    "a Host as a variable": "HOST_: ok.example\r\nHo_st: ok.example\r\nhost: other.example",
}
TARGETS = {
    "another host": "https://other.example/a",
    "another port": "https://ok.example:444/a",
    "another scheme": "http://ok.example/a",
    "a user": "https://other.example@ok.example/a",
    "our name as a user": "https://ok.example@other.example/a",
    "an authority": "ok.example:443",
    "an authority alone": "https://ok.example#@other.example/",
    "an asterisk": "*",
    "a fragment": "/a#b",
    "a path without a slash": "a",
    "a backslash": "/a\\..\\denied",
    "a tab": "/a\tb",
    "a space": "/a b",
    "a byte that is not ASCII": "/\xe4",
    "DEL": "/a\x7f",
    "nothing": "",
}
HOSTS = {
    "none": None,
    "another": "other.example",
    "an empty one": "",
    "another port": "ok.example:444",
    "a list": "ok.example, other.example",
    "a user": "other.example@ok.example",
    "a path": "ok.example/other.example",
    "a longer name": "ok.example.other.example",
    "a dot at its end": "ok.example.",
    "an address": "127.0.0.1",
}
LINES = {
    "CONNECT": b"CONNECT ok.example:443 HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "CONNECT elsewhere": b"CONNECT other.example:443 HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "connect in lower case": b"connect /a HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "HTTP/2 without a word": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 by name": b"GET /a HTTP/2.0\r\nHost: ok.example\r\n\r\n",
    "HTTP/0.9": b"GET /a\r\n\r\n",
    "HTTP in lower case": b"GET /a http/1.1\r\nHost: ok.example\r\n\r\n",
    "two spaces": b"GET  /a HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "an empty line before": b"\r\nGET /a HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "bare LF throughout": b"GET /a HTTP/1.1\nHost: ok.example\n\n",
    "bare LF at the end": b"GET /a HTTP/1.1\r\nHost: ok.example\n\n",
    "a long method": b"G" * 40 + b" /a HTTP/1.1\r\nHost: ok.example\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /a HTTP/1.0\r\nHost: ok.example\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a head without an end": b"GET /a HTTP/1.1\r\nHost: ok.example\r\n" + b"X: y\r\n" * 12_000,
}
CHUNKS = {
    "a size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a size with a space": b"5 \r\nhello\r\n0\r\n\r\n",
    "a size with a space before": b" 5\r\nhello\r\n0\r\n\r\n",
    "a size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "a size that overflows": b"FFFFFFFFFFFFFFFF5\r\nhello\r\n0\r\n\r\n",
    "an extension": b"5;a=b\r\nhello\r\n0\r\n\r\n",
    "an extension with a line in it": b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n',
    "a size that ends in LF": b"5\nhello\r\n0\r\n\r\n",
    "a size that ends in CR": b"5\rhello\r\n0\r\n\r\n",
    "an empty size": b"\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer": b"5\r\nhello!\r\n0\r\n\r\n",
    "a chunk that ends in LF": b"5\r\nhello\n0\r\n\r\n",
    "a trailer with a length": b"0\r\nContent-Length: 9\r\n\r\n",
    "a trailer with a coding": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a trailer with a host": b"0\r\nHost: other.example\r\n\r\n",
    "a trailer with a key": b"0\r\nAuthorization: Bearer mine\r\n\r\n",
    "a trailer with another key": b"0\r\nX-Api-Key: mine\r\n\r\n",
    "a trailer with a key as a variable": b"0\r\nX_Api_Key: mine\r\n\r\n",
    "a trailer with a cookie": b"0\r\nCookie: session=mine\r\n\r\n",
    "a trailer with a connection": b"0\r\nConnection: close\r\n\r\n",
    "a trailer with a method": b"0\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
    "a folded trailer": b"0\r\nX: y\r\n z\r\n\r\n",
    "a trailer that ends in LF": b"0\r\nX: y\n\r\n",
}


@pytest.mark.parametrize("case", LENGTHS)
def test_a_body_whose_length_can_be_read_in_two_ways_is_refused(play: Play, case: str) -> None:
    """I4."""
    method, target, *lines = LENGTHS[case]
    refused(play, head(method, target, *lines) + b"hello")


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_that_can_be_read_in_two_ways_is_refused(play: Play, case: str) -> None:
    """I4."""
    refused(play, get("/a", FIELDS[case]))


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_that_is_not_a_path_on_this_host_is_refused(play: Play, case: str) -> None:
    """I4."""
    refused(play, get(TARGETS[case]))


@pytest.mark.parametrize("case", HOSTS)
def test_a_host_that_is_not_the_connections_is_refused(play: Play, case: str) -> None:
    """I4."""
    host = HOSTS[case]
    line = b"" if host is None else b"Host: %b\r\n" % host.encode()
    refused(play, b"GET /a HTTP/1.1\r\n%bAccept: */*\r\n\r\n" % line)


@pytest.mark.parametrize("case", LINES)
def test_a_request_that_is_not_plain_http_1_is_refused(play: Play, case: str) -> None:
    """I4."""
    refused(play, LINES[case])


@pytest.mark.parametrize("case", CHUNKS)
def test_a_body_of_chunks_that_can_be_read_in_two_ways_is_refused(play: Play, case: str) -> None:
    """I4, I6."""
    refused(play, head(*POST, "Transfer-Encoding: chunked") + CHUNKS[case])


def test_a_bad_chunk_that_comes_late_ends_the_origins_connection_too(play: Play) -> None:
    """I4: what the origin has got of the request can never be continued by another one."""
    stage, origin = play
    talk = stage.ask(head("POST", "/late", "Transfer-Encoding: chunked"), b"5\r\nhello\r\n")
    before = len(origin.seen)
    talk.send(b"zz\r\n")
    assert talk.answer("POST").status == 400
    after = stage.ask(get("/after-late"))
    assert after.answer().status == 200
    assert [seen.start for seen in origin.seen[before:]] == ["GET /after-late HTTP/1.1"]


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("/a", "ok.example"),
        ("/a", "OK.Example"),
        ("/a", "ok.example:443"),
        ("https://ok.example/a", "ok.example"),
        ("HTTPS://OK.example:443/a", "ok.example"),
    ],
)
def test_every_way_to_name_this_very_host_is_taken_and_written_as_one(
    play: Play, target: str, host: str
) -> None:
    stage, origin = play
    assert stage.ask(get(target, host=host)).answer().status == 200
    assert origin.seen[-1].start == "GET /a HTTP/1.1"
    assert origin.seen[-1].all("host") == ["ok.example"]


def test_an_absolute_target_without_a_path_is_the_root(play: Play) -> None:
    stage, origin = play
    assert stage.ask(get("https://ok.example?x=1")).answer().status == 200
    assert origin.seen[-1].start == "GET /?x=1 HTTP/1.1"


def test_a_hello_for_another_name_ends_before_tls(play: Play) -> None:
    """I4: other.example is inspected nowhere, so this would be a way around."""
    stage, _ = play
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        stage.visit(sni="other.example")
    assert stage.watch.until("sni-mismatch").host == "ok.example"
    assert stage.ask(get("/control")).answer().status == 200


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


def test_a_head_in_pieces_is_read_as_one(play: Play) -> None:
    stage, origin = play
    raw = get("/pieces", "X-A: b")
    talk = stage.visit()
    talk.send(*(raw[at : at + 1] for at in range(len(raw))))
    assert talk.answer().status == 200
    assert origin.seen[-1].one("x-a") == "b"


def test_a_line_of_two_meanings_in_pieces_is_refused(play: Play) -> None:
    """I4: a bare LF is found wherever the records end."""
    stage, origin = play
    before = len(origin.seen)
    raw = b"GET /a HTTP/1.1\r\nHost: ok.example\n\n"
    talk = stage.visit()
    talk.send(*(raw[at : at + 1] for at in range(len(raw))))
    assert talk.answer().status == 400
    assert len(origin.seen) == before


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
