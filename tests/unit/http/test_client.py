"""The client's machine: requests as they are written, and responses of good and bad origins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from keyhole.http.client import MAX_INTERIM, Http1Client
from keyhole.http.field import Field, parse_field
from keyhole.http.request import CHUNKED, OutboundHead, Treatment
from keyhole.model.errors import Malformed, Misuse

if TYPE_CHECKING:
    from keyhole.http.response import ResponseHead

GET = OutboundHead("GET", "/a?b", "ok.example", [b"A: b\r\n"])


class Fields:
    """Collects ETag, drops X-Secret."""

    def treat(self, name: bytes) -> Treatment:
        kinds = {b"etag": Treatment.COLLECT, b"x-secret": Treatment.DROP}
        return kinds.get(name, Treatment.KEEP)

    def put_back(self, head: ResponseHead, method: str) -> None:
        head.lines += [b"ETag: %b\r\n" % method.encode() for _ in head.collected]

    def trailers(self, fields: Sequence[Field]) -> list[Field]:
        return [each for each in fields if self.treat(each.name) is Treatment.KEEP]


@dataclass
class Client:
    """Keeps what the machine reports; `do` is done at the head of the response."""

    do: Callable[[Client], None] = lambda client: None
    fields: Fields | None = None
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Http1Client({}, self.fields)

    def response_interim(self, head: ResponseHead) -> None:
        self.said.append(f"interim {head.status}")
        if head.status == 199:
            self.machine.next()

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        self.lines = head.lines
        self.said.append(str(head.status) + (f" {body.decode()}" if body is not None else ""))
        self.do(self)

    def response_data(self, data: bytes | memoryview) -> None:
        self.said.append(bytes(data).decode())
        self.do(self)

    def response_ended(self, trailers: Sequence[Field]) -> None:
        self.said.append("end" + "".join(f" {each.name.decode()}" for each in trailers))

    def asks(self, head: OutboundHead = GET) -> bytes:
        return self.machine.send_request(head, self)[1]

    def gets(self, *pieces: bytes) -> list[str]:
        for piece in pieces:
            self.machine.receive(memoryview(piece))
        said, self.said = self.said, []
        return said


def leave(client: Client) -> None:
    client.machine.next()


def ok(*fields: str, status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        (GET, ""),
        (OutboundHead("POST", "/a?b", "ok.example", [b"A: b\r\n"]), "Content-Length: 0"),
        (OutboundHead("PUT", "/a?b", "ok.example", [b"A: b\r\n"], 7), "Content-Length: 7"),
        (
            OutboundHead("POST", "/a?b", "ok.example", [b"A: b\r\n"], CHUNKED, True),
            "Transfer-Encoding: chunked\r\nExpect: 100-continue",
        ),
        (
            OutboundHead("GET", "/a?b", "ok.example", [b"A: b\r\n"], websocket=True),
            "Connection: Upgrade\r\nUpgrade: websocket",
        ),
    ],
)
def test_a_request_says_how_it_is_framed(head: OutboundHead, tail: str) -> None:
    lines = [f"{head.method} /a?b HTTP/1.1", "Host: ok.example", "A: b", *([tail] if tail else [])]
    assert Client().asks(head) == ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_body_is_framed_as_its_length_is_known() -> None:
    client = Client()
    client.asks(OutboundHead("POST", "/", "ok.example", [], 2))
    assert client.machine.send_data(1, b"hi") == b"hi"
    assert client.machine.end_request(1) == b""
    client = Client()
    client.asks(OutboundHead("POST", "/", "ok.example", [], CHUNKED))
    assert client.machine.send_data(1, b"hello") == b"5\r\nhello\r\n"
    assert client.machine.end_request(1, [parse_field(b"X: y")]) == b"0\r\nX: y\r\n\r\n"


def test_a_response_that_is_here_whole_is_reported_whole() -> None:
    client = Client()
    client.asks()
    assert client.gets(ok("Content-Length: 2") + b"hi") == ["200 hi", "end"]
    assert client.machine.next()
    client.asks()
    assert client.gets(ok("Content-Length: 2") + b"hi") == ["200 hi", "end"]


def test_a_body_of_known_length_is_passed_as_it_comes() -> None:
    client = Client()
    client.asks()
    said = client.gets(
        ok("Content-Length: 5")[:9], ok("Content-Length: 5")[9:] + b"he", b"l", b"lo"
    )
    assert said == ["200", "he", "l", "lo", "end"]
    assert client.machine.next()


@pytest.mark.parametrize(
    "bytes_",
    [
        ok("Content-Length: 2") + b"hi!",
        ok("Content-Length: 2", "Connection: close") + b"hi",
        ok("Transfer-Encoding: chunked") + b"2\r\nhi\r\n0\r\n\r\n!",
        ok(status="204 No Content") + b"!",
    ],
)
def test_a_connection_with_more_than_its_response_takes_no_other_request(bytes_: bytes) -> None:
    """Attack: the surplus would be read as the next request's response (I4)."""
    client = Client()
    client.asks()
    assert client.gets(bytes_)[-1] == "end"
    assert not client.machine.next()


