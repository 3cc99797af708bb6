"""Heads of HTTP/2 in the form of HTTP/1.1: what crosses, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.body import MAX_TRAILER_BYTES, MAX_TRAILERS
from keyhole.http.crossing import (
    MAX_CHECKED,
    CheckedFields,
    request_head,
    response_head,
    trailer_fields,
)
from keyhole.http.field import MAX_KNOWN_LINE
from keyhole.http.request import RequestReader, Treatment
from keyhole.http.response import Framing, parse_response
from keyhole.model.errors import Malformed

KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="
GET = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"ok.example"),
    (b":path", b"/a"),
]
CONNECT = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), *GET[1:]]

Pair = tuple[bytes, bytes]


def crossed(*fields: Pair, ended: bool = True) -> list[bytes]:
    return request_head(fields, ended=ended, websocket_key=KEY).split(b"\r\n")


def why(*fields: Pair, ended: bool = True) -> str:
    with pytest.raises(Malformed) as caught:
        request_head(fields, ended=ended, websocket_key=KEY)
    return caught.value.why


def without(name: bytes, fields: list[Pair] = GET) -> list[Pair]:
    return [pair for pair in fields if pair[0] != name]


def with_value(name: bytes, value: bytes) -> list[Pair]:
    return [(sent, value if sent == name else old) for sent, old in GET]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def test_a_request_becomes_one_of_http1() -> None:
    assert crossed(*GET, (b"accept", b"*/*"), (b"te", b"trailers")) == [
        b"GET /a HTTP/1.1", b"accept: */*", b"te: trailers", b"host: ok.example",
    ]  # fmt: skip


def test_a_body_of_unknown_length_comes_in_chunks() -> None:
    assert crossed(*GET, ended=False)[-1] == b"transfer-encoding: chunked"
    assert crossed(*GET, (b"content-length", b"5"), ended=False) == [
        b"GET /a HTTP/1.1", b"content-length: 5", b"host: ok.example",
    ]  # fmt: skip


def test_a_length_without_a_body_is_none_or_nothing() -> None:
    assert b"content-length: 0" in crossed(*GET, (b"content-length", b"0"))
    assert why(*GET, (b"content-length", b"1")) == (
        "Content-Length announces a body that does not come"
    )
    assert why(*GET, (b"content-length", b"00"))


@pytest.mark.parametrize(
    "fields",
    [
        [*GET],
        [*GET, (b"host", b"ok.example")],
        [*GET, (b"host", b"OK.example")],
        [*without(b":authority"), (b"host", b"ok.example")],
    ],
)
def test_a_request_has_one_name(fields: list[Pair]) -> None:
    """I4: `:authority`, `Host`, or both if they are one name; HTTP/1.1 gets one Host."""
    hosts = [row for row in crossed(*fields) if row.startswith(b"host:")]
    assert hosts == [b"host: ok.example"]


@pytest.mark.parametrize(
    "fields",
    [
        without(b":authority"),
        with_value(b":authority", b""),
        [*without(b":authority"), (b"host", b"")],
        [*GET, (b"host", b"evil.example")],
        [*GET, (b"host", b"")],
        [*with_value(b":authority", b""), (b"host", b"ok.example")],
        [*GET, (b"host", b"ok.example"), (b"host", b"ok.example")],
        [*GET, (b"host", b"evil.example"), (b"host", b"ok.example")],
        [*without(b":authority"), (b"host", b"ok.example"), (b"host", b"ok.example")],
    ],
)
def test_a_request_of_no_name_or_two_is_refused(fields: list[Pair]) -> None:
    """I4: an origin may take either."""
    assert why(*fields) == "a request has one name, as :authority or Host"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (without(b":method"), "a request has a :method, and a :path that begins with a slash"),
        (without(b":path"), "a request has a :method, and a :path that begins with a slash"),
        (without(b":scheme"), "a request has the :scheme https"),
        (with_value(b":scheme", b"http"), "a request has the :scheme https"),
        (with_value(b":scheme", b"HTTPS"), "a request has the :scheme https"),
        *(
            (with_value(b":path", path), "a request has a :method, and a :path that")
            for path in (b"", b"*", b"a", b"https://evil.example/", b"/a b", b"/a\tb", b"/\xe9")
        ),
        *(
            (with_value(b":method", method), "a request has a :method, and a :path that")
            for method in (b"", b"GET /b", b"G\tT", b"G\x7fT", b"\xe9")
        ),
    ],
)
def test_the_first_line_is_made_of_whole_pseudo_fields(fields: list[Pair], reason: str) -> None:
    assert why(*fields).startswith(reason)


@pytest.mark.parametrize(
    "fields",
    [
        *([*GET, (name, b"x")] for name in (b":method", b":scheme", b":authority", b":path")),
        [*GET, (b":status", b"200")],
        [*GET, (b":unknown", b"x")],
        [*GET, (b":", b"x")],
        [*GET[:3], (b"accept", b"*/*"), GET[3]],
        [*CONNECT, (b":protocol", b"websocket")],
    ],
)
def test_pseudo_fields_are_known_stand_once_and_first(fields: list[Pair]) -> None:
    assert why(*fields) == "a pseudo-field is unknown, stands twice or behind other fields"


@pytest.mark.parametrize(
    "name", [b"", b"Accept", b"x-A", b"a b", b"a\r", b"a\nb", b"a\0", b"a:b", b"\xe9", b"a\x7f"]
)
def test_the_name_of_a_field_is_a_token_in_lower_case(name: bytes) -> None:
    assert why(*GET, (name, b"x")) == "the name of a field is empty, or not in lower case"
    with pytest.raises(Malformed):
        response_head([(b":status", b"200"), (name, b"x")], "GET", ended=True)
    with pytest.raises(Malformed):
        trailer_fields([(name, b"x")], None)


@pytest.mark.parametrize(
    "name", b"connection keep-alive proxy-connection transfer-encoding upgrade".split()
)
def test_fields_of_a_connection_are_refused(name: bytes) -> None:
    """RFC 9113 §8.2.2: `Transfer-Encoding` of a stream is how requests are smuggled."""
    reason = "a field is of the connection, which HTTP/2 has no fields for"
    assert why(*GET, (name, b"chunked")) == reason
    with pytest.raises(Malformed, match=reason):
        response_head([(b":status", b"200"), (name, b"chunked")], "GET", ended=False)
    with pytest.raises(Malformed, match=reason):
        trailer_fields([(name, b"chunked")], None)


@pytest.mark.parametrize("value", [b"a\rb", b"a\nb", b"a\0b", b"a\r\nevil: 1", b" a", b"a\t", b" "])
def test_no_value_ends_a_line(value: bytes) -> None:
    """I4: what crosses into HTTP/1.1 carries no CR, LF or NUL, in no field."""
    reason = "a field's value has a line break, a NUL, or a space around it"
    assert why(*GET, (b"x-a", value)) == reason
    for name, _ in GET:
        assert why(*with_value(name, value)) == reason
    with pytest.raises(Malformed, match=reason):
        response_head([(b":status", b"200"), (b"x-a", value)], "GET", ended=True)
    with pytest.raises(Malformed, match=reason):
        response_head([(b":status", value)], "GET", ended=True)
    with pytest.raises(Malformed, match=reason):
        trailer_fields([(b"x-a", value)], None)
    # The control: a space inside is a value.
    assert b"x-a: a b" in crossed(*GET, (b"x-a", b"a b"))


@pytest.mark.parametrize("value", [b"gzip", b"trailers, deflate", b"", b"chunked"])
def test_te_is_trailers_alone(value: bytes) -> None:
    assert why(*GET, (b"te", value)) == "TE is something else than `trailers`"
    # It is of requests alone.
    with pytest.raises(Malformed, match="of the connection"):
        response_head([(b":status", b"200"), (b"te", b"trailers")], "GET", ended=True)
    with pytest.raises(Malformed, match="of the connection"):
        trailer_fields([(b"te", b"trailers")], None)


def test_cookies_are_joined() -> None:
    """RFC 9113 §8.2.3."""
    rows = crossed(*GET, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2; c=3"))
    assert rows[-1] == b"cookie: a=1; b=2; c=3"
    assert not any(row.startswith(b"cookie") for row in rows[:-1])


def test_a_websocket_becomes_the_handshake_of_http1() -> None:
    """RFC 8441."""
    assert crossed(*CONNECT, (b"sec-websocket-version", b"13"), ended=False) == [
        b"GET /a HTTP/1.1",
        b"sec-websocket-version: 13",
        b"host: ok.example",
        b"connection: upgrade",
        b"upgrade: websocket",
        b"sec-websocket-key: " + KEY,
    ]


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        (CONNECT, True),
        (with_value(b":method", b"CONNECT"), False),
        ([(b":protocol", b"websocket"), *GET], False),
        ([(b":protocol", b"connect-udp"), *without(b":protocol", CONNECT)], False),
        ([(b":protocol", b"WebSocket"), *without(b":protocol", CONNECT)], False),
    ],
)
def test_connect_is_for_websockets_alone(fields: list[Pair], ended: bool) -> None:
    assert why(*fields, ended=ended) == "CONNECT is for WebSockets"


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


def answered(
    status: bytes, *fields: Pair, method: str = "GET", ended: bool = False
) -> tuple[Framing, int]:
    """How the reader of HTTP/1.1 finds the end of what crosses."""
    text = response_head([(b":status", status), *fields], method, ended=ended)
    head = parse_response(text, method, {})
    return head.framing, head.length


@pytest.mark.parametrize(
    ("status", "length", "method", "ended", "framing"),
    [
        (b"200", None, "GET", False, (Framing.CHUNKED, -1)),
        (b"200", b"5", "GET", False, (Framing.LENGTH, 5)),
        (b"200", b"0", "GET", True, (Framing.LENGTH, 0)),
        (b"200", None, "GET", True, (Framing.LENGTH, 0)),
        (b"200", b"5", "HEAD", True, (Framing.NONE, 5)),
        (b"200", None, "HEAD", True, (Framing.NONE, -1)),
        (b"200", None, "HEAD", False, (Framing.NONE, -1)),
        (b"304", b"5", "GET", True, (Framing.NONE, 5)),
        (b"304", None, "GET", True, (Framing.NONE, -1)),
        (b"204", None, "GET", True, (Framing.NONE, -1)),
        (b"204", None, "GET", False, (Framing.NONE, -1)),
        (b"103", None, "GET", False, (Framing.NONE, -1)),
    ],
)
def test_a_response_crosses_with_its_framing(
    status: bytes, length: bytes | None, method: str, ended: bool, framing: tuple[Framing, int]
) -> None:
    fields = [] if length is None else [(b"content-length", length)]
    assert answered(status, *fields, method=method, ended=ended) == framing


def test_a_status_has_its_phrase_where_it_has_one() -> None:
    assert response_head([(b":status", b"404")], "GET", ended=True).startswith(
        b"HTTP/1.1 404 Not Found\r\n"
    )
    assert response_head([(b":status", b"599")], "GET", ended=True).startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize("status", [b"", b"101", b"99", b"600", b"2000", b"2x0", b"+20", b"000"])
def test_a_status_has_three_digits_and_switches_nothing(status: bytes) -> None:
    with pytest.raises(Malformed, match="a response has a :status, which is not 101"):
        response_head([(b":status", status)], "GET", ended=True)
    with pytest.raises(Malformed):
        response_head([(b"server", b"x")], "GET", ended=True)


def test_a_response_has_no_pseudo_field_of_a_request() -> None:
    for pair in [*GET, (b":status", b"200")]:
        with pytest.raises(Malformed):
            response_head([(b":status", b"200"), pair], "GET", ended=True)


def test_a_response_that_ends_too_early_is_refused() -> None:
    with pytest.raises(Malformed, match="a body that does not come"):
        answered(b"200", (b"content-length", b"5"), ended=True)
    with pytest.raises(Malformed, match="a stream ends with an interim response"):
        answered(b"103", ended=True)


# ── trailers ──────────────────────────────────────────────────────────────────────────────────────


def keep(name: bytes) -> Treatment:
    return Treatment.DROP if name == b"x-api-key" else Treatment.KEEP


def test_trailers_go_on() -> None:
    pairs = [(b"grpc-status", b"0"), (b"grpc-message", b"")]
    for treat in (None, keep):
        found = trailer_fields(pairs, treat)
        assert [field.line for field in found] == [b"grpc-status: 0\r\n", b"grpc-message: \r\n"]
    # Of an origin's, those that steer are left out; a client's are refused.
    pairs.append((b"content-length", b"5"))
    assert len(trailer_fields(pairs, None)) == 2
    with pytest.raises(Malformed, match="in the head only"):
        trailer_fields(pairs, keep)
    with pytest.raises(Malformed, match="in the head only"):
        trailer_fields([(b"x-api-key", b"secret")], keep)


def test_trailers_have_no_pseudo_field() -> None:
    with pytest.raises(Malformed):
        trailer_fields([(b":status", b"200")], None)
    with pytest.raises(Malformed):
        trailer_fields([(b":path", b"/b")], keep)


def test_trailers_are_bounded_as_those_of_http1_are() -> None:
    """I9."""
    rows = [(b"x-%d" % number, b"") for number in range(MAX_TRAILERS)]
    assert len(trailer_fields(rows, None)) == MAX_TRAILERS
    with pytest.raises(Malformed, match="at most 32 trailers"):
        trailer_fields([*rows, (b"y", b"")], None)
    most = b"x" * (MAX_TRAILER_BYTES - 6)
    assert trailer_fields([(b"xx", most)], None)
    with pytest.raises(Malformed, match=f"at most {MAX_TRAILER_BYTES} bytes"):
        trailer_fields([(b"xx", most + b"x")], None)


# ── properties ────────────────────────────────────────────────────────────────────────────────────

NAMES = st.one_of(
    st.sampled_from([pair[0] for pair in CONNECT] + [b"host", b"te", b"cookie", b"content-length"]),
    st.binary(max_size=8),
)
FIELDS = st.lists(
    st.tuples(
        NAMES, st.one_of(st.sampled_from([b"ok.example", b"5", b"/a"]), st.binary(max_size=9))
    )
)


@given(FIELDS, st.booleans())
def test_whatever_crosses_is_read_as_one_request_of_the_same_fields(
    fields: list[Pair], ended: bool
) -> None:
    """I4: there is no field that its client did not send, and none of another name."""
    reader = RequestReader("ok.example", 443, lambda _: Treatment.KEEP, {})
    try:
        text = request_head([*GET, *fields], ended=ended, websocket_key=KEY)
        head = reader.parse(text)
    except Malformed:
        return
    assert (head.method, head.path) == ("GET", "/a")
    assert text.count(b"\r\n") == text.count(b"\r") == text.count(b"\n")
    sent = {name for name, _ in fields}
    assert {line.partition(b":")[0] for line in head.lines} <= sent
    assert (head.length == 0) == (ended or (b"content-length", b"0") in fields)


# ── fields that come again ────────────────────────────────────────────────────────────────────────


def test_a_field_that_comes_again_is_the_same_line() -> None:
    checked = CheckedFields()
    fields = [*GET, (b"accept", b"*/*"), (b"content-length", b"0"), (b"cookie", b"a=b")]
    heads = {request_head(fields, ended=True, websocket_key=KEY, checked=checked) for _ in range(3)}
    assert heads == {request_head(fields, ended=True, websocket_key=KEY)}
    assert checked == {(b"accept", b"*/*"), (b"content-length", b"0")}
    rows = [(b":status", b"200"), (b"server", b"x")]
    ours = CheckedFields()
    heads = {response_head(rows, "GET", ended=True, checked=ours) for _ in range(3)}
    assert heads == {response_head(rows, "GET", ended=True)}


def test_a_field_that_was_right_excuses_no_other() -> None:
    """The control of what is kept: the same rules hold for what comes with it."""
    checked = CheckedFields([(b"accept", b"*/*")])

    def why_not(*fields: tuple[bytes, bytes]) -> str:
        with pytest.raises(Malformed) as refused:
            request_head(fields, ended=True, websocket_key=KEY, checked=checked)
        return refused.value.why

    first, *others = GET
    known = (b"accept", b"*/*")
    assert why_not(known, *GET).startswith("a pseudo-field")
    assert why_not(first, known, *others).startswith("a pseudo-field")
    assert why_not(*GET, known, (b"accept", b"a\r\nb")).startswith("a field's value")
    assert why_not(*GET, known, (b"Accept", b"*/*")).startswith("the name of a field")
    assert why_not(*GET, known, (b"te", b"gzip")).startswith("TE is")


def test_few_and_short_fields_are_kept_and_no_credentials() -> None:
    """I9: a peer decides how many it sends, and how long they are."""
    checked = CheckedFields()
    for number in range(MAX_CHECKED + 3):
        checked.note((b"x-a", b"%d" % number))
    assert len(checked) == 3
    checked.clear()
    checked.note((b"x-a", b"b" * MAX_KNOWN_LINE))
    assert len(checked) == 1
    checked.note((b"x-a", b"b" * (MAX_KNOWN_LINE + 1)))
    for name in (b"authorization", b"cookie", b"set-cookie"):
        checked.note((name, b"mine"))
    assert len(checked) == 1
