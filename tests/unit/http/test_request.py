"""A request is for one host, has one length, and goes on without what is not the client's (I4, I6).

Every attack is one change to an honest request, and the honest request is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.field import (
    MAX_FIELDS,
    MAX_HEAD,
    MAX_KNOWN,
    MAX_KNOWN_LINE,
    MAX_LINE,
    ONCE_IN_REQUESTS,
    TWICE,
    Field,
    Memo,
    remember,
)
from keyhole.http.frames import PREFACE
from keyhole.http.plain import PlainRequestReader
from keyhole.http.request import (
    CHUNKED,
    MAX_METHOD,
    MAX_VARIETY,
    ROUTING_AND_FRAMING,
    OutboundHead,
    RequestHead,
    RequestReader,
    Treatment,
)
from keyhole.model.errors import Malformed
from keyhole.model.rule import request_word

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = frozenset({b"authorization", b"x-api-key"})
COLLECTED = frozenset({b"cookie", b"sec-websocket-key", b"x-seen"})


def treat(name: bytes) -> Treatment:
    """As a service with a key in `X-Api-Key`."""
    if name in SECRETS:
        return Treatment.DROP
    return Treatment.COLLECT if name in COLLECTED else Treatment.KEEP


def reader(known: Memo | None = None, port: int = 443) -> RequestReader:
    return RequestReader("ok.example", port, treat, {} if known is None else known)


def head(
    *fields: bytes, line: bytes = b"GET /a?b=c HTTP/1.1", host: bytes | None = b"Host: ok.example"
) -> bytes:
    """A head without its last empty line."""
    return b"\r\n".join([line, *([] if host is None else [host]), *fields])


def parse(data: bytes) -> RequestHead:
    """Read twice, cold and warm: a memo changes nothing."""
    shared = reader()
    first = shared.parse(data)
    assert shared.parse(data) == first
    assert first.raw == data
    return plain(first)


def plain(found: RequestHead) -> RequestHead:
    """All that was read, without the bytes that it was read from."""
    found.raw = b""
    return found


POST = b"POST /a HTTP/1.1"
CURL = RequestHead("GET", "/a", "b=c", False, [], [], False, "GET")


def expected(**changes: object) -> RequestHead:
    made = msgspec.structs.replace(CURL, **changes)
    made.word = request_word(made.method, body=made.length != 0, websocket=made.websocket)
    return made


@pytest.mark.parametrize(
    ("data", "request_head"),
    [
        (head(), expected()),
        (head(host=b"host:OK.Example:443"), expected()),
        (head(host=b"HOST: \tok.example\t "), expected()),
        (head(line=b"GET / HTTP/1.1"), expected(path="/", query=None)),
        (head(line=b"GET /? HTTP/1.1"), expected(path="/", query="")),
        (head(line=b"GET /a?b?c=/?d HTTP/1.1"), expected(query="b?c=/?d")),
        (head(line=b"GET /a%2F;b?c=%23\\ HTTP/1.1"), expected(path="/a%2F;b", query="c=%23\\")),
        (head(line=b"GET https://ok.example/a?b=c HTTP/1.1"), expected()),
        (head(line=b"GET HTTPS://OK.example:443/a?b=c HTTP/1.1"), expected()),
        (head(line=b"GET https://ok.example?b=c HTTP/1.1"), expected(path="/")),
        (head(line=b"GET https://ok.example HTTP/1.1"), expected(path="/", query=None)),
        (
            head(line=b"GET //evil.example/a HTTP/1.1"),
            expected(path="//evil.example/a", query=None),
        ),
        (head(line=b"get /a?b=c HTTP/1.1"), expected(method="get")),
        (head(line=b"CONNECTED /a?b=c HTTP/1.1"), expected(method="CONNECTED")),
        (head(line=b"GET /a?b=c HTTP/1.0"), expected(http10=True, close=True)),
        (head(b"Content-Length: 0"), expected()),
        (head(b"content-length:12"), expected(length=12)),
        (head(b"Transfer-Encoding: Chunked"), expected(length=CHUNKED)),
        (head(b"Connection: keep-alive"), expected()),
        (head(b"Connection: Close"), expected(close=True)),
        (head(b"Connection: keep-alive, close"), expected(close=True)),
        (head(b"Connection:"), expected()),
        (
            head(b"Connection: Keep-Alive", line=b"GET /a?b=c HTTP/1.0"),
            expected(http10=True, close=False),
        ),
        (
            head(b"Connection: keep-alive, te", line=b"GET /a?b=c HTTP/1.0"),
            expected(http10=True, close=False),
        ),
        (
            head(b"Expect: 100-Continue", b"Content-Length: 5"),
            expected(length=5, expects_continue=True),
        ),
        (head(b"Expect: 100-continue"), expected()),
        (head(b"Cookie: a=b"), expected(collected=[Field(b"cookie", b"a=b", b"Cookie: a=b\r\n")])),
        (
            head(b"X-B:1", b"Accept: */*", b"x-a: \xe9\t", b"X-B:"),
            expected(lines=[b"X-B: 1\r\n", b"Accept: */*\r\n", b"x-a: \xe9\r\n", b"X-B: \r\n"]),
        ),
    ],
)
def test_an_honest_head_is_read(data: bytes, request_head: RequestHead) -> None:
    assert parse(data) == request_head


VERSIONS = b"""
http/1.1 HTTP/1.1.1 HTTP/1.2 HTTP/01.1 HTTP/1.01 HTTP/1,1 HTTP/1 HTTP/0.9 HTTP/2.0 HTTP/2
HTTPS/1.1 ICY/1.1
""".split()
TARGETS = rb"""
a ?b=c * /a#b /a?b#c # \a /a\b /a\..\b?c https:/a https:///a https://ok.example#/a
https://ok.example\a https://ok.example\@evil.example/a https://ok.example@evil.example/a
https://evil.example@ok.example/a https://evil.example/a https://evil.example
https://ok.example.evil.example/a https://ok.example./a https://ok.example:/a
https://ok.example:80/a https://ok.example:0443/a https://ok.example:443:443/a
https://ok%2Eexample/a http://ok.example/a wss://ok.example/a file:///a ok.example:443
""".split()
ATTACKS = {
    "request line": [
        b"",
        b"GET",
        b"GET /a",
        b"GET /a HTTP/1.1 ",
        b" GET /a HTTP/1.1",
        b"GET  /a HTTP/1.1",
        b"GET /a  HTTP/1.1",
        b"GET\t/a HTTP/1.1",
        b"GET /a\tHTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"GET /a HTTP/1.1\r",
        b"GET /a HTTP/1.1\n",
        b"GET /a HTTP/1.1\nX: y",
        b"\r\nGET /a HTTP/1.1",
        b"\nGET /a HTTP/1.1",
        b"GET /a\x00 HTTP/1.1",
        b"GET /a\x0b HTTP/1.1",
        b"GET /a\x7f HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /a?\xff HTTP/1.1",
        b"G\x00T /a HTTP/1.1",
        b"G(T /a HTTP/1.1",
        b"G:T /a HTTP/1.1",
        b"G\xc9T /a HTTP/1.1",
        b"G" * (MAX_METHOD + 1) + b" /a HTTP/1.1",
        b"GET /" + b"a" * MAX_LINE + b" HTTP/1.1",
    ],
    "version": [
        *(b"GET /a " + version for version in VERSIONS),
        b"PRI * HTTP/2.0",
    ],
    "target": [
        b"GET  HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        *(b"GET %b HTTP/1.1" % target for target in TARGETS),
    ],
    "tunnel": [
        b"CONNECT ok.example:443 HTTP/1.1",
        b"CONNECT evil.example:443 HTTP/1.1",
        b"CONNECT /a HTTP/1.1",
        b"connect /a HTTP/1.1",
        b"Connect https://ok.example/a HTTP/1.1",
    ],
}


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=f"{kind}-{line!r:.40}") for kind in ATTACKS for line in ATTACKS[kind]],
)
def test_a_request_line_that_could_be_read_in_two_ways_is_refused(line: bytes) -> None:
    """I4."""
    assert parse(head(line=b"GET /a?b=c HTTP/1.1")) == CURL
    with pytest.raises(Malformed):
        parse(head(line=line))


HOSTS = b"""
evil.example ok.example,ok.example ok.example/ ok.example# ok.example? ok.example.
ok.example.evil.example ok.example: ok.example:80 ok.example:0443 ok.example:443:443
user@ok.example ok.example@evil.example https://ok.example [ok.example] 198.18.0.7
""".split()


@pytest.mark.parametrize(
    ("host", "more"),
    [
        *((b"Host: " + host, b"X: y") for host in HOSTS),
        (None, b"X: y"),
        (b"Host:", b"X: y"),
        (b"Host: ok.example", b"Host: ok.example"),
        (b"Host: ok.example", b"host: evil.example"),
        (b"Host: evil.example", b"HOST: ok.example"),
        (b"Host: ok.example, evil.example", b"X: y"),
        (b"Host: ok.example evil.example", b"X: y"),
        (b"Host: ok.example\tevil.example", b"X: y"),
        (b"Host: ok.example\x00evil.example", b"X: y"),
        (b"Host: ok.example\x0b", b"X: y"),
        (b"Host: ok.example\xa0", b"X: y"),
        (b"Host: ok\xef\xbc\x8eexample", b"X: y"),
        (b"Host: o\xe2\x84\xaa.example", b"X: y"),
        (b"Host : ok.example", b"X: y"),
        (b" Host: ok.example", b"X: y"),
        (b"Host\x00: ok.example", b"X: y"),
        (b"Host: ok.example", b"Host : evil.example"),
        (b"Host: ok.example", b" Host: evil.example"),
        (b"Host: ok.example\n evil.example", b"X: y"),
        (b"Host: ok.example", b"X: y\nHost: evil.example"),
        (b"Host: ok.example", b"X: y\rHost: evil.example"),
    ],
)
def test_a_request_has_one_host_and_it_is_this_one(host: bytes | None, more: bytes) -> None:
    """I4."""
    assert parse(head(b"X: y")).lines == [b"X: y\r\n"]
    with pytest.raises(Malformed):
        parse(head(more, host=host))


def test_absolute_form_does_not_make_up_for_a_host_that_is_wrong() -> None:
    """I4: RFC 9112 §3.2.2 lets the target win, and some origins let Host win."""
    line = b"GET https://ok.example/a?b=c HTTP/1.1"
    assert parse(head(line=line)) == CURL
    for host in (None, b"Host: evil.example"):
        with pytest.raises(Malformed):
            parse(head(line=line, host=host))


@pytest.mark.parametrize("read", [reader().parse, PlainRequestReader("ok.example").parse])
def test_http2_by_prior_knowledge_is_refused_in_words(
    read: Callable[[bytes], RequestHead],
) -> None:
    """In the clear as in TLS that has not agreed on it. Control: another line that is none."""
    preface, _, _ = PREFACE.partition(b"\r\n\r\n")
    with pytest.raises(Malformed, match="prior knowledge"):
        read(preface)
    with pytest.raises(Malformed, match="the request line is not"):
        read(b"PRI * HTTP/2.1")


def test_another_port_is_named_or_nothing_is() -> None:
    """I4."""
    other = reader(port=8443)
    for host in (b"Host: ok.example", b"Host: ok.example:8443"):
        assert plain(other.parse(head(host=host))) == CURL
    with pytest.raises(Malformed):
        other.parse(head(host=b"Host: ok.example:443"))


LENGTH = b"Content-Length: 5"
CODING = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    "fields",
    [
        # CL.TE and TE.CL
        (LENGTH, CODING),
        (CODING, LENGTH),
        (b"Content-Length: 0", CODING),
        (LENGTH, b"transfer-encoding:chunked"),
        # CL.CL
        (LENGTH, LENGTH),
        (LENGTH, b"content-length: 6"),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: 5,6",),
        (b"Content-Length: 5 6",),
        # No number
        *(
            (b"Content-Length: " + size,)
            for size in b"+5 -5 0x5 5_0 05 5.0 18446744073709551621".split()
        ),
        (b"Content-Length:",),
        (b"Content-Length: 5\x00",),
        (b"Content-Length: \x0b5",),
        (b"Content-Length: " + b"9" * 4301,),
        # TE.TE
        *(
            (b"Transfer-Encoding: " + name,)
            for name in b'identity chunked, xchunked chunked;x "chunked"'.split()
        ),
        (CODING, CODING),
        (CODING, b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding: identity", CODING),
        (b"Transfer-Encoding:",),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding: chunked, gzip",),
        (b"Transfer-Encoding: chunked, chunked",),
        (b"Transfer-Encoding: chunke\xc4\x91",),
        (b"Transfer-Encoding: \x0bchunked",),
        (b"Transfer-Encoding:\x0cchunked",),
        (b"Transfer-Encoding: chunked\x00",),
        (b"Transfer-Encoding: chunked\r",),
        (b"Transfer-Encoding:\n chunked",),
        (b"Transfer-Encoding\n: chunked",),
        # Names that someone takes for a framing field
        (LENGTH, b"Transfer-Encoding : chunked"),
        (LENGTH, b"Transfer-Encoding\t: chunked"),
        (LENGTH, b" Transfer-Encoding: chunked"),
        (LENGTH, b"\tTransfer-Encoding: chunked"),
        (LENGTH, b"Transfer-Encoding\x00: chunked"),
        (LENGTH, b"Transfer\xadEncoding: chunked"),
        (LENGTH, b"Transfer Encoding: chunked"),
        (LENGTH, b"Transfer_Encoding: chunked"),
        (LENGTH, b"Transfer.Encoding: chunked"),
        (LENGTH, b"X: y\nTransfer-Encoding: chunked"),
        (LENGTH, b"X: y\rTransfer-Encoding: chunked"),
        (LENGTH, b"X: y\r", b"Transfer-Encoding: chunked"),
        (LENGTH, b"X: y", b" Transfer-Encoding: chunked"),
        (b"Content_Length: 5",),
        (b"Content-Length : 5",),
        (LENGTH, b"content_length: 6"),
    ],
)
def test_a_body_has_one_length(fields: tuple[bytes, ...]) -> None:
    """I4: where a body ends is where the next request begins."""
    assert parse(head(LENGTH, line=POST)).length == 5
    assert parse(head(CODING, line=POST)).length == CHUNKED
    with pytest.raises(Malformed):
        parse(head(*fields, line=POST))


def test_chunks_are_unknown_to_http_1_0() -> None:
    """I4: an origin of that version would read the chunks as the next request."""
    assert parse(head(LENGTH, line=b"POST /a HTTP/1.0")).length == 5
    with pytest.raises(Malformed):
        parse(head(CODING, line=b"POST /a HTTP/1.0"))
    with pytest.raises(Malformed):
        parse(head(CODING, b"Connection: keep-alive", line=b"POST /a HTTP/1.0"))


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"X",
        b":",
        b": y",
        b"X : y",
        b" X: y",
        b"\tX: y",
        b"X y: z",
        b"X\x00: y",
        b"X\x7f: y",
        b"X\xc3\xa9: y",
        b"X(): y",
        b'X": y',
        b"X: y\x00",
        b"X: \x01",
        b"X: y\x1b[0m",
        b"X: y\x7f",
        b"X: y\n z",
        b"X: y\nz: 1",
        b"X: y\rz: 1",
        b"X: y\r",
        b"X: y\n",
        # What is dropped is looked at all the same.
        b"Authorization: Bearer x\ny: z",
        b"Authorization: \x00",
        b"Authorization: \x9f\x00",
        b"Authorization",
        b"X-Api-Key : x",
        b"TE: trailers\x00",
        b"Keep-Alive: a\rb",
        b"X: " + b"y" * MAX_LINE,
    ],
)
def test_a_field_that_could_be_read_in_two_ways_is_refused(field: bytes) -> None:
    """I4, I6. Also where the same line was read before."""
    shared = reader()
    assert shared.parse(head(b"X: y", b"Authorization: Bearer x")).lines == [b"X: y\r\n"]
    for _ in range(2):
        with pytest.raises(Malformed):
            shared.parse(head(field))


def test_a_folded_line_is_refused_wherever_it_stands() -> None:
    """I4: obs-fold, which one server joins and another takes for a field."""
    for fold in (b" ", b"\t", b" x", b" Host: evil.example", b"\tX: y"):
        for fields in ((b"X: y", fold), (fold, b"X: y"), (b"X: y", fold, b"Z: 1")):
            with pytest.raises(Malformed):
                parse(head(*fields))
    with pytest.raises(Malformed):
        parse(head(b" X: y", host=None) + b"\r\nHost: ok.example")


def test_a_head_is_bounded() -> None:
    """I9."""
    assert len(parse(head(*[b"X: y"] * (MAX_FIELDS - 1))).lines) == MAX_FIELDS - 1
    with pytest.raises(Malformed):
        parse(head(*[b"X: y"] * MAX_FIELDS))
    long = b"X: " + b"y" * (MAX_LINE - 3)
    assert parse(head(long, long, long)).lines == [long + b"\r\n"] * 3
    with pytest.raises(Malformed):
        parse(head(long, long, long, long))
    assert 4 * len(long) >= MAX_HEAD


@pytest.mark.parametrize(
    "expect",
    [b"", b"100", b"200-ok", b"100-continue, x", b"100-continue, 100-continue", b"100-continue=y"],
)
def test_an_expectation_that_is_not_understood_is_refused(expect: bytes) -> None:
    assert parse(head(LENGTH, b"Expect: 100-continue", line=POST)).expects_continue
    with pytest.raises(Malformed):
        parse(head(LENGTH, b"Expect: " + expect, line=POST))


def test_an_expectation_without_a_body_or_from_http_1_0_means_nothing() -> None:
    assert not parse(head(b"Expect: 100-continue")).expects_continue
    old = head(LENGTH, b"Expect: 100-continue", line=b"POST /a HTTP/1.0")
    assert not parse(old).expects_continue
    assert parse(head(CODING, b"Expect: 100-continue", line=POST)).expects_continue


@pytest.mark.parametrize(
    "name",
    sorted(
        (ROUTING_AND_FRAMING | SECRETS)
        - {b"host", b"content-length", b"transfer-encoding", b"accept", b"content-type", b"expect"}
    ),
)
@pytest.mark.parametrize("spell", [bytes.lower, bytes.upper, bytes.title])
def test_what_belongs_to_the_connection_or_misleads_the_origin_does_not_go_on(
    name: bytes, spell: Callable[[bytes], bytes]
) -> None:
    """I4, I6. The control is a field with almost the same name."""
    sent = spell(name)
    found = parse(head(b"X-" + sent + b"-X: 1", sent + b": x", b"Y: z"))
    assert found.lines == [b"X-" + sent + b"-X: 1\r\n", b"Y: z\r\n"]
    assert not found.collected


OVERRIDES = (
    b"X-HTTP-Method-Override X-HTTP-Method X-Method-Override X-HttpMethod-Override X-Method"
    b" HTTP-Method-Override X-HttpMethodOverride X-HTTP-Verb-Override Method".split()
)


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("sign", [b"-", b"_", b".", b"~"])
def test_a_field_that_names_another_method_is_told(name: bytes, sign: bytes) -> None:
    """I3: what was judged as a POST would be served as a DELETE. WSGI and CGI know
    `X_HTTP_Method` and `X-HTTP-Method` as one variable."""
    for spelled in (name, name.lower(), name.upper()):
        found = parse(head(spelled.replace(b"-", sign) + b": DELETE", line=POST))
        assert found.overrides
        assert not found.lines


@pytest.mark.parametrize(
    "name",
    [b"Access-Control-Request-Method", b"X-Stainless-Helper-Method", b"HTTP-Referer", b"Methods"],
)
def test_a_field_that_only_speaks_of_methods_goes_on(name: bytes) -> None:
    """The control."""
    found = parse(head(name + b": DELETE", line=POST))
    assert not found.overrides
    assert found.lines == [name + b": DELETE\r\n"]


@pytest.mark.parametrize("name", sorted(ONCE_IN_REQUESTS - SECRETS))
@pytest.mark.parametrize("second", [b"1", b"2"])
@pytest.mark.parametrize("warm", [False, True])
def test_a_field_that_may_stand_once_is_refused_when_it_stands_twice(
    name: bytes, second: bytes, warm: bool
) -> None:
    """I4: of two lines, one server takes the first and another the last."""
    shared, line = reader(), name.title() + b": 1"
    if warm:
        shared.parse(head(line, line=POST))
    assert shared.parse(head(line, b"X-A: 1", b"X-A: 1", line=POST))
    for again in (name.title(), name.upper()):
        with pytest.raises(Malformed) as error:
            shared.parse(head(line, b"X-A: 1", again + b": " + second, line=POST))
        assert error.value.why == TWICE
    assert shared.parse(head(line, line=POST))


def test_a_field_that_may_stand_once_is_still_watched_when_its_lines_never_repeat() -> None:
    """I4: a name of which many lines were seen takes a shorter way, which must not forget it."""
    shared = reader()
    for number in range(2 * MAX_VARIETY):
        line = b"If-None-Match: %d" % number
        assert shared.parse(head(line)).lines == [line + b"\r\n"]
    with pytest.raises(Malformed):
        shared.parse(head(b"If-None-Match: a", b"If-None-Match: b"))
    with pytest.raises(Malformed):
        shared.parse(head(b"If-None-Match: a", b"If_None_Match: b"))


def call(media: bytes, line: bytes = b"POST /a.B/C HTTP/1.1") -> bytes:
    return head(b"Content-Type: " + media, b"Content-Length: 5", line=line)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (head(), "GET"),
        (head(b"Content-Length: 0"), "GET"),
        (head(b"Content-Length: 1"), "GET+body"),
        (head(b"Transfer-Encoding: chunked"), "GET+body"),
        (head(b"Content-Length: 1", line=b"DELETE /a HTTP/1.1"), "DELETE+body"),
        (head(b"Content-Length: 1", line=b"OPTIONS /a HTTP/1.1"), "OPTIONS+body"),
        (head(b"Content-Length: 1", line=b"HEAD /a HTTP/1.1"), "HEAD+body"),
        (head(b"Content-Length: 1", line=POST), "POST"),
        (head(b"Connection: Upgrade", b"Upgrade: websocket"), "WEBSOCKET"),
        (head(b"Connection: Upgrade", b"Upgrade: h2c"), "GET"),
        (head(b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 1"), "GET+body"),
        (call(b"application/grpc"), "GRPC"),
        (call(b"application/grpc+proto"), "GRPC"),
        (call(b"Application/GRPC+json; charset=utf-8"), "GRPC"),
        (call(b"application/grpc-web"), "GRPC"),
        (call(b"application/grpc-web-text+proto"), "GRPC"),
        (call(b"application/grpcish"), "POST"),
        (call(b"application/grpc-foo"), "POST"),
        (call(b"text/application/grpc"), "POST"),
        (call(b"application/json; x=application/grpc"), "POST"),
        (call(b"application/connect+proto"), "POST"),
        # No call has a query, is empty, or has another method; and the type must reach the origin.
        (call(b"application/grpc", line=b"POST /a.B/C?x HTTP/1.1"), "POST"),
        (call(b"application/grpc", line=b"PUT /a.B/C HTTP/1.1"), "PUT"),
        (head(b"Content-Type: application/grpc", line=POST), "POST"),
        (
            head(
                b"Content-Type: application/grpc",
                b"Connection: content-type",
                b"Content-Length: 5",
                line=POST,
            ),
            "POST",
        ),
        # The words of rules are no methods: what a client calls so has no name.
        (head(b"Content-Length: 1", line=b"GRPC /a HTTP/1.1"), ""),
        (head(line=b"GET+body /a HTTP/1.1"), ""),
        (head(line=b"WEBSOCKET /a HTTP/1.1"), ""),
        (head(line=b"get /a HTTP/1.1"), ""),
    ],
)
def test_a_request_has_the_word_by_which_rules_name_it(data: bytes, word: str) -> None:
    """I3: a body where HTTP defines none, and a WebSocket, are not what `GET` allows."""
    assert parse(data).word == word


def test_a_call_is_known_by_a_line_that_was_read_before() -> None:
    """I3: lines are remembered, and what they mean for the word is not forgotten."""
    same = reader()
    found = [same.parse(call(b"application/" + kind)).word for kind in (b"grpc", b"json") * 2]
    assert found == ["GRPC", "POST", "GRPC", "POST"]


@pytest.mark.parametrize("name", [b"X_Api_Key", b"x-api_key", b"X.Api.Key", b"X-API!KEY"])
def test_a_credential_spelt_for_an_origin_that_folds_names_does_not_go_on(name: bytes) -> None:
    """I6."""
    found = parse(head(b"X_Other_Key: 1", name + b": theirs"))
    assert found.lines == [b"X_Other_Key: 1\r\n"]


def test_a_collected_field_is_not_passed_under_another_spelling() -> None:
    found = parse(head(b"X_Seen: 1", b"X-Seen: 2"))
    assert [field.value for field in found.collected] == [b"2"]
    assert not found.lines


def test_a_nominated_field_is_dropped_with_all_its_lines() -> None:
    fields = (b"X-A: 1", b"Connection: x-a, Cookie", b"X-B: 2", b"x-A: 3", b"Cookie: c")
    found = parse(head(*fields))
    assert (found.lines, found.collected) == ([b"X-B: 2\r\n"], [])
    control = parse(head(*(field for field in fields if b"Connection" not in field)))
    assert len(control.lines) == 3
    assert len(control.collected) == 1


def test_nominations_may_come_in_several_lines() -> None:
    found = parse(head(b"Connection: close", b"X-A: 1", b"connection: X-A"))
    assert (found.lines, found.close) == ([], True)


def test_a_nomination_takes_neither_host_nor_length_away() -> None:
    """I4: what the origin is told of the body does not depend on Connection."""
    nominate = b"Connection: Host, Content-Length, Transfer-Encoding, Authorization"
    assert parse(head(nominate, LENGTH, line=POST)).length == 5
    assert parse(head(nominate, CODING, line=POST)).length == CHUNKED
    for fields in ((LENGTH, CODING), (LENGTH, LENGTH)):
        with pytest.raises(Malformed):
            parse(head(nominate, *fields, line=POST))
    with pytest.raises(Malformed):
        parse(head(nominate, b"Host: ok.example"))


@pytest.mark.parametrize("value", [b"close x", b"x y", b"a;b", b'"close"', b"\xe9", b"close;"])
def test_connection_is_a_list_of_names(value: bytes) -> None:
    assert parse(head(b"Connection: close, ,")).close
    with pytest.raises(Malformed):
        parse(head(b"Connection: " + value))


UPGRADE = (b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket")
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


def test_a_websocket_is_asked_for() -> None:
    found = parse(head(*UPGRADE, KEY, b"Sec-WebSocket-Version: 13"))
    assert found.websocket
    assert found.collected == [Field(b"sec-websocket-key", KEY[19:], KEY + b"\r\n")]
    assert found.lines == [b"Sec-WebSocket-Version: 13\r\n"]


@pytest.mark.parametrize(
    "data",
    [
        head(b"Connection: Upgrade", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
        head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: websocket, h2c"),
        head(b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c"),
        head(b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: websocket"),
        head(b"Connection: Upgrade", b"Upgrade: websocket/13"),
        head(b"Connection: Upgrade", b"Upgrade: TLS/1.0"),
        head(b"Connection: Upgrade"),
        head(b"Connection: close", b"Upgrade: websocket"),
        head(b"Connection: keep-alive", b"Upgrade: websocket"),
        head(b"Upgrade: websocket"),
        head(*UPGRADE, line=b"POST /a?b=c HTTP/1.1"),
        head(*UPGRADE, line=b"get /a?b=c HTTP/1.1"),
        head(*UPGRADE, line=b"GET /a?b=c HTTP/1.0"),
        head(*UPGRADE, LENGTH),
        head(*UPGRADE, CODING),
    ],
)
def test_every_other_upgrade_is_an_ordinary_request(data: bytes) -> None:
    """I4: h2c would carry requests that nobody reads."""
    assert parse(head(*UPGRADE)).websocket
    found = parse(data)
    assert not found.websocket
    assert not found.lines


@pytest.mark.parametrize("name", [b"Accept", b"content-type", b"ACCEPT"])
@pytest.mark.parametrize(
    ("value", "dns"),
    [
        (b"application/dns-message", True),
        (b"Application/DNS-Message", True),
        (b"text/html, application/dns-message;q=0.5", True),
        (b"application / dns-message", True),
        (b"application/dns-json", True),
        (b"application/dns+json", True),
        (b"application/oblivious-dns-message", True),
        (b"application/json", False),
        (b"*/*", False),
        (b"text/dns", False),
    ],
)
def test_dns_over_https_is_noticed_each_time(name: bytes, value: bytes, dns: bool) -> None:
    shared = reader()
    for _ in range(2):
        found = shared.parse(head(name + b": " + value))
        assert found.dns_message is dns
        assert bool(found.lines) is not dns
    assert not shared.parse(head()).dns_message


def test_a_media_type_is_treated_as_the_caller_says() -> None:
    def collect(name: bytes) -> Treatment:
        return Treatment.COLLECT if name == b"accept" else Treatment.DROP

    shared = RequestReader("ok.example", 443, collect, {})
    for _ in range(2):
        found = shared.parse(head(b"Accept: */*", b"Content-Type: a/b"))
        assert found.collected == [Field(b"accept", b"*/*", b"Accept: */*\r\n")]
        assert not found.lines


def test_what_is_dropped_or_collected_is_never_remembered() -> None:
    """I6. The control is a line that is kept."""
    known: Memo = {}
    fields = (b"Authorization: a", b"x_api_key: b", b"Cookie: c", LENGTH, b"TE: d", b"X-Kept: e")
    found = reader(known).parse(head(*fields, b"X-Long: " + b"f" * MAX_KNOWN_LINE))
    assert len(found.lines) == 2
    assert known == {b"X-Kept: e": b"X-Kept: e\r\n"}


def test_a_memo_is_shared_by_readers_and_bounded() -> None:
    """I9."""
    known: Memo = {}
    first, second = reader(known), reader(known)
    for number in range(3 * MAX_KNOWN):
        line = b"X-%d: y" % number
        assert first.parse(head(line)).lines == second.parse(head(line)).lines == [line + b"\r\n"]
        assert len(known) <= MAX_KNOWN


def test_a_name_whose_lines_are_never_the_same_leaves_the_memo_to_others() -> None:
    known: Memo = {}
    shared = reader(known)
    for number in range(3 * MAX_KNOWN):
        id_line = b"X-Request-Id: %d" % number
        assert shared.parse(head(b"X-Kept: 1", id_line)).lines == [
            b"X-Kept: 1\r\n",
            id_line + b"\r\n",
        ]
    assert len(known) == 1 + MAX_VARIETY
    assert b"X-Kept: 1" in known


def with_varied_ids() -> RequestReader:
    """A reader that knows of `X-Id` that its lines are never the same."""
    shared = reader()
    for number in range(MAX_VARIETY + 1):
        shared.parse(head(b"X-Id: %d" % number))
    return shared


VARIED = with_varied_ids()


@given(
    st.binary(max_size=8)
    | st.text(" \t\r\n:a\0é\xa0", max_size=5).map(lambda t: t.encode("latin-1"))
)
def test_a_line_that_varies_is_read_as_one_that_was_never_seen(rest: bytes) -> None:
    """I4: the quick way takes nothing that the slow one refuses, and writes what that writes."""
    found = []
    for shared in (reader(), VARIED):
        try:
            found.append(shared.parse(head(b"X-Id:" + rest)).lines)
        except Malformed as error:
            found.append([error.why.encode()])
    assert found[0] == found[1]
    assert VARIED.parse(head(b"X-Id: 7f")).lines == [b"X-Id: 7f\r\n"]


DROPPING = reader()
DROPPING.parse(head(b"Authorization: x"))


@given(
    st.binary(max_size=8)
    | st.text(" \t\r\n:a\0é\xa0", max_size=5).map(lambda t: t.encode("latin-1"))
)
def test_a_line_that_is_dropped_is_read_as_one_that_was_never_seen(rest: bytes) -> None:
    """I4, I6: the quick way takes nothing that the slow one refuses."""
    found = []
    for shared in (reader(), DROPPING):
        try:
            found.append(shared.parse(head(b"Authorization" + rest)).lines)
        except Malformed as error:
            found.append([error.why.encode()])
    assert found[0] == found[1]
    assert DROPPING.parse(head(b"Authorization: y")).lines == []


def test_a_line_that_varies_and_is_not_written_as_usual_is_written_anew() -> None:
    assert VARIED.parse(head(b"X-Id:\t 7f \t")).lines == [b"X-Id: 7f\r\n"]


def test_a_request_does_not_share_its_lines_with_the_next() -> None:
    shared = reader()
    first = shared.parse(head(b"X: y"))
    first.lines.append(b"Authorization: real\r\n")
    assert shared.parse(head(b"X: y")).lines == [b"X: y\r\n"]


# ── properties ────────────────────────────────────────────────────────────────────────────────────

PATHS = st.from_regex(r"/[!\"$->@-\[\]-~]{0,20}", fullmatch=True)
QUERIES = st.none() | st.from_regex(r"[!\"$-~]{0,20}", fullmatch=True)
METHODS = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,10}", fullmatch=True).filter(
    lambda method: method.upper() != "CONNECT"
)
NAMES = st.from_regex(rb"[A-Za-z0-9-]{1,12}", fullmatch=True).filter(
    lambda name: name.lower() not in ROUTING_AND_FRAMING | SECRETS | COLLECTED
)
VALUES = st.from_regex(
    rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]{0,20}[!-~\x80-\xff])?)?", fullmatch=True
)
REQUESTS = st.builds(
    RequestHead,
    method=METHODS,
    path=PATHS,
    query=QUERIES,
    http10=st.just(False),
    lines=st.lists(st.builds(b"%b: %b\r\n".__mod__, st.tuples(NAMES, VALUES)), max_size=8),
    collected=st.lists(
        st.builds(lambda value: Field(b"cookie", value, b"Cookie: %b\r\n" % value), VALUES),
        max_size=2,
    ),
    length=st.integers(CHUNKED, 10**15 - 1),
    close=st.booleans(),
    word=st.just(""),
)


def serialise(request: RequestHead) -> bytes:
    """As the gateway writes a request, without its last empty line."""
    query = "" if request.query is None else f"?{request.query}"
    start = f"{request.method} {request.path}{query} HTTP/1.1\r\nHost: ok.example\r\n".encode()
    lines = [start, *request.lines, *(field.line for field in request.collected)]
    if request.length > 0:
        lines.append(b"Content-Length: %d\r\n" % request.length)
    elif request.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if request.close:
        lines.append(b"Connection: close\r\n")
    return b"".join(lines).removesuffix(b"\r\n")


@given(REQUESTS)
def test_what_is_written_is_read_as_it_was_meant(request: RequestHead) -> None:
    word = request_word(request.method, body=request.length != 0, websocket=False)
    assert parse(serialise(request)) == msgspec.structs.replace(request, word=word)


ROWS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"Host: ok.example",
            b"Host: evil.example",
            LENGTH,
            CODING,
            b"Connection: close, x-kept",
            b"Connection: upgrade",
            b"Upgrade: websocket",
            b"Authorization: s3cret",
            b"x_api_key: s3cret",
            b"X-Kept: 1",
            b" fold",
            b"Accept: application/dns-message",
            b"Expect: 100-continue",
        ]
    ),
    st.builds(b"%b:%b".__mod__, st.tuples(st.binary(max_size=12), st.binary(max_size=12))),
    st.builds(b"%b: %b".__mod__, st.tuples(NAMES, VALUES)),
)
LINES = st.sampled_from(
    [POST, b"GET / HTTP/1.0", b"GET https://ok.example?x HTTP/1.1"]
) | st.binary(max_size=30)
HEADS = st.binary(max_size=100) | st.builds(
    lambda line, rows: b"\r\n".join([line, b"Host: ok.example", *rows]),
    LINES,
    st.lists(ROWS, max_size=5),
)


@given(st.lists(HEADS, min_size=1, max_size=6))
def test_any_bytes_are_refused_or_read_the_same_cold_and_warm(heads: list[bytes]) -> None:
    """I4, I6: no history of a session changes how a request is read, or what leaves."""
    known: Memo = {}
    remember(known, b"X-Kept: 1", b"X-Kept: 1\r\n")
    shared = reader(known)
    for data in heads * 2:
        try:
            found: RequestHead | str = reader().parse(data)
        except Malformed as malformed:
            found = malformed.why
        try:
            warm: RequestHead | str = shared.parse(data)
        except Malformed as malformed:
            warm = malformed.why
        assert warm == found
        if isinstance(found, RequestHead):
            for line in found.lines:
                assert re.fullmatch(rb"[^\s:\x00-\x1f]+: [^\r\n\x00]*\r\n", line)
                name = line.partition(b":")[0].lower()
                assert name not in (ROUTING_AND_FRAMING - {b"accept", b"content-type"}) | SECRETS
                assert b"s3cret" not in line
    assert "s3cret" not in str(known)


@given(HEADS)
def test_what_goes_on_is_read_as_the_same_request(data: bytes) -> None:
    """I4: a second gateway of this kind, between this one and the origin, sees no other request."""
    try:
        found = reader().parse(data)
    except Malformed:
        return
    again = parse(serialise(found))
    assert (again.method, again.path, again.query) == (found.method, found.path, found.query)
    assert (again.lines, again.collected) == (found.lines, found.collected)
    assert (again.length, again.close) == (found.length, found.close)


def test_a_head_with_a_credential_is_not_printed() -> None:
    """I1, I8. Control: the method and the host are shown."""
    lines = [b"Authorization: Bearer made-up-secret\r\n"]
    shown = repr(OutboundHead("GET", "/v1?key=made-up-secret", "h.example", lines))
    assert "made-up-secret" not in shown
    assert "GET" in shown
    assert "h.example" in shown