def test_surplus_behind_a_body_in_pieces_is_seen_too() -> None:
    client = Client()
    client.asks()
    assert client.gets(ok("Content-Length: 2"), b"h", b"i!") == ["200", "h", "i", "end"]
    assert not client.machine.next()


def test_a_response_in_chunks_ends_with_its_last_one() -> None:
    client = Client(fields=Fields())
    client.asks()
    said = client.gets(
        ok("Transfer-Encoding: chunked"), b"2\r\nhi\r\n", b"0\r\nX-Secret: 1\r\nX-Sum: 2\r\n\r\n"
    )
    assert said == ["200", "hi", "end x-sum"]
    plain = Client()
    plain.asks()
    assert plain.gets(ok("Transfer-Encoding: chunked") + b"0\r\nX-Sum: 2\r\n\r\n")[1:] == [
        "end x-sum"
    ]
    bare = Client(fields=Fields())
    bare.asks()
    assert bare.gets(ok("Transfer-Encoding: chunked") + b"0\r\n\r\n") == ["200", "end"]


def test_fields_are_those_that_the_host_lets_through() -> None:
    client = Client(fields=Fields())
    client.asks()
    client.gets(ok("ETag: x", "X-Secret: y", "A: b", "Content-Length: 0"))
    assert client.lines == [b"A: b\r\n", b"ETag: GET\r\n"]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    client = Client()
    client.asks()
    assert client.gets(ok(), b"he", b"llo") == ["200", "he", "llo"]
    assert client.machine.receive_end()
    assert client.gets() == ["end"]
    assert not Client().machine.receive_end()
    # Cut within a body of known length: that is no end.
    cut = Client()
    cut.asks()
    cut.gets(ok("Content-Length: 9"), b"x")
    assert not cut.machine.receive_end()
    # Nobody waits any more.
    left = Client(leave)
    left.asks()
    left.gets(ok())
    assert left.machine.receive_end()
    assert left.gets() == []


def test_interim_responses_are_reported_and_bounded() -> None:
    client = Client()
    client.asks()
    early = ok(status="103 Early Hints")
    assert client.gets(early + ok("Content-Length: 0")) == ["interim 103", "200 ", "end"]
    flood = Client()
    flood.asks()
    with pytest.raises(Malformed, match="interim"):
        flood.gets(early * (MAX_INTERIM + 1))
    gone = Client()
    gone.asks()
    assert gone.gets(ok(status="199 x") + ok("Content-Length: 0")) == ["interim 199"]


def test_after_a_switch_all_bytes_are_the_other_protocol_s() -> None:
    client = Client()
    client.asks(OutboundHead("GET", "/", "ok.example", [], websocket=True))
    switched = ok("Connection: Upgrade", "Upgrade: websocket", status="101 S")
    assert client.gets(switched + b"ab", b"cd") == ["101", "ab", "cd"]
    assert client.machine.send_data(1, b"up") == b"up"
    assert client.machine.receive_end()
    assert not client.machine.next()
    bare = Client()
    bare.asks(OutboundHead("GET", "/", "ok.example", [], websocket=True))
    assert bare.gets(switched) == ["101"]


@pytest.mark.parametrize(
    "pieces",
    [
        [ok("Content-Length: 2") + b"hi"],
        [ok("Content-Length: 2"), b"hi"],
        [ok("Transfer-Encoding: chunked") + b"2\r\nhi\r\n0\r\n\r\n"],
        [ok("Transfer-Encoding: chunked"), b"0\r\n\r\n"],
        [ok() + b"hi"],
    ],
)
def test_a_receiver_that_has_left_hears_nothing_more(pieces: list[bytes]) -> None:
    client = Client(leave)
    client.asks()
    assert len(client.gets(*pieces)) == 1


def test_a_receiver_that_leaves_within_a_body_hears_no_end() -> None:
    for framed in (ok("Content-Length: 2"), ok("Transfer-Encoding: chunked")):
        client = Client()
        client.asks()
        client.gets(framed)
        client.do = leave
        rest = b"hi" if b"Length" in framed else b"2\r\nhi\r\n0\r\n\r\n"
        assert client.gets(rest) == ["hi"]


def test_bytes_behind_a_whole_response_are_surplus() -> None:
    client = Client()
    client.asks()
    client.gets(ok("Transfer-Encoding: chunked") + b"0\r\n\r\n")
    assert client.gets(b"x") == []
    assert not client.machine.next()


def test_unasked_bytes_are_surplus() -> None:
    client = Client()
    assert client.gets(b"hello") == []
    client.asks()
    client.gets(ok("Content-Length: 0"))
    assert client.gets(b"x") == []
    assert not client.machine.next()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.send_data(2, b""),
        lambda m: m.end_request(2),
        lambda m: m.end_request(1),
        lambda m: m.send_request(GET, Client()),
    ],
)
def test_what_http_does_not_allow_is_a_fault_of_ours(wrong: Callable[[Http1Client], None]) -> None:
    client = Client()
    client.asks()
    with pytest.raises(Misuse):
        wrong(client.machine)
