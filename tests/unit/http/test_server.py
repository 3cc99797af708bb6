"""The server's machine: what a client sends, what it is told, and what may not happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from keyhole.http.request import RequestHead, RequestReader, Treatment
from keyhole.http.response import Reply
from keyhole.http.server import REQUESTS_AT_ONCE, Http1Server
from keyhole.http.states import State
from keyhole.model.errors import Malformed, Misuse

if TYPE_CHECKING:
    from keyhole.http.field import Field

OK = b"HTTP/1.1 200 OK\r\n"
NOPE = Reply(403, "Forbidden", (b"Content-Type: text/plain\r\n",), b"no")


@dataclass
class Server:
    """Keeps what the machine reports; `do` is done at each head."""

    do: Callable[[Server, int], None] = lambda server, stream: None
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        reader = RequestReader("ok.example", 443, lambda _: Treatment.KEEP, {})
        self.machine = Http1Server(reader, self)

    def request_begun(self, stream: int, head: RequestHead) -> Server:
        self.said.append(f"{stream} {head.method} {head.path}")
        self.do(self, stream)
        return self

    def request_data(self, data: bytes | memoryview) -> None:
        self.said.append(bytes(data).decode())

    def request_ended(self, trailers: Sequence[Field]) -> None:
        self.said.append("end" + "".join(f" {each.name.decode()}" for each in trailers))

    def gets(self, *pieces: bytes) -> list[str]:
        """What is reported of these bytes."""
        for piece in pieces:
            self.machine.receive(memoryview(piece))
        said, self.said = self.said, []
        return said


def head(start: str = "GET /a", *fields: str) -> bytes:
    return "\r\n".join((f"{start} HTTP/1.1", "Host: ok.example", *fields, "", "")).encode()


def answer(server: Server, stream: int) -> None:
    server.machine.send_reply(stream, NOPE)
    server.machine.next()


def refuse(server: Server, stream: int) -> None:
    server.machine.send_reply(stream, NOPE, close=True)
    server.machine.close()


def test_a_request_is_reported_at_its_head_and_the_next_one_waits_for_its_response() -> None:
    server = Server()
    machine = server.machine
    assert server.gets(head() + head("GET /b")) == ["1 GET /a"]
    assert machine.held
    assert not machine.head_begun
    assert machine.begin_response(1, OK, [b"A: b\r\n"], 2) == (
        b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\n"
    )
    assert machine.send_data(1, b"hi") == b"hi"
    assert machine.end_response(1) == b""
    machine.next()
    assert server.gets() == []
    machine.resume()
    assert server.gets() == ["2 GET /b"]
    assert not machine.closes


def test_a_body_of_known_length_is_passed_as_it_comes() -> None:
    server = Server()
    said = server.gets(head("POST /a", "Content-Length: 5") + b"he", b"ll", b"o")
    assert said == ["1 POST /a", "he", "ll", "o", "end"]
    assert server.machine.wire_size == 5
    # Bytes behind it are of the next request.
    server = Server()
    assert server.gets(head("POST /a", "Content-Length: 2"), b"hi" + head())[1:] == ["hi", "end"]
    assert server.machine.held == head()


def test_a_body_in_chunks_is_passed_without_its_framing() -> None:
    server = Server()
    chunks = b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-Sum: 1\r\n\r\n"
    said = server.gets(head("POST /a", "Transfer-Encoding: chunked"), chunks + b"G")
    assert said == ["1 POST /a", "hello", "end x-sum"]
    assert (server.machine.wire_size, server.machine.held) == (len(chunks), b"G")


def test_trailers_are_read_by_the_policy_that_is_in_force() -> None:
    """I6: which fields are credentials is the policy's to say, also behind a body that began."""
    stricter = RequestReader("ok.example", 443, lambda _: Treatment.DROP, {})
    server = Server()
    server.machine.read_by(server.machine.reader)  # no body is under way
    server.gets(head("POST /a", "Transfer-Encoding: chunked") + b"2\r\nhi\r\n")
    server.machine.read_by(server.machine.reader)
    assert server.gets(b"0\r\nX-Sum: 1\r\n\r\n") == ["end x-sum"]
    server = Server()
    server.gets(head("POST /a", "Transfer-Encoding: chunked") + b"2\r\nhi\r\n")
    server.machine.read_by(stricter)
    with pytest.raises(Malformed):
        server.gets(b"0\r\nX-Sum: 1\r\n\r\n")


