"""The server's machine of HTTP/2: requests of a client, and what it is told."""

from __future__ import annotations

import pytest

from keyhole.http.field import Field
from keyhole.http.frames import Code, Kind
from keyhole.http.http2_server import Http2Server
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    MAX_KNOWN_HEAD,
    MAX_STREAMS,
    MAX_WASTE,
    STREAM_WINDOW,
    WASTE_OF_A_RESET,
    SpareWindow,
)
from keyhole.http.request import RequestReader, Treatment
from keyhole.http.response import Reply
from keyhole.model.errors import Malformed, Misuse
from tests.rigs.http.http2 import (
    BAD,
    END,
    END_HEADERS,
    KEY,
    NOPE,
    OK,
    PREFACE,
    ServerTalk,
    data,
    frame,
    get,
    goaway,
    headers,
    ping,
    post,
    request,
    rst,
    section,
    settings,
    text,
)

BAD_REQUEST = [
    "1 HEADERS :status=400 content-length=3",
    "1 DATA bad END",
    "1 RST PROTOCOL_ERROR",
]


def answer(talk: ServerTalk, stream: int) -> None:
    talk.machine._out.append(talk.machine.send_reply(stream, NOPE))


# ── the beginning ─────────────────────────────────────────────────────────────────────────────────


def test_the_machine_begins_with_its_settings_and_opens_the_window() -> None:
    talk = ServerTalk()
    assert talk.first == [
        f"SETTINGS 3={MAX_STREAMS} 8=1 4={STREAM_WINDOW} 6=65536",
        f"0 WINDOW {CONNECTION_WINDOW - DEFAULT_WINDOW}",
    ]


def test_a_client_may_begin_byte_by_byte() -> None:
    talk = ServerTalk()
    for byte in PREFACE + settings() + get():
        talk.machine.receive(memoryview(bytes((byte,))))
    assert talk.reported() == ["1 GET /a"]
    assert not talk.machine.mid_section


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01", settings()]
)
def test_what_does_not_begin_as_http2_is_refused(begin: bytes) -> None:
    assert ServerTalk().fails(begin) == "PROTOCOL_ERROR"


@pytest.mark.parametrize("begin", [get(), settings()[:4] + b"\x01" + bytes(4)])
def test_the_first_frame_has_the_settings(begin: bytes) -> None:
    assert ServerTalk().fails(PREFACE + begin) == "PROTOCOL_ERROR"
    assert ServerTalk().fails(PREFACE + settings() + begin) == ""  # the control


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def test_a_request_and_its_response() -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(get()) == ["1 GET /a"]
    assert talk.respond(1) == ["1 HEADERS :status=200 content-length=2", "1 DATA hi END"]
    assert not talk.machine.streams
    with pytest.raises(Misuse):
        talk.machine.begin_response(1, OK, [], 0)


def test_requests_come_at_once_and_are_answered_in_any_order() -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(get(1) + get(3, path="/b") + post(5)) == ["1 GET /a", "3 GET /b", "5 POST /a"]
    assert talk.respond(3)[1] == "3 DATA hi END"
    assert talk.gets(data(5, b"x", end=True)) == ["5 data x", "5 end"]
    assert talk.respond(5)[1] == "5 DATA hi END"
    assert talk.respond(1)[1] == "1 DATA hi END"
    assert not talk.machine.streams


def test_a_head_is_one_of_http1_to_the_reader() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(1, ("cookie", "a=1"), ("cookie", "b=2"), ("expect", "100-continue")))
    head = talk.heads[1]
    assert head.lines == [b"cookie: a=1; b=2\r\n"]
    assert (head.length, head.expects_continue, head.http10, head.close) == (-1, True, False, False)


