"""The machines of HTTP/2 against another implementation, and against arbitrary frames.

The peer is python-hyper's h2: what one of the two writes, the other must read as it was meant. Its
settings, tables, Huffman code, windows and paddings are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    PingAckReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.http.field import Field
from keyhole.http.frames import MAX_FRAME, Code
from keyhole.http.http2_client import Http2Client
from keyhole.http.http2_server import Http2Server
from keyhole.http.request import CHUNKED, OutboundHead, RequestHead, RequestReader, Treatment
from keyhole.http.response import ResponseHead
from tests.rigs.http import http2 as rig
from tests.rigs.http.http2_deeds import DEEDS, check_bounds, take_step

Cuts = Callable[[bytes], Iterator[bytes]]

REQUEST = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "ok.example"),
    (":path", "/echo"),
]


def fields_of(event: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    return [(str(name), str(value)) for name, value in event.headers]


def at_once(sent: bytes) -> Iterator[bytes]:
    yield sent


def one_by_one(sent: bytes) -> Iterator[bytes]:
    for at in range(len(sent)):
        yield sent[at : at + 1]


# ── our server, their client ──────────────────────────────────────────────────────────────────────


class EchoServer:
    """Answers each request with its own body, trailers and all."""

    def __init__(self, *, length_known: bool = False) -> None:
        reader = RequestReader("ok.example", 443, lambda _: Treatment.KEEP, {})
        self.machine = Http2Server(reader, self, lambda: rig.KEY)
        self.heads: dict[int, RequestHead] = {}
        self.lost: list[int] = []
        self.caught_up: list[int] = []
        self.length_known = length_known

    def request_begun(self, stream: int, head: RequestHead) -> Echo:
        self.heads[stream] = head
        echo = Echo(self, stream)
        if not head.length and not head.websocket:
            echo.request_ended(())
        elif head.websocket:
            self.say(self.machine.switch(stream, b"HTTP/1.1 101 S\r\n", []))
        return echo

    def say(self, sent: bytes) -> None:
        if sent:
            self.machine._out.append(sent)

    def request_refused(self, stream: int, why: str, size: int) -> None:
        self.say(self.machine.reject(stream, rig.BAD))

    def stream_refused(self) -> None: ...

    def stream_lost(self, stream: int, why: str) -> None:
        self.lost.append(stream)

    def stream_caught_up(self, stream: int) -> None:
        self.caught_up.append(stream)


@dataclass
class Echo:
    server: EchoServer
    number: int
    body: bytes = b""

    def request_data(self, data: bytes | memoryview) -> None:
        if self.server.heads[self.number].websocket:
            self.server.say(self.server.machine.send_data(self.number, data))
        self.body += data

    def request_ended(self, trailers: Sequence[Field]) -> None:
        server, machine, number = self.server, self.server.machine, self.number
        if server.heads[number].websocket:
            server.say(machine.end_response(number))
            return
        length = len(self.body) if server.length_known else -1
        lines = [line for line in server.heads[number].lines if line.startswith(b"x-")]
        only_head = server.heads[number].method == "HEAD"
        server.say(machine.begin_response(number, rig.OK, lines, length, body=not only_head))
        if only_head:
            return
        if self.body:
            server.say(machine.send_data(number, self.body))
        server.say(machine.end_response(number, b"".join(each.line for each in trailers)))


@dataclass
class Answer:
    """What their client has read of one stream."""

    status: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    interim: list[str] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None


class TheirClient:
    """h2, in conversation with our server."""

    def __init__(self, server: EchoServer, cuts: Cuts = at_once) -> None:
        self.server = server
        self.cuts = cuts
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True, header_encoding="utf-8", validate_outbound_headers=False
            )
        )
        self.answers: dict[int, Answer] = {}
        self.others: list[Any] = []
        self.h2.initiate_connection()
        self.talk()

    def talk(self) -> None:
        """Until neither has anything to say."""
        machine = self.server.machine
        while True:
            up = self.h2.data_to_send()
            for piece in self.cuts(up) if up else ():
                machine.receive(memoryview(piece))
                while machine.behind:
                    machine.read_on()
            down = machine.take()
            if not (up or down):
                return
            for piece in self.cuts(down) if down else ():
                for event in self.h2.receive_data(piece):
                    self.take(event)

    def take(self, event: Any) -> None:  # noqa: ANN401
        if isinstance(event, ResponseReceived):
            answer = self.answers[event.stream_id]
            answer.fields = dict(fields_of(event))
            answer.status = answer.fields.pop(":status")
        elif isinstance(event, InformationalResponseReceived):
            self.answers[event.stream_id].interim.append(dict(fields_of(event))[":status"])
        elif isinstance(event, DataReceived):
            self.answers[event.stream_id].body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, TrailersReceived):
            self.answers[event.stream_id].trailers = dict(fields_of(event))
        elif isinstance(event, StreamEnded):
            self.answers[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.answers[event.stream_id].reset = event.error_code
        else:
            self.others.append(event)

    def ask(
        self,
        body: bytes = b"",
        *more: tuple[str, str],
        method: str = "POST",
        trailers: Sequence[tuple[str, str]] = (),
        padding: int | None = None,
    ) -> Answer:
        number = self.h2.get_next_available_stream_id()
        answer = self.answers[number] = Answer()
        pairs = [(":method", method), *REQUEST[1:], *more]
        self.h2.send_headers(number, pairs, end_stream=not (body or trailers))
        self.talk()
        at = 0
        while at < len(body):
            room = min(self.h2.local_flow_control_window(number), MAX_FRAME) - (padding or 0) - 1
            assert room > 0, "our server opens its windows"
            piece = body[at : at + room]
            at += len(piece)
            last = at >= len(body) and not trailers
            self.h2.send_data(number, piece, end_stream=last, pad_length=padding)
            self.talk()
        if trailers:
            self.h2.send_headers(number, list(trailers), end_stream=True)
        self.talk()
        return answer


@pytest.mark.parametrize("cuts", [at_once, one_by_one])
@pytest.mark.parametrize("length_known", [True, False])
def test_a_client_of_another_make_is_served(cuts: Cuts, length_known: bool) -> None:
    client = TheirClient(EchoServer(length_known=length_known), cuts)
    answer = client.ask(b"hello", ("x-one", "1"), padding=3)
    assert (answer.status, answer.body, answer.ended) == ("200", b"hello", True)
    assert answer.fields["x-one"] == "1"
    assert client.ask(method="GET").ended
    answer = client.ask(b"x", ("te", "trailers"), trailers=[("x-sum", "1")])
    assert (answer.body, answer.trailers) == (b"x", {"x-sum": "1"})
    answer = client.ask(method="HEAD")
    assert (answer.ended, answer.body) == (True, b"")
    assert client.server.machine.streams == {}


def test_bodies_larger_than_all_windows_go_both_ways() -> None:
    client = TheirClient(EchoServer())
    body = bytes(range(256)) * (12 * 1024)
    assert client.ask(body).body == body
    assert client.server.caught_up == [1]


def test_many_requests_with_a_table_that_changes() -> None:
    client = TheirClient(EchoServer())
    for number in range(300):
        value = f"{number % 7}" * (number % 90)
        answer = client.ask(b"x", (f"x-{number % 40}", value), ("x-same", "yes"))
        assert answer.fields[f"x-{number % 40}"] == value
        assert answer.fields["x-same"] == "yes"


def test_long_heads_cross_in_continuations() -> None:
    client = TheirClient(EchoServer())
    more = [(f"x-{number}", "v" * 9000) for number in range(5)]
    assert {f"x-{number}" for number in range(5)} <= client.ask(b"", *more).fields.keys()


def test_a_client_of_another_make_is_refused_by_stream() -> None:
    client = TheirClient(EchoServer())
    answer = client.ask(b"", ("host", "evil.example"))
    assert (answer.status, answer.body, answer.ended) == ("400", b"bad", True)
    assert client.ask(b"hi").body == b"hi"


def test_resets_pings_and_goodbyes() -> None:
    client = TheirClient(EchoServer())
    client.h2.ping(b"12345678")
    client.h2.prioritize(11, weight=5)
    client.talk()
    assert any(isinstance(event, PingAckReceived) for event in client.others)
    client.answers[1] = Answer()
    client.h2.send_headers(1, REQUEST)
    client.talk()
    client.h2.reset_stream(1)
    client.talk()
    assert client.server.lost == [1]
    client.answers[3] = Answer()
    client.h2.send_headers(3, REQUEST)
    client.talk()
    machine = client.server.machine
    client.server.say(machine.send_interim(3, b"HTTP/1.1 103 Early Hints\r\n"))
    client.server.say(machine.reset(3))
    client.talk()
    assert (client.answers[3].reset, client.answers[3].interim) == (Code.CANCEL, ["103"])
    client.server.say(machine.leave())
    client.talk()
    assert any(isinstance(event, ConnectionTerminated) for event in client.others)
    client.h2.close_connection()
    client.talk()
    assert machine.peer_going


def test_a_websocket_by_another_client() -> None:
    """RFC 8441."""
    client = TheirClient(EchoServer())
    assert client.h2.remote_settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] == 1
    client.answers[1] = Answer()
    pairs = [(":method", "CONNECT"), (":protocol", "websocket"), *REQUEST[1:]]
    client.h2.send_headers(1, [*pairs, ("sec-websocket-version", "13")])
    client.talk()
    client.h2.send_data(1, b"\x81\x02hi", end_stream=True)
    client.talk()
    assert client.server.heads[1].websocket
    assert client.answers[1] == Answer("200", {}, b"\x81\x02hi", ended=True)


# ── our client, their server ──────────────────────────────────────────────────────────────────────


@dataclass
class Read:
    """What our client has read of one response."""

    head: ResponseHead | None = None
    body: bytes = b""
    trailers: list[bytes] = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    ended: bool = False
    lost: str | None = None
    caught_up: int = 0

    def response_interim(self, head: ResponseHead) -> None:
        self.interim.append(head.status)

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        self.head = head
        self.body += body or b""

    def response_data(self, data: bytes | memoryview) -> None:
        self.body += data

    def response_ended(self, trailers: Sequence[Field]) -> None:
        self.trailers = [each.line for each in trailers]
        self.ended = True

    def response_lost(self, why: str, *, unread: bool) -> None:
        self.lost = why

    def request_caught_up(self) -> None:
        self.caught_up += 1


class TheirServer:
    """h2 as an origin that echoes, in conversation with our client."""

    def __init__(self, cuts: Cuts = at_once, window: int = 65535) -> None:
        self.cuts = cuts
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.machine = Http2Client({})
        self.bodies: dict[int, bytes] = {}
        self.heads: dict[int, list[tuple[str, str]]] = {}
        self.trailers: dict[int, list[tuple[str, str]]] = {}
        self.waiting: dict[int, bytes] = {}
        self.lost: list[int] = []
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.talk()

    def talk(self, up: bytes = b"") -> None:
        while True:
            up += self.machine.take()
            for piece in self.cuts(up) if up else ():
                for event in self.h2.receive_data(piece):
                    self.take(event)
            self.send()
            down = self.h2.data_to_send()
            if not (up or down):
                return
            up = b""
            for piece in self.cuts(down) if down else ():
                self.machine.receive(memoryview(piece))
                while self.machine.behind:
                    self.machine.read_on()

    def take(self, event: Any) -> None:  # noqa: ANN401
        number = getattr(event, "stream_id", 0)
        if isinstance(event, RequestReceived):
            self.heads[number] = fields_of(event)
            self.bodies[number] = b""
        elif isinstance(event, DataReceived):
            self.bodies[number] += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, number)
        elif isinstance(event, TrailersReceived):
            self.trailers[number] = fields_of(event)
        elif isinstance(event, StreamReset):
            self.lost.append(number)
        elif isinstance(event, StreamEnded):
            method = dict(self.heads[number])[":method"]
            interim = [(":status", "103"), ("link", "</a>")]
            self.h2.send_headers(number, interim)
            answer = [(":status", "200"), ("x-path", dict(self.heads[number])[":path"])]
            self.h2.send_headers(number, answer, end_stream=method == "HEAD")
            if method != "HEAD":
                self.waiting[number] = self.bodies[number]

    def send(self) -> None:
        """What our client has room for."""
        for number, body in list(self.waiting.items()):
            room = min(self.h2.local_flow_control_window(number), MAX_FRAME)
            if body and room:
                self.h2.send_data(number, body[:room], pad_length=None)
                self.waiting[number] = body[room:]
            elif not body:
                del self.waiting[number]
                if number in self.trailers:
                    self.h2.send_headers(number, self.trailers[number], end_stream=True)
                else:
                    self.h2.end_stream(number)

    def ask(self, body: bytes = b"", *trailers: Field, method: str = "POST", **more: Any) -> Read:  # noqa: ANN401
        read = Read()
        head = OutboundHead(method, "/echo", "ok.example", [b"X-A: b\r\n"], **more)
        number, sent = self.machine.send_request(head, read)
        self.talk(sent)
        if body:
            self.talk(self.machine.send_data(number, body))
        self.talk(self.machine.end_request(number, trailers))
        return read


@pytest.mark.parametrize("cuts", [at_once, one_by_one])
def test_an_origin_of_another_make_is_understood(cuts: Cuts) -> None:
    server = TheirServer(cuts)
    read = server.ask(b"hello", length=5)
    assert read.head is not None
    assert (read.head.status, read.body, read.ended) == (200, b"hello", True)
    assert read.interim == [103]
    assert ("x-a", "b") in server.heads[1]
    assert server.ask(method="HEAD").ended
    assert server.ask(method="GET", trailers=True).ended
    summed = Field(b"x-sum", b"1", b"X-Sum: 1\r\n")
    read = server.ask(b"x", summed, length=CHUNKED)
    assert (read.body, read.trailers) == (b"x", [b"x-sum: 1\r\n"])
    assert server.machine.streams == {}


@pytest.mark.parametrize("window", [65535, 1000])
def test_an_origin_with_a_small_window_gets_all(window: int) -> None:
    server = TheirServer(window=window)
    body = bytes(range(256)) * (window // 16)
    read = server.ask(body, length=CHUNKED)
    assert read.body == body
    assert read.caught_up == 1


def test_an_origin_of_another_make_resets_and_leaves() -> None:
    server = TheirServer()
    read = Read()
    head = OutboundHead("POST", "/", "ok.example", [], CHUNKED)
    number, sent = server.machine.send_request(head, read)
    server.talk(sent)
    server.h2.reset_stream(number, Code.REFUSED_STREAM)
    server.talk()
    assert read.lost == ""
    number, sent = server.machine.send_request(head, read)
    server.talk(sent)
    server.talk(server.machine.reset(number))
    assert server.lost == [number]
    server.talk(server.machine.leave())
    server.h2.close_connection(last_stream_id=number)
    server.talk()
    assert server.machine.peer_going


# ── arbitrary conversations ───────────────────────────────────────────────────────────────────────

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=30)


def cutting(sizes: list[int]) -> Cuts:
    """Pieces of these sizes, again and again."""

    def cuts(sent: bytes) -> Iterator[bytes]:
        at = number = 0
        while at < len(sent):
            size = sizes[number % len(sizes)]
            yield sent[at : at + size]
            at, number = at + size, number + 1

    return cuts


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 90_000),  # bytes of the body
        st.one_of(st.none(), st.integers(0, 255)),  # its padding
        st.booleans(),  # trailers
        st.sampled_from(["POST", "PUT", "GET", "HEAD"]),
    ),
    max_size=6,
)


@settings(max_examples=40)
@given(REQUESTS, SIZES, st.booleans())
def test_any_conversation_gives_the_same_result_however_it_is_cut(
    requests: list[tuple[int, int | None, bool, str]], sizes: list[int], length_known: bool
) -> None:
    for cuts in (at_once, cutting(sizes)):
        client = TheirClient(EchoServer(length_known=length_known), cuts)
        server = TheirServer(cuts)
        for size, padding, trailers, method in requests:
            body = b"x" * size if method != "GET" else b""
            ends = [("x-sum", "1")] if trailers and body else []
            answer = client.ask(
                body, ("te", "trailers"), method=method, trailers=ends, padding=padding
            )
            expected = b"" if method == "HEAD" else body
            assert (answer.status, answer.body, answer.ended) == ("200", expected, True)
            assert answer.trailers == (dict(ends) if method != "HEAD" else {})
            fields = [Field(b"x-sum", b"1", b"X-Sum: 1\r\n")] if ends else []
            length = CHUNKED if body else 0
            read = server.ask(body, *fields, method=method, length=length)
            assert (read.body, read.ended) == (expected, True)
            assert len(read.trailers) == len(fields if method != "HEAD" else [])
        assert client.server.machine.streams == server.machine.streams == {}
        assert client.server.machine._count_held == server.machine._count_held == 0


# ── arbitrary frames ──────────────────────────────────────────────────────────────────────────────

NUMBERS = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 7, 2**31 - 1])
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            rig.section(*rig.request()),
            rig.section(*rig.request(method="POST")),
            rig.section(*rig.request(("content-length", "3"))),
            rig.section((":status", "200")),
            rig.section((":status", "103")),
            rig.section(("x-sum", "1")),
            b"\x3f\xe1\x1f\x82",
            b"\xbe\xbf",
            b"\x40\x01a\x01b",
            bytes(4),
            bytes(8),
            b"\0\4\0\0\0\0",
            b"\0\4\0\0\0\1",
            b"\0\4\x7f\xff\xff\xff",
            b"\0\0\0\x01",
            b"\x7f\xff\xff\xff",
            bytes(MAX_FRAME),
        ]
    ),
)
FLAGS = st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0xC, 0x25]), st.integers(0, 255))
FRAMES = st.builds(
    rig.frame,
    st.one_of(st.sampled_from([0, 0, 1, 1, 9, 8, 3]), st.integers(0, 11)),
    FLAGS,
    NUMBERS,
    PAYLOADS,
)
STEPS = st.lists(
    st.one_of(
        FRAMES,
        FRAMES,
        st.binary(max_size=30),
        st.tuples(st.sampled_from(DEEDS), st.sampled_from([1, 3, 5])),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=300)
def test_whatever_a_client_sends_it_is_read_or_refused(
    steps: list[bytes | tuple[str, int]],
) -> None:
    """I9: no other exception, no growth, and whole frames back."""
    talk = rig.ServerTalk.greeted()
    for step in steps:
        take_step(talk, step)


@given(STEPS, st.integers(0, 3))
@settings(max_examples=300)
def test_whatever_an_origin_sends_it_is_read_or_refused(
    steps: list[bytes | tuple[str, int]], bodies: int
) -> None:
    """I9: the same for the other side."""
    talk = rig.ClientTalk.greeted()
    for number in range(4):
        talk.asks("POST", "/", CHUNKED if number < bodies else 0)
    for step in steps:
        take_step(talk, step)
    # A response that has ended says nothing further, and one that is lost was not whole.
    said = talk.reported()
    for number in (1, 3, 5, 7):
        mine = [words.split(" ", 1)[1] for words in said if words.startswith(f"{number} ")]
        ends = [words for words in mine if words.startswith("end")]
        assert len(ends) <= 1


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    talks: list[rig.ServerTalk | rig.ClientTalk] = [
        rig.ServerTalk(), rig.ServerTalk.greeted(), rig.ClientTalk(), rig.ClientTalk.greeted(),
    ]  # fmt: skip
    for talk in talks:
        talk.fails(*pieces)
        check_bounds(talk.machine)


# ── whatever we accept, another implementation accepts ────────────────────────────────────────────

NAMES = st.one_of(
    st.sampled_from(
        "host te cookie content-length accept connection transfer-encoding upgrade x-a".split()
    ),
    st.sampled_from([":method", ":path", ":scheme", ":authority", ":status", ":protocol", ":x"]),
    st.text("aA-_: \x00\r\n", max_size=4),
)
VALUES = st.one_of(
    st.sampled_from(["ok.example", "trailers", "5", "0", "chunked", "a=b", "", "GET", "200", "/"]),
    st.text("a5 \t\x00\r\n,", max_size=4),
)
# h2 joins cookies before it looks at their spaces: behind an empty one it finds its own.
MORE = st.lists(st.tuples(NAMES, VALUES).filter(lambda pair: pair != ("cookie", "")), max_size=3)
PLACES = st.integers(0, 4)


def accepts(h2: H2Connection, *frames: bytes) -> bool:
    try:
        events = [event for each in frames for event in h2.receive_data(each)]
    except ProtocolError:
        return False
    return not any(isinstance(event, StreamReset) for event in events)


@settings(max_examples=400)
@given(MORE, PLACES, st.binary(max_size=6), st.booleans())
def test_a_request_that_we_accept_is_one_to_another_implementation(
    more: list[tuple[str, str]], place: int, body: bytes, lower: bool
) -> None:
    """I4: strictness has no hole that another reader of the same bytes knows of."""
    pairs = rig.request(method="POST")
    pairs[place:place] = [(name.lower() if lower else name, value) for name, value in more]
    frames = rig.headers(1, pairs, end=not body) + (rig.data(1, body, end=True) if body else b"")
    talk = rig.ServerTalk.greeted()
    said = talk.gets(frames)
    if said[0] != "1 POST /a" or (body and said[-1] != "1 end"):
        return
    theirs = H2Connection(H2Configuration(client_side=False))
    theirs.initiate_connection()
    assert accepts(theirs, rig.PREFACE + rig.settings(), frames), pairs


@settings(max_examples=400)
@given(MORE, PLACES, st.binary(max_size=6), st.booleans())
def test_a_response_that_we_accept_is_one_to_another_implementation(
    more: list[tuple[str, str]], place: int, body: bytes, lower: bool
) -> None:
    pairs = [(":status", "200")]
    pairs[place:place] = [(name.lower() if lower else name, value) for name, value in more]
    frames = rig.headers(1, pairs, end=not body) + (rig.data(1, body, end=True) if body else b"")
    talk = rig.ClientTalk.greeted()
    talk.asks()
    said = talk.gets(frames)
    if said[-1] != "1 end":
        return
    theirs = H2Connection(H2Configuration(client_side=True))
    theirs.initiate_connection()
    theirs.send_headers(1, [(":method", "GET"), *REQUEST[1:]], end_stream=True)
    assert accepts(theirs, rig.settings(), frames), pairs