def test_the_last_chunk_may_come_alone() -> None:
    server = Server()
    server.gets(head("POST /a", "Transfer-Encoding: chunked") + b"2\r\nhi\r\n")
    assert server.gets(b"0\r\n\r\n") == ["end"]
    server.machine.resume()  # nothing is held
    assert server.gets() == []


def test_a_head_may_come_byte_by_byte() -> None:
    server = Server()
    whole = head()
    for at in range(len(whole) - 1):
        assert server.gets(whole[at : at + 1]) == []
        assert server.machine.head_begun
    assert server.gets(whole[-1:]) == ["1 GET /a"]
    assert not server.machine.head_begun


def test_while_it_is_paused_everything_is_held() -> None:
    server = Server(lambda server, _: server.machine.pause())
    assert server.gets(head("POST /a", "Content-Length: 2"), b"h", b"i") == ["1 POST /a"]
    server.machine.resume()
    assert server.gets() == ["hi", "end"]
    # The control: nothing is held where it is not paused.
    assert Server().gets(head("POST /a", "Content-Length: 2"), b"h")[1:] == ["h"]


def test_a_client_that_reads_nothing_is_not_read_on() -> None:
    server = Server()
    server.gets(head() + head("GET /b"))
    server.machine.send_reply(1, NOPE)
    server.machine.next(paused=True)
    assert server.gets() == []
    server.machine.resume()
    assert server.gets() == ["2 GET /b"]


def test_many_requests_at_once_are_read_a_few_at_a_time() -> None:
    server = Server(answer)
    count = REQUESTS_AT_ONCE + 2
    assert len(server.gets(head() * count)) == REQUESTS_AT_ONCE
    assert server.machine.behind
    server.machine.resume()
    assert len(server.gets()) == 2
    assert not server.machine.behind


def test_a_response_before_the_end_of_the_request_ends_the_connection() -> None:
    """Attack: the rest of the body would be read as the next request."""
    server = Server()
    server.gets(head("POST /a", "Content-Length: 9"), b"x")
    said = server.machine.send_reply(1, NOPE)
    assert b"Connection: close\r\n" in said
    assert server.machine.closes
    with pytest.raises(Misuse):
        server.machine.next()
    server.machine.close()
    assert server.gets(b"yyyyyyyy" + head()) == []


def test_a_refused_request_is_read_no_further() -> None:
    server = Server(refuse)
    assert server.gets(head("POST /a", "Content-Length: 5") + b"hello", head()) == ["1 POST /a"]
    assert server.machine.request is State.CLOSED
    server.machine.close()  # may be said twice


def test_a_receiver_that_ends_the_connection_within_a_body_hears_no_end() -> None:
    server = Server()
    server.gets(head("POST /a", "Content-Length: 2"))
    server.request_data = lambda data: server.machine.close()  # type: ignore[method-assign]
    assert server.gets(b"hi") == []


def test_a_response_without_a_length_comes_in_chunks_or_until_the_end() -> None:
    server = Server()
    server.gets(head())
    machine = server.machine
    assert b"Transfer-Encoding: chunked\r\n" in machine.begin_response(1, OK, [], -1)
    assert machine.send_data(1, b"hello") == b"5\r\nhello\r\n"
    assert machine.end_response(1, b"A: b\r\n") == b"0\r\nA: b\r\n\r\n"
    old = Server()
    old.gets(b"GET /a HTTP/1.0\r\nHost: ok.example\r\nConnection: keep-alive\r\n\r\n")
    assert not old.machine.closes
    assert old.machine.begin_response(1, OK, [], -1) == OK + b"Connection: close\r\n\r\n"
    assert old.machine.send_data(1, b"hello") == b"hello"
    assert old.machine.end_response(1) == b""