@pytest.mark.parametrize(
    "pairs",
    [
        request(authority="evil.example"),
        request(("host", "evil.example")),
        request(("transfer-encoding", "chunked")),
        request(("content-length", "5")),
        request(("content-length", "0"), ("content-length", "0")),
        request(("Accept", "x")),
        request(("x-a", "a\r\nb")),
        request(path="/a\0"),
        request(path="/a#b"),
        request(path="*", method="OPTIONS"),
        request(("user-agent", "a"), ("user-agent", "b")),
        request(("content_length", "5")),
        request(authority="ok.example:80"),
        request(authority="user@ok.example"),
    ],
)
def test_what_is_no_request_is_answered_and_its_stream_is_reset(
    pairs: list[tuple[str, str]],
) -> None:
    """I4. The others of the connection go on."""
    talk = ServerTalk.greeted()
    (said,) = talk.gets(headers(1, pairs))
    assert said.startswith("1 refused: ")
    assert talk.sent() == BAD_REQUEST
    assert talk.gets(get(3)) == ["3 GET /a"]


def test_the_body_of_a_refused_request_is_ignored() -> None:
    talk = ServerTalk.greeted()
    talk.gets(headers(1, request(authority="evil.example"), end=False))
    assert talk.sent() == BAD_REQUEST
    assert talk.gets(data(1, b"x") + headers(1, [("a", "b")]) + get(3)) == ["3 GET /a"]
    assert talk.sent() == []


def test_a_refused_request_waits_for_its_answer() -> None:
    """The caller decides when it is answered; what comes meanwhile is an error of the stream."""
    talk = ServerTalk.greeted()
    talk.refuse = False
    talk.gets(headers(1, request(authority="evil.example"), end=False))
    talk.gets(data(1, b"x"))
    assert talk.sent() == ["1 RST STREAM_CLOSED"]


def test_a_request_that_is_refused_in_its_body_is_answered_as_one_at_its_head() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(1) + post(3, ("te", "trailers")))
    assert talk.sent(talk.machine.reject(1, BAD)) == BAD_REQUEST
    assert talk.sent(talk.machine.reject(3, BAD))[1:] == [
        "3 DATA bad", "3 DATA  END", "3 RST PROTOCOL_ERROR",
    ]  # fmt: skip


def test_a_client_that_has_no_room_for_the_answer_is_reset_all_the_same() -> None:
    talk = ServerTalk.greeted()
    talk.gets(settings((4, 0)))
    talk.sent()
    talk.gets(headers(1, request(authority="evil.example")))
    assert talk.sent() == [BAD_REQUEST[0], BAD_REQUEST[2]]
    assert talk.machine.unsent == 0


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_is_passed_as_it_comes() -> None:
    talk = ServerTalk.greeted()
    said = talk.gets(post(), data(1, b"he"), data(1, b""), data(1, b"llo"), data(1, b"", end=True))
    assert said == ["1 POST /a", "1 data he", "1 data llo", "1 end"]
    assert talk.machine.wire_size(1) == 4 * 9 + 5


def test_padding_is_no_part_of_a_body() -> None:
    talk = ServerTalk.greeted()
    said = talk.gets(
        post(1, ("content-length", "2")),
        data(1, b"h", padding=7),
        data(1, b"", padding=255),
        data(1, b"i", padding=0, end=True),
    )
    assert said[1:] == ["1 data h", "1 data i", "1 end"]


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (data(1, b"hello", end=True), ["1 data hello", "1 end"]),
        (data(1, b"hello") + data(1, b"", end=True), ["1 data hello", "1 end"]),
        (data(1, b"hello") + headers(1, [("x-sum", "1")]), ["1 data hello", "1 end x-sum"]),
    ],
)
def test_a_body_of_the_length_that_was_announced(frames: bytes, said: list[str]) -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(post(1, ("content-length", "5")), frames)[1:] == said


