"""A plain HTTP head is for one host and has one framing, or it is refused (I4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.host import Host
from keyhole.wire.httphead import MAX_FIELDS, BadHead, Head, parse_head

HOST = Host("ok.example")


def head(*fields: str, line: str = "GET /a?b=c HTTP/1.1", host: str | None = "ok.example") -> bytes:
    """A head without its last empty line."""
    first = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([line, *first, *fields]).encode("latin-1")


GET = ("GET", "/a?b=c")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (head(), Head(HOST, 0, False, *GET)),
        (head(host="OK.example:80"), Head(HOST, 0, False, *GET)),
        (head("Accept: */*", "X:", "Y:\t a b\t "), Head(HOST, 0, False, *GET)),
        (head("X-Name: caf\xe9"), Head(HOST, 0, False, *GET)),
        (head(line="OPTIONS * HTTP/1.1"), Head(HOST, 0, False, "OPTIONS", "*")),
        (head(line="GET / HTTP/1.0"), Head(HOST, 0, False, "GET", "/")),
        (head("Content-Length: 12", line="POST / HTTP/1.1"), Head(HOST, 12, False, "POST", "/")),
        (head("content-length: 0"), Head(HOST, 0, False, *GET)),
        (head("Transfer-Encoding: Chunked", line="POST / HTTP/1.1"),
         Head(HOST, 0, True, "POST", "/")),
    ],
)  # fmt: skip
def test_an_honest_head_is_read(data: bytes, expected: Head) -> None:
    found = parse_head(data)
    assert isinstance(found, Head)
    assert replace(found, names=frozenset()) == expected


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (head(), "GET"),
        (head("Content-Length: 0"), "GET"),
        (head("Content-Length: 1"), "GET+body"),
        (head("Transfer-Encoding: chunked", line="DELETE / HTTP/1.1"), "DELETE+body"),
        (head("Content-Length: 1", line="POST / HTTP/1.1"), "POST"),
        (head(line="GET+body / HTTP/1.1"), ""),
    ],
)
def test_a_request_has_the_word_by_which_rules_name_it(data: bytes, word: str) -> None:
    """I3."""
    found = parse_head(data)
    assert isinstance(found, Head)
    assert found.word == word


@pytest.mark.parametrize("name", ["Content-Type", "if-match", "Range", "User-Agent"])
def test_a_field_that_may_stand_once_is_refused_when_it_stands_twice(name: str) -> None:
    """I4: of two lines, one server takes the first and another the last."""
    assert isinstance(parse_head(head(f"{name}: a", "X-A: 1", "X-A: 2")), Head)
    refused = parse_head(head(f"{name}: a", "X-A: 1", f"{name.upper()}: a"))
    assert isinstance(refused, BadHead)
    assert refused.reason == "http-malformed"


def test_the_names_of_its_fields_are_told() -> None:
    found = parse_head(head("X-One: 1", "x-ONE: 2"))
    assert isinstance(found, Head)
    assert found.names == {b"host", b"x-one"}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("GET /a?b=c HTTP/1.1", ("/a", "b=c")),
        ("GET / HTTP/1.1", ("/", "")),
        ("GET http://ok.example/x HTTP/1.1", ("/x", "")),
        ("GET HTTP://OK.example:80?q HTTP/1.1", ("/", "q")),
        ("GET http://ok.example HTTP/1.1", ("/", "")),
    ],
)
def test_path_and_query_are_the_same_in_every_form(line: str, path: tuple[str, str]) -> None:
    """I4: what is judged is what the origin will serve."""
    found = parse_head(head(line=line))
    assert isinstance(found, Head)
    assert found.path == path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        head(line="GET / HTTP/2.0"),
        head(line="GET  / HTTP/1.1"),
        head(line="GET / HTTP/1.1 "),
        head(line=" GET / HTTP/1.1"),
        head(line="\r\nGET / HTTP/1.1"),
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
        head(*["X: y"] * MAX_FIELDS),
    ],
)
def test_whatever_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    found = parse_head(data)
    assert isinstance(found, BadHead)
    assert found.reason == "http-malformed"


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
    found = parse_head(data)
    assert isinstance(found, BadHead)
    assert found.reason == "http-upgrade"


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for whole in (data, head() + b"\r\n" + data, b"GET " + data + b" HTTP/1.1\r\nHost: ok.example"):
        assert isinstance(parse_head(whole), Head | BadHead)