def test_a_response_to_head_has_no_body() -> None:
    server = Server()
    server.gets(head("HEAD /a"))
    assert server.machine.send_reply(1, NOPE).endswith(b"Content-Length: 2\r\n\r\n")
    other = Server()
    other.gets(head())
    assert other.machine.begin_response(1, OK, [], -1, body=False) == OK + b"\r\n"


def test_interim_responses_are_for_clients_that_know_them() -> None:
    server = Server()
    server.gets(head())
    assert server.machine.send_interim(1, b"HTTP/1.1 103 E\r\n", [b"A: b\r\n"]) == (
        b"HTTP/1.1 103 E\r\nA: b\r\n\r\n"
    )
    old = Server()
    old.gets(b"GET /a HTTP/1.0\r\nHost: ok.example\r\n\r\n")
    assert old.machine.send_interim(1, b"HTTP/1.1 100 Continue\r\n") == b""


def test_after_a_switch_all_bytes_are_the_other_protocol_s() -> None:
    server = Server()
    server.gets(head())
    said = server.machine.switch(1, b"HTTP/1.1 101 S\r\n", [b"A: b\r\n"])
    assert said == b"HTTP/1.1 101 S\r\nA: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert server.gets(b"frames") == ["frames"]
    with pytest.raises(Misuse):
        server.machine.next()


def test_bytes_that_are_no_request_are_answered_and_nothing_more_is_read() -> None:
    server = Server(answer)
    server.gets(head("HEAD /a"))
    with pytest.raises(Malformed):
        server.gets(b"nonsense\r\n\r\n")
    said = server.machine.reject(NOPE)
    assert said.endswith(b"Connection: close\r\n\r\nno")
    assert server.gets(head()) == []


def test_responses_that_go_another_way_are_skipped() -> None:
    server = Server(lambda server, stream: server.machine.skip_response(stream))
    assert server.gets(head() + head("GET /b")) == ["1 GET /a", "2 GET /b"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.begin_response(2, OK, [], 0),
        lambda m: m.send_data(2, b""),
        lambda m: m.end_response(2),
        lambda m: m.send_interim(2, OK),
        lambda m: m.switch(2, OK, []),
        lambda m: m.skip_response(2),
        lambda m: m.end_response(1),
        lambda m: m.next(),
    ],
)
def test_what_http_does_not_allow_is_a_fault_of_ours(wrong: Callable[[Http1Server], None]) -> None:
    server = Server()
    server.gets(head())
    with pytest.raises(Misuse):
        wrong(server.machine)


def test_data_that_nobody_receives_is_dropped() -> None:
    server = Server()
    server.gets(head("POST /a", "Content-Length: 4"))
    server.machine._receiver = None
    assert server.gets(b"hi") == []
    server.machine._handler = None
    server.machine.request = State.IDLE
    assert server.gets(head()) == []


def test_another_policy_applies_to_the_trailers_of_a_body_that_has_begun() -> None:
    """I6: a field that has become a credential does not pass behind the body."""
    strict = RequestReader("ok.example", 443, lambda _: Treatment.DROP, {})
    trailers = b"0\r\nX-Key: 1\r\n\r\n"
    begun = head("POST /a", "Transfer-Encoding: chunked") + b"2\r\nhi\r\n"
    server = Server()
    server.gets(begun)
    server.machine.read_by(strict)
    with pytest.raises(Malformed):
        server.gets(trailers)
    # The control, and a request that is between two bodies.
    server = Server()
    assert server.gets(begun + trailers)[-1] == "end x-key"
    server = Server()
    server.machine.read_by(strict)
    assert server.gets(head()) == ["1 GET /a"]