@pytest.mark.parametrize(
    "frames",
    [
        data(1, b"hell", end=True),
        data(1, b"hello!"),
        data(1, b"hello!", end=True),
        data(1, b"hello") + data(1, b"!"),
        data(1, b"hell") + headers(1, [("x-sum", "1")]),
        data(1, b"", end=True),
    ],
)
def test_a_body_of_another_length_is_an_error_of_its_stream(frames: bytes) -> None:
    """I4: to an origin of HTTP/1.1, what is too much would be the next request."""
    talk = ServerTalk.greeted()
    said = talk.gets(post(1, ("content-length", "5")), frames, get(3))
    assert said[-2].startswith("1 lost: ")
    assert said[-1] == "3 GET /a"
    assert talk.sent() == ["1 RST PROTOCOL_ERROR"]


def test_trailers_of_a_request_are_reported() -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(post(), data(1, b"x"), headers(1, [("x-sum", "1")]))[1:] == [
        "1 data x",
        "1 end x-sum",
    ]


@pytest.mark.parametrize(
    ("trailers", "end", "code"),
    [
        ([("x-sum", "1")], False, "PROTOCOL_ERROR"),
        ([(":path", "/b")], True, "PROTOCOL_ERROR"),
        ([("X-Sum", "1")], True, "PROTOCOL_ERROR"),
        ([("authorization", "x")], True, "PROTOCOL_ERROR"),
        ([("content-length", "1")], True, "PROTOCOL_ERROR"),
        ([("x-sum", "a\nb")], True, "PROTOCOL_ERROR"),
    ],
)
def test_trailers_that_may_not_be_are_an_error_of_their_stream(
    trailers: list[tuple[str, str]], end: bool, code: str
) -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(post(), headers(1, trailers, end=end))[1].startswith("1 lost: ")
    assert talk.sent() == [f"1 RST {code}"]


def test_another_policy_applies_to_the_trailers_of_a_body_that_has_begun() -> None:
    """I6: a field that has become a credential does not pass behind the body."""
    strict = RequestReader("ok.example", 443, lambda _: Treatment.DROP, {})
    talk = ServerTalk.greeted()
    talk.gets(post(1) + post(3))
    assert talk.gets(headers(1, [("x-key", "1")])) == ["1 end x-key"]  # the control
    talk.machine.read_by(strict)
    assert talk.gets(headers(3, [("x-key", "1")]))[0].startswith("3 lost: ")


def test_nothing_follows_the_end_of_a_request() -> None:
    for more in (data(1, b"x"), headers(1, [("a", "b")])):
        talk = ServerTalk.greeted()
        assert talk.gets(get(), more)[1].startswith("1 lost: ")
        assert talk.sent() == ["1 RST STREAM_CLOSED"]


def test_trailers_behind_a_body_that_is_held_are_held() -> None:
    talk = ServerTalk.greeted(lambda talk, stream: talk.machine.pause(stream))
    assert talk.gets(post(), data(1, b"x"), headers(1, [("x-sum", "1")])) == ["1 POST /a"]
    assert not talk.machine.waits_for_data(1)
    talk.machine.resume(1)
    assert talk.reported() == ["1 data x", "1 end x-sum"]


def test_trailers_that_wait_are_read_by_the_policy_that_is_in_force() -> None:
    """I6: which fields are credentials is the policy's to say."""
    talk = ServerTalk.greeted(lambda talk, stream: talk.machine.pause(stream))
    talk.gets(post(), data(1, b"x"), headers(1, [("x-sum", "1")]))
    talk.machine.read_by(RequestReader("ok.example", 443, lambda _: Treatment.DROP, {}))
    with pytest.raises(Malformed):
        talk.machine.resume(1)
    assert talk.reported() == ["1 data x"]


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


def test_a_body_of_unknown_length_ends_with_an_empty_frame() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    machine = talk.machine
    assert talk.sent(machine.begin_response(1, OK, [b"A: b\r\n"], -1)) == [
        "1 HEADERS :status=200 a=b"
    ]
    assert talk.sent(machine.send_data(1, b"hi")) == ["1 DATA hi"]
    assert talk.sent(machine.send_data(1, b"")) == []
    assert talk.sent(machine.end_response(1)) == ["1 DATA  END"]
    assert machine.end_response(1) == b""


