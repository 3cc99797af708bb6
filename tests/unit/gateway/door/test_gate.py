"""Plain HTTP through the gate of port 80, as conversations: what passes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.gateway.door.gate import HttpGate, TlsGate
from keyhole.http.field import MAX_FIELDS, MAX_HEAD
from keyhole.model.host import Host
from keyhole.wire.stream_step import StreamStep

GET = b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"
EVIL = GET.replace(b"ok.", b"evil.")
POST = b"POST / HTTP/1.1\r\nHost: ok.example\r\n%s\r\n\r\n"
SIZED = POST % b"Content-Length: 5" + b"hello"
CHUNKED = POST % b"Transfer-Encoding: chunked"
CHUNKS = CHUNKED + b"5\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n"


def run(data: bytes, size: int = 200_000) -> StreamStep:
    """Feed in pieces; the whole that was passed, and the last word."""
    gate = HttpGate(Host("ok.example"))
    passed = b""
    for index in range(0, len(data), size):
        step = gate.feed(data[index : index + size])
        passed += step.forward
        if step.refusal is not None:
            assert gate.last_bytes(step.refusal, "rule").startswith(b"HTTP/1.1 4")
            return StreamStep(passed, refusal=step.refusal)
    gate.close()
    return StreamStep(passed)


def said(data: bytes) -> bytes:
    """The bytes without their chunk framing, of which only the sizes may differ."""
    head, _, rest = data.partition(b"chunked\r\n\r\n")
    text = b""
    while rest and not rest.startswith(b"0\r\n\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return head + text + (said(rest[5:]) if rest else b"")


HONEST = [GET, GET * 40, SIZED + GET, CHUNKS + GET, CHUNKS + SIZED + CHUNKS]
SIZES = st.integers(1, 200)


@pytest.mark.parametrize("data", HONEST)
@given(size=SIZES)
def test_honest_requests_pass(data: bytes, size: int) -> None:
    step = run(data, size)
    assert step.refusal is None
    assert said(step.forward) == said(data)


@pytest.mark.parametrize("before", [b"", GET, SIZED, CHUNKS])
@given(size=SIZES)
def test_a_foreign_request_is_refused_wherever_it_stands(before: bytes, size: int) -> None:
    """I4."""
    step = run(before + EVIL, size)
    assert step.refusal == "host-mismatch"
    assert b"evil" not in step.forward


def test_a_request_in_a_body_is_a_body() -> None:
    data = POST % b"Content-Length: %d" % len(EVIL) + EVIL + GET
    assert run(data) == StreamStep(data)


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"0x5\r\nhello\r\n",
        CHUNKED + b"+5\r\nhello\r\n",
        CHUNKED + b" 5\r\nhello\r\n",
        CHUNKED + b"5_0\r\n",
        CHUNKED + b"5;a=b\r\nhello\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"5\nhello",
        CHUNKED + b"1" * 18,
        CHUNKED + b"5\r\nhelloX\r\n",
        CHUNKED + b"5\r\nhello\rX",
        CHUNKED + b"0\r\nTrailer: x\r\n\r\n",
        CHUNKED + b"0\r\nX-Sum: x\r\n\r\n",
        b"\r\n\r\n" + GET,
        b"x" * (MAX_HEAD + 1),
        b"x" * (MAX_HEAD + 1) + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [7, 200_000])
def test_framing_that_could_be_read_in_two_ways_is_refused(data: bytes, size: int) -> None:
    assert run(data + GET, size).refusal == "http-malformed"


def head(*fields: str, line: str = "GET /a?b=c HTTP/1.1", host: str | None = "ok.example") -> bytes:
    first = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([line, *first, *fields, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "data",
    [
        head(host="OK.example:80"),
        head("Accept: */*", "X:", "Y:\t a b\t "),
        head("X-Name: caf\xe9"),
        head(line="OPTIONS * HTTP/1.1"),
        head(line="GET http://ok.example/x HTTP/1.1"),
        head(line="GET / HTTP/1.0"),
        head("content-length: 0"),
    ],
)
def test_an_honest_head_passes_as_it_came(data: bytes) -> None:
    assert run(data) == StreamStep(data)


@pytest.mark.parametrize(
    "data",
    [
        head(line="GET / HTTP/2.0"),
        head(line="GET  / HTTP/1.1"),
        head(line="GET / HTTP/1.1 "),
        head(line=" GET / HTTP/1.1"),
        head(line="GET /\x00 HTTP/1.1"),
        head(line="PRI * HTTP/2.0"),
        head(line="GET * HTTP/1.1"),
        head(line="GET /#frag HTTP/1.1"),
        head(line="GET ok.example HTTP/1.1"),
        head(line="GET https://ok.example/ HTTP/1.1"),
        head(line="GET http://evil.example/ HTTP/1.1"),
        head(line="GET http://ok.example@evil.example/ HTTP/1.1"),
        head(line="GET http://ok.example:8080/ HTTP/1.1"),
        head(host=None),
        head(host=""),
        head("Host: ok.example"),
        head("host: evil.example"),
        head(host="ok.example:8080"),
        head(host="ok.example:"),
        head(host="ok.example, evil.example"),
        head(host="user@ok.example"),
        head(host="192.0.2.1"),
        head(host="caf\xe9.example"),
        head(" folded: x"),
        head("X: a", "\tfolded"),
        head("X : a"),
        head("X"),
        head(": a"),
        head("X: a\nHost: evil.example"),
        head("X: a\rb"),
        head("X: a\x00"),
        head("X: a\x7f"),
        head("Content-Length: 1", "Content-Length: 1"),
        head("Content-Length: +1"),
        head("Content-Length: 0x1"),
        head("Content-Length: 1, 1"),
        head("Content-Length:"),
        head("Content-Length: 1", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding: chunked", line="POST / HTTP/1.0"),
        head("Range: a", "X-A: 1", "RANGE: a"),
        head(*["X: y"] * MAX_FIELDS),
    ],
)
def test_whatever_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    assert run(data).refusal == "http-malformed"


@pytest.mark.parametrize(
    "data",
    [
        head(line="CONNECT ok.example:80 HTTP/1.1"),
        head(line="connect / HTTP/1.1"),
        head("Upgrade: websocket"),
        head("upgrade: h2c", "Connection: Upgrade"),
    ],
)
def test_a_connection_stays_http(data: bytes) -> None:
    assert run(data).refusal == "http-upgrade"


@pytest.mark.parametrize("field", ["Content-Length: 1", "Transfer-Encoding: chunked"])
def test_a_body_where_http_defines_none_is_refused(field: str) -> None:
    assert run(head(field)).refusal == "body-not-granted"
    assert run(head(field, line="POST / HTTP/1.1")).refusal is None


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from([b"", GET, CHUNKED]))
def test_no_bytes_make_it_raise(pieces: list[bytes], start: bytes) -> None:
    gate = HttpGate(Host("ok.example"))
    for piece in [start, *pieces]:
        if gate.feed(piece).refusal is not None:
            break


@pytest.mark.parametrize(("first", "alert"), [(b"\x16\x03\x01", True), (b"ping", False)])
@pytest.mark.parametrize("required", [True, False])
def test_only_a_client_that_speaks_tls_gets_an_alert(
    first: bytes, alert: bool, required: bool
) -> None:
    """A database's client, whose connection a person refused, must not be sent bytes of TLS."""
    gate = TlsGate(Host("ok.example"), required=required)
    assert gate.last_bytes("not-approved", "rule") == b""  # it has said nothing yet
    gate.feed(first)
    assert gate.last_bytes("not-approved", "rule")[:1] == (b"\x15" if alert else b"")
