"""A response ends where nobody can doubt it, and only what is for the client goes on.

Every attack is one change to an honest response, and the honest response is read.
"""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.field import (
    MAX_FIELDS,
    MAX_HEAD,
    MAX_KNOWN,
    MAX_LINE,
    ONCE_IN_RESPONSES,
    TWICE,
    Field,
    Memo,
)
from keyhole.http.request import Treatment
from keyhole.http.response import (
    NO_LENGTH,
    NOT_FOR_THE_CLIENT,
    Framing,
    ResponseHead,
    parse_response,
)
from keyhole.model.errors import Malformed

OK = b"HTTP/1.1 200 OK"
LENGTH = b"Content-Length: 5"
CODING = b"Transfer-Encoding: chunked"


def head(*fields: bytes, line: bytes = OK) -> bytes:
    """A head without its last empty line."""
    return b"\r\n".join([line, *fields])


def parse(data: bytes, method: str = "GET") -> ResponseHead:
    """Read twice, cold and warm: a memo changes nothing."""
    known: Memo = {}
    first = parse_response(data, method, known)
    assert parse_response(data, method, known) == first
    return first


FIVE = ResponseHead(200, 1, b"HTTP/1.1 200 OK\r\n", [], False, Framing.LENGTH, 5)


def expected(**changes: object) -> ResponseHead:
    return msgspec.structs.replace(FIVE, **changes)


@pytest.mark.parametrize(
    ("data", "response"),
    [
        (head(LENGTH), FIVE),
        (head(b"content-length:0"), expected(length=0)),
        (head(CODING), expected(framing=Framing.CHUNKED, length=NO_LENGTH)),
        (head(b"transfer-encoding: Chunked"), expected(framing=Framing.CHUNKED, length=NO_LENGTH)),
        (head(), expected(framing=Framing.CLOSE, length=NO_LENGTH, close=True)),
        (
            head(b"Connection: keep-alive"),
            expected(framing=Framing.CLOSE, length=NO_LENGTH, close=True),
        ),
        (head(LENGTH, b"Connection: close"), expected(close=True)),
        (head(LENGTH, b"Connection: Keep-Alive"), FIVE),
        (head(LENGTH, b"Connection: keep-alive, Close"), expected(close=True)),
        (head(LENGTH, line=b"HTTP/1.0 200 OK"), expected(minor=0, close=True)),
        (
            head(LENGTH, b"Connection: Keep-Alive", line=b"HTTP/1.0 200 OK"),
            expected(minor=0, close=False),
        ),
        (
            head(LENGTH, b"Connection: Keep-Alive, x", line=b"HTTP/1.0 200 OK"),
            expected(minor=0, close=False),
        ),
        (head(LENGTH, line=b"HTTP/1.1 200 "), expected(start=b"HTTP/1.1 200 \r\n")),
        (head(LENGTH, line=b"HTTP/1.1 200"), expected(start=b"HTTP/1.1 200 \r\n")),
        (
            head(LENGTH, line=b"HTTP/1.1 599 caf\xe9: \t x"),
            expected(status=599, start=b"HTTP/1.1 599 caf\xe9: \t x\r\n"),
        ),
        (
            head(b"X-B:1", b"Strict-Transport-Security: max-age=1", LENGTH, b"x-b: \xe9\t"),
            expected(
                lines=[b"X-B: 1\r\n", b"Strict-Transport-Security: max-age=1\r\n", b"x-b: \xe9\r\n"]
            ),
        ),
    ],
)
def test_an_honest_head_is_read(data: bytes, response: ResponseHead) -> None:
    assert parse(data) == response


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/1.1 ",
        b"HTTP/1.1 20",
        b"HTTP/1.1 2000",
        b"HTTP/1.1 2 0",
        b"HTTP/1.1 099 Early",
        b"HTTP/1.1 600 Late",
        b"HTTP/1.1 999 Denied",
        b"HTTP/1.1 +20 OK",
        b"HTTP/1.1 20x OK",
        b"HTTP/1.1 2_0 OK",
        b"HTTP/1.1 \xb2\xb2\xb2 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1\t200 OK",
        b"HTTP/1.1 200\tOK",
        b"HTTP/1.1 200OK",
        b" HTTP/1.1 200 OK",
        b"\r\nHTTP/1.1 200 OK",
        b"http/1.1 200 OK",
        b"HTTP/1.2 200 OK",
        b"HTTP/2 200 OK",
        b"HTTP/2.0 200 OK",
        b"HTTP/0.9 200 OK",
        b"HTTP/1.10 200 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r",
        b"HTTP/1.1 200 OK\n",
        b"HTTP/1.1 200 OK\nX: y",
        b"HTTP/1.1 200 O\x00K",
        b"HTTP/1.1 200 \x1b[2J",
        b"HTTP/1.1 200 " + b"x" * MAX_LINE,
    ],
)
def test_a_status_line_that_could_be_read_in_two_ways_is_refused(line: bytes) -> None:
    assert parse(head(LENGTH)) == FIVE
    with pytest.raises(Malformed):
        parse(head(LENGTH, line=line))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content", b"304 Not Modified", b"101 Go"])