def test_trailers_of_a_response_are_sent() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    out = talk.machine.begin_response(1, OK, [], -1)
    out += talk.machine.end_response(1, b"Grpc-Status: 0\r\nX: \r\n")
    assert talk.sent(out)[1:] == ["1 HEADERS grpc-status=0 x= END"]


def test_trailers_behind_a_known_length_are_sent_to_a_client_that_reads_them() -> None:
    for te, ends in ((("te", "trailers"),), ["1 HEADERS grpc-status=0 END"]), ((), []):
        talk = ServerTalk.greeted()
        talk.gets(get(1, *te))
        out = talk.machine.begin_response(1, OK, [], 2) + talk.machine.send_data(1, b"hi")
        out += talk.machine.end_response(1, b"Grpc-Status: 0\r\n")
        assert talk.sent(out)[2:] == ends


def test_interim_responses_come_before() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(1, ("expect", "100-continue")))
    out = talk.machine.send_interim(1, b"HTTP/1.1 100 Continue\r\n")
    out += talk.machine.send_interim(1, b"HTTP/1.1 103 Early Hints\r\n", [b"Link: x\r\n"])
    assert talk.sent(out) == ["1 HEADERS :status=100", "1 HEADERS :status=103 link=x"]
    talk.gets(data(1, b"x", end=True))
    assert len(talk.respond(1)) == 2
    with pytest.raises(Misuse):
        talk.machine.send_interim(1, b"HTTP/1.1 100 Continue\r\n")


def test_a_response_without_a_body_ends_with_its_head() -> None:
    talk = ServerTalk.greeted()
    talk.gets(headers(1, request(method="HEAD")) + get(3) + get(5))
    machine = talk.machine
    out = machine.begin_response(1, OK, [], 5, body=False)
    out += machine.begin_response(3, b"HTTP/1.1 204 No Content\r\n", [], -1, body=False)
    out += machine.begin_response(5, OK, [], 0)
    assert talk.sent(out) == [
        "1 HEADERS :status=200 content-length=5 END",
        "3 HEADERS :status=204 END",
        "5 HEADERS :status=200 content-length=0 END",
    ]
    assert not machine.streams


def test_a_reply_of_the_gateway() -> None:
    talk = ServerTalk.greeted(answer)
    talk.gets(get(1) + headers(3, request(method="HEAD")))
    assert talk.sent() == [
        "1 HEADERS :status=403 content-length=2 content-type=text/plain",
        "1 DATA no END",
        "3 HEADERS :status=403 content-length=2 content-type=text/plain END",
    ]
    empty = Reply(200, "OK", (), b"")
    talk.do = lambda talk, stream: None
    talk.gets(get(5))
    assert talk.sent(talk.machine.send_reply(5, empty)) == [
        "5 HEADERS :status=200 content-length=0 END"
    ]


def test_a_response_before_the_request_is_whole_ends_the_stream() -> None:
    """RFC 9113 §8.1: the client is told that the rest is not needed, and goes on with others."""
    talk = ServerTalk.greeted(answer)
    assert talk.gets(post()) == ["1 POST /a"]
    assert talk.sent()[1:] == ["1 DATA no END", "1 RST NO_ERROR"]
    assert talk.gets(data(1, b"x") + data(1, b"y", end=True) + get(3)) == ["3 GET /a"]


def test_a_response_while_the_whole_request_is_held_needs_no_reset() -> None:
    talk = ServerTalk.greeted(lambda talk, stream: talk.machine.pause(stream))
    talk.gets(post(), data(1, b"x", end=True))
    assert talk.sent(talk.machine.send_reply(1, NOPE))[1:] == ["1 DATA no END"]
    assert not talk.machine.streams