@pytest.mark.parametrize(
    "fields",
    [
        (LENGTH, LENGTH),
        (LENGTH, b"content-length: 6"),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: +5",),
        (b"Content-Length: 0x5",),
        (b"Content-Length: 05",),
        (b"Content-Length:",),
        (b"Content-Length: 18446744073709551621",),
        (LENGTH, CODING),
        (CODING, LENGTH),
        (CODING, CODING),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked, gzip",),
        (b"Transfer-Encoding: gzip",),
        (b"Transfer-Encoding: identity",),
        (b"Transfer-Encoding:",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding: chunked\x0b",),
        (b"Transfer-Encoding : chunked",),
        (b" Transfer-Encoding: chunked",),
        (LENGTH, b"X: y\nTransfer-Encoding: chunked"),
        (LENGTH, b"X: y\r", CODING),
    ],
)
def test_a_body_has_one_length_whatever_is_answered(
    fields: tuple[bytes, ...], status: bytes, method: str
) -> None:
    """Where it ends for the gateway and not for the client, one response becomes two."""
    line = b"HTTP/1.1 " + status
    for control in (LENGTH, CODING):
        assert parse(head(control, line=line), method)
    with pytest.raises(Malformed):
        parse(head(*fields, line=line), method)


def test_chunks_are_unknown_to_http_1_0() -> None:
    assert parse(head(LENGTH, line=b"HTTP/1.0 200 OK")).length == 5
    with pytest.raises(Malformed):
        parse(head(CODING, line=b"HTTP/1.0 200 OK"))


@pytest.mark.parametrize(
    ("status", "method"), [(b"304", "GET"), (b"200", "HEAD"), (b"404", "HEAD"), (b"304", "HEAD")]
)
def test_what_a_get_would_have_had_is_told_and_does_not_come(status: bytes, method: str) -> None:
    line = b"HTTP/1.1 %b x" % status
    for fields, length in (((LENGTH,), 5), ((CODING,), NO_LENGTH), ((), NO_LENGTH)):
        found = parse(head(*fields, line=line), method)
        assert (found.framing, found.length, found.close) == (Framing.NONE, length, False)
    assert parse(head(LENGTH, line=b"HTTP/1.1 200 x"), "GET").framing is Framing.LENGTH


@pytest.mark.parametrize("status", [b"100", b"101", b"103", b"199", b"204"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_body_that_must_not_come_ends_the_connection(status: bytes, method: str) -> None:
    """If it comes all the same, it is not taken for the next response."""
    line = b"HTTP/1.1 %b x" % status
    for fields, close in (
        ((), False),
        ((b"Content-Length: 0",), False),
        ((LENGTH,), True),
        ((CODING,), True),
        ((b"Connection: keep-alive", LENGTH), True),
    ):
        found = parse(head(*fields, line=line), method)
        assert (found.framing, found.length, found.close) == (Framing.NONE, NO_LENGTH, close)


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"X",
        b": y",
        b"X : y",
        b" X: y",
        b"X\x00: y",
        b"X: y\x00",
        b"X: a\nb",
        b"X: a\rb",
        b"X: " + b"y" * MAX_LINE,
        b"Alt-Svc: \x00",
        b"Keep-Alive: \x01",
    ],
)
def test_a_field_that_could_be_read_in_two_ways_is_refused(field: bytes) -> None:
    assert parse(head(LENGTH, b"X: y")).lines == [b"X: y\r\n"]
    with pytest.raises(Malformed):
        parse(head(LENGTH, field))


def test_a_head_is_bounded() -> None:
    """I9."""
    assert len(parse(head(*[b"X: y"] * MAX_FIELDS)).lines) == MAX_FIELDS
    for data in (head(*[b"X: y"] * (MAX_FIELDS + 1)), OK + b" " * MAX_HEAD):
        with pytest.raises(Malformed):
            parse(data)


@pytest.mark.parametrize(
    "name", sorted(NOT_FOR_THE_CLIENT - {b"content-length", b"transfer-encoding"})
)
def test_what_speaks_of_the_origins_connection_does_not_go_on(name: bytes) -> None:
    """Alt-Svc among it: HTTP/3 would be a way past the gateway that is not there."""
    found = parse(head(LENGTH, b"X-" + name + b": 1", name.title() + b": x", b"Y: z"))
    assert found.lines == [b"X-" + name + b": 1\r\n", b"Y: z\r\n"]


def test_a_nominated_field_is_dropped_with_all_its_lines() -> None:
    found = parse(head(LENGTH, b"X-A: 1", b"Connection: x-a", b"connection: X-C", b"x-A: 2"))
    assert found == FIVE
    assert parse(head(LENGTH, b"X-A: 1", b"Connection: upgrade")).lines == [b"X-A: 1\r\n"]


def test_a_nomination_does_not_take_the_length_away() -> None:
    fields = (b"Connection: content-length, transfer-encoding", LENGTH)
    assert parse(head(*fields)) == FIVE
    with pytest.raises(Malformed):
        parse(head(*fields, CODING))


@pytest.mark.parametrize("value", [b"close x", b"a;b", b'"close"', b"\xe9"])
def test_connection_is_a_list_of_names(value: bytes) -> None:
    assert parse(head(LENGTH, b"Connection: , close")).close
    with pytest.raises(Malformed):
        parse(head(LENGTH, b"Connection: " + value))


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([], b""),
        ([b""], b""),
        ([b"Identity"], b""),
        ([b"GZip"], b"gzip"),
        ([b"x-gzip"], b"gzip"),
        ([b"br"], b"br"),
        ([b"gzip, br"], b"gzip, br"),
    ],
)
def test_the_encoding_is_told_each_time_and_goes_on(values: list[bytes], encoding: bytes) -> None:
    """I7: what is encoded must be decoded to be searched."""
    found = parse(head(LENGTH, *(b"Content-Encoding: " + value for value in values)))
    assert found.encoding == encoding
    assert len(found.lines) == len(values)


@pytest.mark.parametrize("name", sorted(ONCE_IN_RESPONSES))
@pytest.mark.parametrize("warm", [False, True])
def test_a_field_that_may_stand_once_is_refused_when_it_says_two_things(
    name: bytes, warm: bool
) -> None:
    """I4, I7: of two types or codings the gateway would search by one, and the client read by the
    other."""
    known: Memo = {}
    one, two = name.title() + b": a", name.title() + b": b"
    if warm:
        for line in (one, two):
            parse_response(head(LENGTH, line), "GET", known)
    with pytest.raises(Malformed) as error:
        parse_response(head(LENGTH, one, b"Vary: x", two), "GET", known)
    assert error.value.why == TWICE
    # The control: it stands once, beside fields that come in several lines.
    found = parse_response(head(LENGTH, one, b"Vary: x", b"Vary: x"), "GET", known)
    assert found.lines == [one + b"\r\n", b"Vary: x\r\n", b"Vary: x\r\n"]


@pytest.mark.parametrize("name", sorted(ONCE_IN_RESPONSES))
def test_what_says_the_same_twice_is_said_once(name: bytes) -> None:
    """A server behind a server repeats it; but two equal codings are a body that is coded twice."""
    line = name.title() + b": a"
    if name == b"content-encoding":
        with pytest.raises(Malformed):
            parse(head(LENGTH, line, line))
    else:
        assert parse(head(LENGTH, line, line)).lines == [line + b"\r\n"]