def test_a_body_is_not_longer_than_was_said() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    talk.machine.begin_response(1, OK, [], 2)
    with pytest.raises(Misuse):
        talk.machine.send_data(1, b"abc")
    talk = ServerTalk.greeted()
    talk.gets(settings((4, 0)), get())
    talk.machine.begin_response(1, OK, [], -1)
    talk.machine.send_data(1, b"abc")
    talk.machine.end_response(1)
    talk.machine.end_response(1)  # once more is no harm
    with pytest.raises(Misuse):
        talk.machine.send_data(1, b"d")


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────


def connect(*more: tuple[str, str], end: bool = False) -> bytes:
    pairs = request(*more, method="CONNECT")
    return headers(1, [pairs[0], (":protocol", "websocket"), *pairs[1:]], end=end)


def test_a_websocket_by_extended_connect() -> None:
    """RFC 8441."""
    talk = ServerTalk.greeted()
    assert talk.gets(connect(("sec-websocket-version", "13"))) == ["1 GET /a"]
    head = talk.heads[1]
    assert (head.websocket, head.length) == (True, 0)
    assert b"sec-websocket-key: " + KEY + b"\r\n" in head.lines
    out = talk.machine.switch(
        1,
        b"HTTP/1.1 101 Switching Protocols\r\n",
        [b"Sec-WebSocket-Accept: x\r\n", b"Sec-WebSocket-Protocol: chat\r\n"],
    )
    assert talk.sent(out) == ["1 HEADERS :status=200 sec-websocket-protocol=chat"]
    assert talk.gets(data(1, b"\x81\x00")) == ["1 data \x81\x00"]
    assert talk.sent(talk.machine.send_data(1, b"\x81\x00")) == ["1 DATA \x81\x00"]
    assert talk.gets(data(1, b"", end=True)) == ["1 end"]
    assert talk.sent(talk.machine.end_response(1)) == ["1 DATA  END"]
    assert not talk.machine.streams


def test_a_websocket_has_one_key_and_no_end() -> None:
    for frames in (connect(("sec-websocket-key", "x")), connect(end=True)):
        talk = ServerTalk.greeted()
        (said,) = talk.gets(frames)
        assert said.startswith("1 refused")


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_resets_a_stream() -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(get(1) + get(3) + rst(1)) == ["1 GET /a", "3 GET /a", "1 lost"]
    with pytest.raises(Misuse):
        talk.machine.begin_response(1, OK, [], 0)
    assert talk.respond(3)[1] == "3 DATA hi END"


def test_a_stream_is_reset_for_the_client() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    assert talk.sent(talk.machine.reset(1, Code.INTERNAL_ERROR)) == ["1 RST INTERNAL_ERROR"]
    assert talk.machine.reset(1) == b""
    assert talk.gets(rst(1)) == []


def test_after_goodbye_open_streams_end_and_no_other_begins() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    assert talk.sent(talk.machine.leave()) == ["GOAWAY 1 NO_ERROR"]
    assert talk.machine.leave() == b""
    assert talk.gets(get(3)) == []
    assert talk.sent() == ["3 RST REFUSED_STREAM"]
    assert talk.respond(1)[1] == "1 DATA hi END"


def test_streams_that_cross_our_goodbye_are_no_abuse() -> None:
    talk = ServerTalk.greeted()
    talk.machine.leave()
    talk.gets(b"".join(get(number) for number in range(1, 2 * MAX_STREAMS, 2)))
    assert talk.machine._waste <= MAX_STREAMS + 1 < MAX_WASTE


def test_a_client_says_goodbye() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get(), goaway(0))
    assert talk.machine.peer_going
    assert talk.respond(1)[1] == "1 DATA hi END"


def test_after_it_is_closed_nothing_is_read() -> None:
    talk = ServerTalk.greeted(lambda talk, stream: talk.machine.close())
    assert talk.gets(get(1) + get(3)) == ["1 GET /a"]
    assert talk.gets(get(5)) == []
    talk.machine.close()
    talk.machine.read_on()
    assert talk.machine.leave() == b""
    assert talk.machine.closed


# ── abuse ─────────────────────────────────────────────────────────────────────────────────────────


def test_streams_beyond_the_limit_are_refused() -> None:
    """I9: thousands of streams, opened and left."""
    talk = ServerTalk.greeted()
    for number in range(1, 2 * MAX_STREAMS, 2):
        assert talk.gets(get(number)) == [f"{number} GET /a"]
    number = 2 * MAX_STREAMS + 1
    assert talk.gets(get(number)) == ["one refused"]
    assert talk.sent() == [f"{number} RST REFUSED_STREAM"]
    talk.respond(1)
    assert talk.gets(get(number + 2)) == [f"{number + 2} GET /a"]
    allowed = MAX_WASTE // WASTE_OF_A_RESET
    more = [get(each) for each in range(number + 4, number + 4 + 2 * allowed, 2)]
    assert talk.fails(*more) == "ENHANCE_YOUR_CALM"
    assert not talk.machine.streams


def test_rapid_resets_end_the_connection() -> None:
    """I9: a request costs more than its reset."""
    talk = ServerTalk.greeted()
    pairs = [get(number) + rst(number) for number in range(1, 6 * MAX_WASTE // 10, 2)]
    allowed = MAX_WASTE // WASTE_OF_A_RESET - 1
    assert talk.fails(*pairs[:allowed]) == ""
    talk.machine.refill()
    assert talk.fails(*pairs[allowed : 2 * allowed]) == ""
    assert talk.fails(*pairs[2 * allowed :]) == "ENHANCE_YOUR_CALM"


def test_requests_that_make_us_reset_end_the_connection() -> None:
    """I9: the same, with errors that the client provokes in place of its resets."""
    for bad in (
        lambda number: headers(number, request(authority="evil.example")),
        lambda number: get(number) + data(number, b"x"),
    ):
        talk = ServerTalk.greeted()
        assert talk.fails(*map(bad, range(1, 2000, 2))) == "ENHANCE_YOUR_CALM"


def test_many_answered_requests_are_no_abuse() -> None:
    """The control of the above."""
    talk = ServerTalk.greeted(answer)
    assert talk.fails(*(get(number) for number in range(1, 10_000, 2))) == ""
    assert talk.machine._waste == 0


def test_requests_that_are_cancelled_at_once_are_no_abuse() -> None:
    """The control of rapid resets: a client gives up all that it has under way."""
    talk = ServerTalk.greeted()
    numbers = range(1, 2 * MAX_STREAMS, 2)
    assert talk.fails(*map(get, numbers), *map(rst, numbers)) == ""


def test_pings_beside_a_busy_stream_are_no_abuse() -> None:
    """A client that measures how fast a stream may be sends a ping for each answer to the last."""
    talk = ServerTalk.greeted()
    talk.gets(get())
    talk.machine.begin_response(1, OK, [], -1)
    for _ in range(2 * MAX_WASTE):
        talk.machine.send_data(1, b"x")
        assert talk.fails(ping()) == ""
    # The control: without data they are.
    assert talk.fails(*[ping()] * (MAX_WASTE + 1)) == "ENHANCE_YOUR_CALM"


def test_the_short_rest_of_a_request_that_is_answered_may_come() -> None:
    """A reset would cost some clients the response. Control: of a rest without a length, it is
    sent."""
    talk = ServerTalk.greeted()
    talk.do = lambda talk, stream: talk.machine._out.append(talk.machine.send_reply(stream, NOPE))
    talk.gets(post(1, ("content-length", "3")))
    assert talk.sent()[-1].endswith("END")
    assert talk.gets(data(1, b"a=b", end=True)) == []
    assert not talk.machine.streams
    # curl ends a request early that it knows to be answered.
    talk.gets(post(3, ("content-length", "3")))
    talk.sent()
    assert talk.gets(data(3, b"", end=True)) == []
    assert talk.sent() == []
    talk.gets(post(5))
    assert talk.sent()[-1] == "5 RST NO_ERROR"


# ── heads that come again ─────────────────────────────────────────────────────────────────────────


def test_a_head_that_comes_again_is_another_request() -> None:
    """What a request changes of its head, the next one does not have."""
    talk = ServerTalk.greeted()
    mine = ("x-a", "b"), ("expect", "100-continue")
    talk.gets(post(1, *mine))
    first = talk.heads[1]
    first.expects_continue = False
    first.lines.clear()
    talk.gets(post(3, *mine), post(5, *mine))
    for number in (3, 5):
        assert talk.heads[number].expects_continue
        assert talk.heads[number].lines == [b"x-a: b\r\n"]
        assert talk.heads[number].raw == first.raw
    talk.heads[3].collected.append(Field(b"x", b"y", b"x: y\r\n"))
    talk.gets(post(7, *mine))
    assert talk.heads[7].collected == []


def test_a_head_that_comes_again_is_read_by_the_policy_in_force() -> None:
    """I6: which fields are the client's credentials, the policy says."""
    talk = ServerTalk.greeted()
    for number in (1, 3):
        talk.gets(get(number, ("x-key", "mine")))
        assert talk.heads[number].lines == [b"x-key: mine\r\n"]
    talk.machine.read_by(RequestReader("ok.example", 443, lambda _: Treatment.DROP, {}))
    for number in (5, 7):
        talk.gets(get(number, ("x-key", "mine")))
        assert talk.heads[number].lines == []


def test_a_head_that_comes_again_has_the_body_that_its_frame_says() -> None:
    talk = ServerTalk.greeted()
    rows = request(method="POST")
    for number, ended in ((1, True), (3, False), (5, True), (7, False)):
        talk.gets(headers(number, rows, end=ended))
        assert talk.heads[number].length == (0 if ended else -1)


def test_a_head_that_names_another_entry_of_the_table_is_another_head() -> None:
    """Attack: the same bytes mean something else after the table has changed (RFC 7541 §2.3)."""
    talk = ServerTalk.greeted()
    newest = section(*request()) + b"\xbe"

    def insert(value: str) -> bytes:
        return section(*request()) + b"\x40" + text(b"x-a") + text(value.encode())

    numbers = iter(range(1, 100, 2))
    for value in ("one", "two"):
        for payload in (insert(value), newest, newest):
            number = next(numbers)
            talk.gets(frame(Kind.HEADERS, END_HEADERS | END, number, payload))
            assert talk.heads[number].lines == [b"x-a: %b\r\n" % value.encode()]


def test_a_long_head_and_the_key_of_a_websocket_are_not_remembered() -> None:
    """I9: eight heads of a connection are remembered, and none is larger than a page."""
    talk = ServerTalk.greeted()
    insert = section(*request()) + b"\x40" + text(b"x-a") + text(b"b" * 3000)
    named = section(*request()) + b"\xbe\xbe"
    for number, payload in ((1, insert), (3, named), (5, named)):
        talk.gets(frame(Kind.HEADERS, END_HEADERS | END, number, payload))
    (known,) = talk.machine._decoder._repeated.values()
    assert len(talk.heads[5].raw) > MAX_KNOWN_HEAD
    assert known.meaning == (None, None)
    keys = iter((b"A" * 22 + b"==", b"B" * 22 + b"=="))
    talk.machine._make_key = lambda: next(keys)
    rows = request((":protocol", "websocket"), method="CONNECT")
    for number, letter in ((7, b"A"), (9, b"B")):
        talk.gets(headers(number, rows, end=False))
        assert letter * 22 in talk.heads[number].raw


def test_windows_grow_out_of_what_the_machine_was_given() -> None:
    """I9: a session has one for all its connections."""
    talk, spare = ServerTalk(), SpareWindow(STREAM_WINDOW)
    talk.machine = Http2Server(talk.machine.reader, talk, lambda: KEY, spare)
    talk.gets(PREFACE + settings(), post(), *[data(1, bytes(16384))] * 4)
    assert spare.left == 0
    assert talk.machine.streams[1].span == 2 * STREAM_WINDOW