@pytest.mark.parametrize("name", [b"Date", b"Server", b"Strict-Transport-Security", b"Set-Cookie"])
def test_what_servers_behind_servers_repeat_goes_on(name: bytes) -> None:
    """The control."""
    lines = (name + b": a", name + b": b")
    assert parse(head(LENGTH, *lines)).lines == [line + b"\r\n" for line in lines]


@pytest.mark.parametrize(
    ("value", "unreadable"),
    [
        (b"text/html; charset=utf-16le", True),
        (b"text/html;CHARSET = 'UTF-7'", True),
        (b'text/html; charset="ISO-2022-JP"', True),
        (b"text/html; charset=ibm037", True),
        (b"text/html; charset=utf-8", False),
        (b"text/html; charset=iso-8859-1", False),
        (b"application/json", False),
    ],
)
def test_a_charset_that_cannot_be_searched_is_told_each_time(
    value: bytes, unreadable: bool
) -> None:
    """I7. The line goes on as it is; what becomes of the answer is decided elsewhere."""
    found = parse(head(LENGTH, b"Content-Type: " + value))
    assert found == expected(lines=[b"Content-Type: %b\r\n" % value], unreadable=unreadable)


def test_the_encoding_is_told_even_if_it_is_nominated() -> None:
    """I7: else a secret would pass compressed."""
    assert (
        parse(head(b"Content-Encoding: gzip", b"Connection: content-encoding")).encoding == b"gzip"
    )


SWITCH = b"HTTP/1.1 101 Switching Protocols"
SWITCHED = (b"Connection: Upgrade", b"Upgrade: WebSocket", b"Sec-WebSocket-Accept: abc=")


def test_a_websocket_is_agreed_to() -> None:
    more = (b"Sec-WebSocket-Protocol: chat", b"Sec-WebSocket-Extensions: a", b"X: y")
    found = parse(head(*SWITCHED, *more, b"sec-websocket-extensions: b", line=SWITCH))
    assert (found.upgrade, found.websocket_accept) == (b"websocket", b"abc=")
    assert (found.websocket_protocol, found.websocket_extensions) == (b"chat", b"a,b")
    assert (found.lines, found.framing) == ([b"X: y\r\n"], Framing.NONE)


@pytest.mark.parametrize(
    "data",
    [
        head(*SWITCHED),
        head(*SWITCHED, line=b"HTTP/1.1 200 OK"),
        head(*SWITCHED, line=b"HTTP/1.1 100 Continue"),
        head(*SWITCHED[1:], line=SWITCH),
        head(b"Connection: close", *SWITCHED[1:], line=SWITCH),
        head(SWITCHED[0], SWITCHED[2], line=SWITCH),
        head(SWITCHED[0], b"Upgrade: h2c", SWITCHED[2], line=SWITCH),
        head(*SWITCHED, b"Upgrade: h2c", line=SWITCH),
    ],
)
def test_nothing_else_is_agreed_to(data: bytes) -> None:
    assert parse(head(*SWITCHED, line=SWITCH)).upgrade == b"websocket"
    assert parse(data).upgrade != b"websocket"


@pytest.mark.parametrize("field", [b"Sec-WebSocket-Accept: x", b"Sec-WebSocket-Protocol: x"])
def test_an_agreement_is_said_once(field: bytes) -> None:
    control = head(*SWITCHED[:2], field, line=SWITCH)
    assert parse(control)
    with pytest.raises(Malformed):
        parse(control + b"\r\n" + field)


def test_cookies_and_what_is_read_here_are_not_remembered() -> None:
    known: Memo = {}
    data = head(LENGTH, b"Set-Cookie: a=b", b"Content-Encoding: gzip", b"Alt-Svc: h3", b"X: y")
    found = parse_response(data, "GET", known)
    assert known == {b"X: y": b"X: y\r\n"}
    assert found.lines == [b"Set-Cookie: a=b\r\n", b"Content-Encoding: gzip\r\n", b"X: y\r\n"]
    for number in range(2 * MAX_KNOWN):
        parse_response(head(b"X: %d" % number), "GET", known)
        assert len(known) <= MAX_KNOWN


# ── properties ────────────────────────────────────────────────────────────────────────────────────

NAMES = st.from_regex(rb"[A-Za-z0-9-]{1,12}", fullmatch=True).filter(
    lambda name: name.lower() not in NOT_FOR_THE_CLIENT | {b"content-encoding"}
)
VALUES = st.from_regex(
    rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]{0,20}[!-~\x80-\xff])?)?", fullmatch=True
)
FIELDS = st.builds(b"%b: %b\r\n".__mod__, st.tuples(NAMES, VALUES))


@given(
    status=st.integers(200, 599).filter(lambda status: status not in {204, 304}),
    reason=st.from_regex(rb"[\t -~\x80-\xff]{0,20}", fullmatch=True),
    lines=st.lists(FIELDS, max_size=8),
    length=st.integers(0, 10**15 - 1) | st.none(),
    close=st.booleans(),
)
def test_what_is_written_is_read_as_it_was_meant(
    status: int, reason: bytes, lines: list[bytes], length: int | None, close: bool
) -> None:
    start = b"HTTP/1.1 %d %b\r\n" % (status, reason)
    framed = CODING + b"\r\n" if length is None else b"Content-Length: %d\r\n" % length
    closed = b"Connection: close\r\n" if close else b""
    found = parse(b"".join([start, framed, *lines, closed]).removesuffix(b"\r\n"))
    framing = Framing.CHUNKED if length is None else Framing.LENGTH
    size = NO_LENGTH if length is None else length
    assert found == ResponseHead(status, 1, start, lines, close, framing, size)


ROWS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([LENGTH, CODING, *SWITCHED, b"Content-Encoding: gzip", b"Connection: x"]),
    st.builds(b"%b:%b".__mod__, st.tuples(st.binary(max_size=12), st.binary(max_size=12))),
    FIELDS.map(lambda line: line[:-2]),
)
HEADS = st.binary(max_size=100) | st.builds(
    lambda line, rows: b"\r\n".join([line, *rows]),
    st.sampled_from([OK, SWITCH, b"HTTP/1.0 304", b"HTTP/1.1 204 x"]) | st.binary(max_size=20),
    st.lists(ROWS, max_size=5),
)


@given(st.lists(HEADS, min_size=1, max_size=5), st.sampled_from(["GET", "HEAD"]))
def test_any_bytes_are_refused_or_read_the_same_cold_and_warm(
    heads: list[bytes], method: str
) -> None:
    known: Memo = {}
    for data in heads * 2:
        try:
            found: ResponseHead | str = parse_response(data, method, {})
        except Malformed as malformed:
            found = malformed.why
        try:
            warm: ResponseHead | str = parse_response(data, method, known)
        except Malformed as malformed:
            warm = malformed.why
        assert warm == found
        if isinstance(found, ResponseHead):
            assert found.start.count(b"\n") == found.start.count(b"\r") == 1
            for line in found.lines:
                assert re.fullmatch(rb"[^\s:\x00-\x1f]+: [^\r\n\x00]*\r\n", line)
                assert line.partition(b":")[0].lower() not in NOT_FOR_THE_CLIENT


# ── fields that the caller holds back ─────────────────────────────────────────────────────────────


def treat(name: bytes) -> Treatment:
    return {b"x-drop": Treatment.DROP, b"x-collect": Treatment.COLLECT}.get(name, Treatment.KEEP)


def test_a_field_that_is_dropped_or_collected_does_not_go_on() -> None:
    """Nor is it remembered; and the control: without `treat`, all go on."""
    known: Memo = {}
    data = head(b"X-Drop: 1", b"X-Collect: 2", b"X-Keep: 3")
    for _ in range(2):
        found = parse_response(data, "GET", known, treat)
        assert found.lines == [b"X-Keep: 3\r\n"]
        assert found.collected == [Field(b"x-collect", b"2", b"X-Collect: 2\r\n")]
    assert set(known) == {b"X-Keep: 3"}
    assert len(parse_response(data, "GET", {}).lines) == 3


def test_what_connection_names_is_not_among_what_is_collected() -> None:
    """RFC 9110 §7.6.1."""
    data = head(b"X-Collect: 2", b"Connection: close, X-Collect")
    assert parse_response(data, "GET", {}, treat).collected == []


def test_a_field_that_is_held_back_is_read_as_strictly() -> None:
    for row in (b"X-Drop : 1", b"X-Drop: a\0b", b"X-Collect\x01: 1"):
        with pytest.raises(Malformed):
            parse_response(head(row), "GET", {}, treat)


def test_a_collected_field_that_may_stand_once_is_said_once() -> None:
    """I7: of two entity tags, a client would take one and the gateway another."""

    def collect(name: bytes) -> Treatment:
        return Treatment.COLLECT

    rows = (b"Content-MD5: b", b'ETag: "a"', b'ETag: "a"', b"X: 1", b"X: 2")
    same = parse_response(head(*rows), "GET", {}, collect)
    assert [each.name for each in same.collected] == [b"content-md5", b"etag", b"x", b"x"]
    with pytest.raises(Malformed, match=TWICE):
        parse_response(head(b'ETag: "a"', b'ETag: "b"'), "GET", {}, collect)


@pytest.mark.parametrize(
    ("media", "messages", "unreadable"),
    [
        (b"application/grpc", True, False),
        (b"Application/GRPC+proto", True, False),
        (b"application/grpc-web+proto", True, False),
        (b"application/connect+json", True, False),
        (b"application/grpc-web-text", True, True),
        (b"application/json; x=application/grpc", False, False),
    ],
)
def test_a_body_of_messages_is_known_by_its_type(
    media: bytes, messages: bool, unreadable: bool
) -> None:
    """I7: also when the line was read before."""
    found = parse(head(b"Content-Type: " + media, b"Grpc-Encoding: GZIP", LENGTH))
    assert (found.messages, found.unreadable) == (messages, unreadable)
    assert found.message_encoding == b"gzip"


@pytest.mark.parametrize("media", [b"application/vnd.amazon.eventstream", b"text/event-stream"])
def test_an_event_stream_of_aws_is_known_by_its_type(media: bytes) -> None:
    found = parse(head(b"Content-Type: " + media, LENGTH))
    assert found.events is (b"amazon" in media)
    assert not found.messages


def test_two_encodings_of_messages_are_refused() -> None:
    """I7: a client may read the other one."""
    one, two = b"Grpc-Encoding: gzip", b"Grpc-Encoding: snappy"
    assert parse(head(one, one, LENGTH)).message_encoding == b"gzip"
    with pytest.raises(Malformed):
        parse(head(one, two, LENGTH))
    of_connect = b"Connect-Content-Encoding: snappy"
    assert parse(head(one, of_connect, LENGTH)).message_encoding == b"several"
