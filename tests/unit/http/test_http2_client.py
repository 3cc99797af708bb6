"""The client's machine of HTTP/2: requests to an origin, and what the origin may answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.http.client import MAX_INTERIM
from keyhole.http.field import Field
from keyhole.http.frames import MAX_FRAME, Code, ConnectionFault, Kind
from keyhole.http.http2_client import Http2Client
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    MAX_KNOWN_LINE,
    MAX_KNOWN_STARTS,
    MAX_SECTION_FRAMES,
    MAX_STREAMS,
    MAX_WASTE,
    STREAM_WINDOW,
)
from keyhole.http.request import OutboundHead, Treatment
from keyhole.http.response import Framing, ResponseHead
from keyhole.model.errors import Misuse
from tests.rigs.http.http2 import (
    END,
    END_HEADERS,
    PREFACE,
    ClientTalk,
    data,
    frame,
    goaway,
    headers,
    ping,
    rst,
    section,
    settings,
    status,
    text,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SUM = Field(b"x-sum", b"1", b"X-Sum: 1\r\n")


def asked(*lines: bytes, method: str = "GET", length: int = 0) -> ClientTalk:
    """A request is under way."""
    talk = ClientTalk.greeted()
    talk.asks(method, "/a", length, *lines)
    return talk


def is_open(talk: ClientTalk) -> bool:
    return talk.machine.open_to_requests


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def test_the_machine_begins_with_the_preface_and_refuses_pushes() -> None:
    talk = ClientTalk()
    assert talk.first == [
        f"SETTINGS 2=0 3=0 4={STREAM_WINDOW} 6=65536",
        f"0 WINDOW {CONNECTION_WINDOW - DEFAULT_WINDOW}",
    ]


def test_an_origin_begins_with_its_settings() -> None:
    for begin in (b"HTTP/1.1 400 Bad Request\r\n\r\n", ping(), settings()[:4] + b"\x01" + bytes(4)):
        assert ClientTalk().fails(begin) in {"PROTOCOL_ERROR", "FRAME_SIZE_ERROR"}
    assert ClientTalk().fails(settings() + ping()) == ""


def test_a_request_is_written() -> None:
    talk = ClientTalk.greeted()
    head = OutboundHead("GET", "/a?b", "ok.example", [b"Accept: */*\r\n"], trailers=True)
    assert talk.begins(head) == [
        "1 HEADERS :method=GET :scheme=https :authority=ok.example :path=/a?b te=trailers"
        " accept=*/* END"
    ]
    assert talk.asks()[0].startswith("3 HEADERS")


def test_a_request_with_a_body() -> None:
    talk = ClientTalk.greeted()
    head = OutboundHead("POST", "/", "ok.example", [], 2, expects_continue=True)
    assert talk.begins(head)[0].endswith("content-length=2 expect=100-continue")
    assert talk.sent(talk.machine.send_data(1, b"hi")) == ["1 DATA hi END"]
    assert talk.machine.end_request(1) == b""
    assert talk.asks("POST", "/", -1) == [
        "3 HEADERS :method=POST :scheme=https :authority=ok.example :path=/"
    ]
    assert talk.sent(talk.machine.send_data(3, b"hi")) == ["3 DATA hi"]
    assert talk.sent(talk.machine.end_request(3, [SUM])) == ["3 HEADERS x-sum=1 END"]
    assert talk.asks("PUT")[0].endswith("content-length=0 END")
    assert talk.asks("DELETE")[0].endswith("path=/a END")


def test_after_its_end_nothing_of_a_request_is_sent() -> None:
    talk = asked(length=-1, method="POST")
    talk.machine.end_request(1)
    assert talk.machine.send_data(1, b"x") == b""
    assert talk.machine.end_request(1) == b""
    with pytest.raises(Misuse):
        talk.machine.send_data(3, b"x")


def test_a_long_head_goes_on_in_continuations() -> None:
    talk = ClientTalk.greeted()
    lines = [b"X-%d: %b\r\n" % (number, b"v" * 10_000) for number in range(4)]
    (words,) = talk.asks("GET", "/", 0, *lines)
    assert all(f"x-{number}=vvv" in words for number in range(4))


def test_there_are_as_many_streams_as_the_origin_wants() -> None:
    talk = ClientTalk.greeted()
    assert is_open(talk)
    talk.gets(settings((3, 1)))
    talk.asks()
    assert not is_open(talk)
    talk.gets(settings((3, 2**31)))
    assert talk.machine.peer_streams == MAX_STREAMS
    assert is_open(talk)
    talk.machine.last = 2**31 - 1
    assert not is_open(talk)


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


def test_a_response_that_comes_at_once_is_handed_over_whole() -> None:
    talk = asked()
    said = talk.gets(status(1, ("content-length", "2")) + data(1, b"hi", end=True))
    assert said == ["1 200 whole hi", "1 end"]
    assert (talk.heads[0].framing, talk.heads[0].length) == (Framing.LENGTH, 2)
    assert not talk.machine.streams


def test_a_whole_response_needs_no_length() -> None:
    talk = asked()
    assert talk.gets(status(1) + data(1, b"hi", end=True)) == ["1 200 whole hi", "1 end"]
    assert (talk.heads[0].framing, talk.heads[0].length) == (Framing.LENGTH, 2)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (status(1) + data(1, b"h"), ["1 200", "1 data h"]),
        (status(1) + data(1, b"hi", end=True, padding=1), ["1 200", "1 data hi", "1 end"]),
        (status(1) + ping() + data(1, b"hi", end=True), ["1 200", "1 data hi", "1 end"]),
        (status(1) + headers(1, [("x-sum", "1")]), ["1 200", "1 end x-sum"]),
        (status(1) + data(1, b"", end=True), ["1 200 whole ", "1 end"]),
        (status(1, end=True), ["1 200 whole ", "1 end"]),
        (status(1), ["1 200"]),
    ],
)
def test_other_responses_come_in_pieces(frames: bytes, said: list[str]) -> None:
    talk = asked()
    assert talk.gets(frames) == said
    # The same, a byte at a time.
    talk, found = asked(), []
    for byte in frames:
        found += talk.gets(bytes((byte,)))
    if "whole" in said[0] and len(frames) > len(status(1)):
        assert [words for words in found if words != "1 data "] == ["1 200", "1 end"]
    else:
        assert found == said


def test_the_head_of_one_response_is_reported_before_the_data_of_another() -> None:
    talk = asked()
    talk.asks()
    assert talk.gets(status(1) + status(3) + data(1, b"hi", end=True) + data(3, b"ho")) == [
        "1 200", "3 200", "1 data hi", "1 end", "3 data ho",
    ]  # fmt: skip


def test_a_receiver_may_close_the_connection_at_a_head() -> None:
    talk = asked()
    talk.at_begin = lambda talk, _: talk.machine.close()
    assert talk.gets(status(1) + ping()) == ["1 200"]
    assert talk.gets(status(1)) == []


def test_interim_responses_come_before() -> None:
    talk = asked()
    said = talk.gets(status(1, code="100") + status(1, ("link", "x"), code="103") + status(1))
    assert said == ["1 interim 100", "1 interim 103", "1 200"]


def test_interim_responses_are_few() -> None:
    """I9."""
    talk = asked()
    talk.gets(*[status(1, code="103")] * MAX_INTERIM)
    assert talk.sent() == []
    assert talk.gets(status(1, code="103")) == ["1 lost: too many interim answers"]
    assert talk.sent() == ["1 RST ENHANCE_YOUR_CALM"]


@pytest.mark.parametrize(
    ("method", "code", "length"), [("HEAD", "200", "5"), ("GET", "304", "5"), ("GET", "204", "")]
)
def test_a_response_without_a_body(method: str, code: str, length: str) -> None:
    more = [("content-length", length)] if length else []
    talk = asked(method=method)
    assert talk.gets(status(1, *more, code=code, end=True)) == [f"1 {code}", "1 end"]
    talk = asked(method=method)
    said = talk.gets(status(1, *more, code=code), data(1, b"", end=True))
    assert said == [f"1 {code}", "1 end"]
    talk = asked(method=method)
    assert talk.gets(status(1, *more, code=code), data(1, b"x"))[1].startswith("1 lost: ")
    assert talk.sent() == ["1 RST PROTOCOL_ERROR"]


def test_a_grpc_response_of_trailers_only() -> None:
    talk = asked()
    assert talk.gets(status(1, ("grpc-status", "7"), end=True)) == ["1 200 whole ", "1 end"]
    assert talk.heads[0].lines == [b"grpc-status: 7\r\n"]


@pytest.mark.parametrize(
    "frames",
    [
        status(1, ("content-length", "5"), end=True),
        status(1, ("content-length", "5")) + data(1, b"hell", end=True),
        status(1, ("content-length", "5")) + data(1, b"hello!", end=True),
        status(1, ("content-length", "5")) + data(1, b"hello!"),
        status(1, ("content-length", "5")) + headers(1, [("a", "b")]),
        status(1, ("content-length", "5"), ("content-length", "6")),
        status(1, ("transfer-encoding", "chunked")),
        status(1, ("connection", "close")),
        status(1, ("Server", "x")),
        status(1, ("a", "b\r\nc")),
        status(1, code="101"),
        status(1, code="2"),
        headers(1, [("server", "x")], end=False),
        headers(1, [("server", "x"), (":status", "200")], end=False),
        status(1, (":status", "200")),
        status(1, code="103", end=True),
        status(1) + status(1),
        status(1) + headers(1, [(":status", "200")]),
        status(1, ("location", "/a"), ("location", "/b")),
    ],
)
def test_what_is_no_response_is_an_error_of_its_stream(frames: bytes) -> None:
    """I4: an origin that breaks a rule loses the stream; the others go on."""
    talk = asked()
    talk.asks()
    assert talk.gets(frames)[-1].startswith("1 lost: ")
    assert talk.sent() == ["1 RST PROTOCOL_ERROR"]
    assert talk.gets(status(3, end=True)) == ["3 200 whole ", "3 end"]


def test_data_before_the_head_is_an_error_of_its_stream() -> None:
    talk = asked()
    assert talk.gets(data(1, b"x")) == ["1 lost: data comes where none may"]
    assert talk.sent() == ["1 RST STREAM_CLOSED"]


def test_nothing_follows_the_end_of_a_response() -> None:
    for more in (data(1, b"x"), headers(1, [("a", "b")])):
        talk = asked(length=-1, method="POST")
        talk.gets(status(1, end=True))
        assert talk.gets(more)[0].startswith("1 lost: ")
        assert talk.sent() == ["1 RST STREAM_CLOSED"]
    for more in (data(1, b"x"), headers(1, [("a", "b")])):
        talk = asked()
        talk.gets(status(1, end=True))
        assert talk.gets(more) == []
        assert talk.sent() == ["1 RST STREAM_CLOSED"]


def test_a_whole_response_beyond_the_window_ends_the_connection() -> None:
    talk = asked()
    talk.machine.streams[1].window = 1
    assert talk.fails(status(1) + data(1, b"hi", end=True)) == "FLOW_CONTROL_ERROR"


class Fields:
    """Keeps what is not named x-secret, and has x-seen put back."""

    def treat(self, name: bytes) -> Treatment:
        return Treatment.COLLECT if name == b"x-seen" else Treatment.KEEP

    def put_back(self, head: ResponseHead, method: str) -> None:
        head.lines += [b"x-back: %b\r\n" % method.encode() for _ in head.collected]

    def trailers(self, fields: Sequence[Field]) -> list[Field]:
        return [each for each in fields if each.name != b"x-secret"]


def test_fields_are_filtered_as_those_of_http1_are() -> None:
    talk = ClientTalk.greeted()
    talk.machine = machine = Http2Client({}, Fields())
    assert machine.take().startswith(PREFACE)
    talk.gets(settings())
    talk.asks()
    said = talk.gets(
        status(1, ("x-seen", "1"), ("a", "b")),
        headers(1, [("x-secret", "1"), ("x-sum", "1")]),
    )
    assert said == ["1 200", "1 end x-sum"]
    assert talk.heads[0].lines == [b"a: b\r\n", b"x-back: GET\r\n"]


# ── a slow client ─────────────────────────────────────────────────────────────────────────────────


def test_a_paused_response_is_held_with_its_trailers() -> None:
    talk = asked()
    talk.machine.pause(1)
    assert talk.gets(status(1) + data(1, b"hi"), headers(1, [("x-sum", "1")])) == ["1 200"]
    talk.machine.resume(1)
    assert talk.reported() == ["1 data hi", "1 end x-sum"]
    assert not talk.machine.streams


def test_a_response_may_be_paused_at_its_head_or_at_its_last_bytes() -> None:
    talk = asked()
    talk.at_begin = talk.at_data = lambda talk, stream: talk.machine.pause(stream)
    assert talk.gets(status(1)) == ["1 200"]
    assert talk.gets(data(1, b"hi", end=True)) == []
    talk.machine.resume(1)
    assert talk.reported() == ["1 data hi"]
    talk.machine.resume(1)
    assert talk.reported() == ["1 end"]
    talk = asked()
    talk.at_data = lambda talk, stream: talk.machine.pause(stream)
    assert talk.gets(status(1), data(1, b"hi", end=True)) == ["1 200", "1 data hi"]
    talk.machine.resume(1)
    assert talk.reported() == ["1 end"]


def test_a_response_that_is_held_whole_outlives_the_reset_behind_it() -> None:
    """RFC 9113 §8.1: "Clients MUST NOT discard responses as a result of" it."""
    talk = asked(length=-1, method="POST")
    talk.gets(settings((4, 0)))
    talk.machine.send_data(1, b"x")
    talk.machine.pause(1)
    talk.gets(status(1) + data(1, b"hi", end=True), rst(1, Code.NO_ERROR))
    assert talk.machine.send_data(1, b"y") == talk.machine.end_request(1) == b""
    assert not talk.machine.is_slow(1)
    talk.reported()
    talk.machine.resume(1)
    assert talk.reported() == ["1 data hi", "1 end"]
    assert not talk.machine.streams
    # The control: another code ends it at once.
    talk = asked(length=-1, method="POST")
    talk.machine.pause(1)
    talk.gets(status(1) + data(1, b"hi", end=True))
    assert talk.gets(rst(1, Code.CANCEL)) == ["1 lost"]


@pytest.mark.parametrize("slow", [False, True])
def test_a_response_is_whole_when_all_that_it_announced_is_here(slow: bool) -> None:
    """Node resets a stream whose request it does not need, maybe before END_STREAM."""
    talk = asked(length=-1, method="POST")
    talk.gets(status(1, ("content-length", "2")))
    if slow:
        talk.machine.pause(1)
    heard = talk.gets(data(1, b"hi"), rst(1, Code.NO_ERROR))
    if slow:
        assert heard == []
        assert talk.machine.is_whole(1)
        assert talk.machine.send_data(1, b"more") == b""
        talk.machine.resume(1)
        heard = talk.reported()
    assert heard == ["1 data hi", "1 end"]
    assert not talk.machine.streams


def test_a_response_that_is_cut_ends_behind_what_is_held_of_it() -> None:
    talk = asked(length=-1, method="POST")
    talk.gets(status(1))
    talk.machine.pause(1)
    assert talk.gets(data(1, b"held"), rst(1, Code.NO_ERROR)) == []
    assert talk.gets(data(1, b"late")) == ["1 lost: data comes where none may"]
    talk = asked(length=-1, method="POST")
    talk.gets(status(1, ("content-length", "9")))
    talk.machine.pause(1)
    assert talk.gets(data(1, b"held"), rst(1, Code.NO_ERROR)) == []
    talk.machine.resume(1)
    assert talk.reported() == ["1 data held", "1 lost"]
    assert not talk.machine.streams
    # The control: where nothing is held, it is lost at once.
    talk = asked(length=-1, method="POST")
    talk.gets(status(1, ("content-length", "9")), data(1, b"read"))
    assert talk.gets(rst(1, Code.NO_ERROR)) == ["1 lost"]


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_response_before_the_request_is_whole() -> None:
    talk = asked(length=-1, method="POST")
    assert talk.gets(status(1, end=True)) == ["1 200 whole ", "1 end"]
    assert talk.sent(talk.machine.send_data(1, b"x")) == ["1 DATA x"]
    assert talk.sent(talk.machine.end_request(1)) == ["1 DATA  END"]
    assert not talk.machine.streams
    talk = asked(length=-1, method="POST")
    assert talk.gets(status(1, end=True) + rst(1, Code.NO_ERROR))[1:] == ["1 end", "1 lost"]


def test_a_receiver_may_reset_its_stream_at_the_head() -> None:
    talk = asked()
    talk.at_begin = lambda talk, stream: talk.machine._out.append(talk.machine.reset(stream))
    assert talk.gets(status(1) + data(1, b"hi", end=True)) == ["1 200 whole hi"]
    assert talk.sent() == ["1 RST CANCEL"]


@pytest.mark.parametrize(
    ("code", "said"),
    [(Code.CANCEL, "1 lost"), (Code.REFUSED_STREAM, "1 lost unread"), (999, "1 lost")],
)
def test_an_origin_resets_a_stream(code: int, said: str) -> None:
    talk = asked()
    assert talk.gets(rst(1, code)) == [said]
    assert talk.gets(rst(1, code)) == []


def test_an_origin_says_goodbye() -> None:
    """RFC 9113 §6.8: what it has not read can be sent elsewhere."""
    talk = asked()
    talk.asks()
    assert talk.gets(goaway(1)) == ["3 lost unread"]
    assert not talk.machine.open_to_requests
    assert talk.gets(status(1, end=True)) == ["1 200 whole ", "1 end"]


def test_our_goodbye_names_no_stream_since_an_origin_begins_none() -> None:
    talk = asked()
    assert talk.sent(talk.machine.leave()) == ["GOAWAY 0 NO_ERROR"]
    assert not talk.machine.open_to_requests
    assert talk.gets(status(1, end=True)) == ["1 200 whole ", "1 end"]


def test_an_origin_begins_no_stream() -> None:
    promise = frame(5, 4, 1, b"\0\0\0\x02")
    assert asked().fails(promise) == "PROTOCOL_ERROR"
    assert asked().fails(status(2)) == "PROTOCOL_ERROR"
    assert asked().fails(status(3)) == "PROTOCOL_ERROR"
    assert asked().fails(status(1)) == ""


# ── a slow origin ─────────────────────────────────────────────────────────────────────────────────


def test_a_request_waits_for_the_origin() -> None:
    talk = asked(method="POST", length=4)
    talk.gets(settings((4, 0)))
    assert talk.sent(talk.machine.send_data(1, b"abcd")) == ["SETTINGS ACK"]
    assert talk.machine.is_slow(1)
    assert talk.gets(window(1, 3)) == []
    assert talk.sent() == ["1 DATA abc"]
    assert talk.gets(window(1, 3)) == ["1 caught up"]
    assert talk.sent() == ["1 DATA d END"]


def test_a_request_that_has_caught_up_may_be_over() -> None:
    talk = asked(method="POST", length=1)
    talk.gets(settings((4, 0)))
    talk.machine.send_data(1, b"a")
    talk.gets(status(1, end=True))
    assert talk.gets(window(1, 3)) == []
    assert talk.sent() == ["1 DATA a END"]
    assert not talk.machine.streams


# ── what an origin sends, and the error that it gets ──────────────────────────────────────────────

P, F, S, Z = "PROTOCOL_ERROR", "FLOW_CONTROL_ERROR", "STREAM_CLOSED", "FRAME_SIZE_ERROR"

CONNECTION_ERRORS = {
    "4.2 a frame beyond the maximum": (frame(0, 0, 1, bytes(MAX_FRAME + 1)), Z),
    "4.3 a section that cannot be read": (frame(1, 5, 1, b"\x80"), "COMPRESSION_ERROR"),
    "4.3 another frame amid a section": (frame(1, 1, 1) + ping(), P),
    "4.3 a section of too many frames": (
        frame(1, 1, 1) + frame(9, 0, 1) * MAX_SECTION_FRAMES,
        "ENHANCE_YOUR_CALM",
    ),
    "5.1 data of a stream that was not begun": (data(9, b"x"), P),
    "5.1 headers of a stream that was not begun": (status(9), P),
    "5.1 a reset of a stream that was not begun": (rst(9), P),
    "5.1 a window of a stream that was not begun": (window(9, 5000), P),
    "5.1.1 a stream of the origin's own": (status(2), P),
    "6.1 data of no stream": (data(0, b"x"), P),
    "6.1 padding beyond the end": (status(1) + frame(0, 8, 1, b"\x05abc"), P),
    "6.2 headers of no stream": (status(0), P),
    "6.2 padding beyond the end": (frame(1, 0xD, 1, b"\x05abc"), P),
    "6.4 a reset of no stream": (rst(0), P),
    "6.4 a reset of another size": (frame(3, 0, 1, b"abc"), Z),
    "6.5 an acknowledgement with settings": (frame(4, 1, 0, bytes(6)), Z),
    "6.5 settings of a stream": (frame(4, 0, 1), P),
    "6.5.2 a window beyond the maximum": (settings((4, 2**31)), F),
    "6.5.2 frames below the minimum": (settings((5, 1)), P),
    "6.6 a promise": (frame(5, 4, 1, b"\0\0\0\x02"), P),
    "6.7 a ping of another size": (ping(b"short"), Z),
    "6.8 goodbye of a stream": (frame(7, 0, 1, bytes(8)), P),
    "6.8 goodbye that is cut off": (frame(7, 0, 0, bytes(4)), Z),
    "6.9 an update of nothing": (window(0, 0), P),
    "6.9.1 an update beyond the maximum": (window(0, 2**31 - 1), F),
    "6.10 a continuation of nothing": (frame(9, 4, 1), P),
    "a flood of pings": (ping() * (MAX_WASTE + 1), "ENHANCE_YOUR_CALM"),
    "a flood of empty data": (status(1) + data(1, b"") * (MAX_WASTE + 1), "ENHANCE_YOUR_CALM"),
}


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_an_origin_that_breaks_a_rule_of_the_connection(case: str) -> None:
    frames, code = CONNECTION_ERRORS[case]
    talk = asked()
    try:
        talk.machine.receive(memoryview(frames))
        while talk.machine.behind:
            talk.machine.read_on()
    except ConnectionFault as fault:
        assert talk.sent(talk.machine.fail(fault))[-1] == f"GOAWAY 0 {code}"  # noqa: PT017
    assert talk.machine.closed


STREAM_ERRORS = {
    "5.3.1 a stream that depends on itself": (frame(2, 0, 1, b"\0\0\0\x01\0"), P),
    "6.3 a priority of another size": (frame(2, 0, 1, b"abcd"), Z),
    "6.9 an update of nothing": (window(1, 0), P),
    "6.9.1 an update beyond the maximum": (window(1, 2**31 - 1), F),
    "6.9.1 data beyond the window": (
        status(1) + data(1, bytes(MAX_FRAME)) * (STREAM_WINDOW // MAX_FRAME) + data(1, b"x"),
        F,
    ),
}


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_an_origin_that_breaks_a_rule_of_a_stream(case: str) -> None:
    frames, code = STREAM_ERRORS[case]
    talk = asked()
    talk.asks()
    talk.machine.pause(1)
    assert talk.gets(frames)[-1].startswith("1 lost: ")
    assert talk.sent() == [f"1 RST {code}"]
    assert talk.gets(status(3, end=True)) == ["3 200 whole ", "3 end"]


def test_a_head_or_trailers_that_come_again_are_another_response() -> None:
    """What becomes of one response does not change the next."""
    talk = ClientTalk.greeted()
    for number in (1, 3, 5):
        talk.asks()
        talk.gets(status(number, ("content-length", "2"), ("x-a", "b")), data(number, b"hi"))
        head = talk.heads[-1]
        assert (head.framing, head.length, head.lines) == (Framing.LENGTH, 2, [b"x-a: b\r\n"])
        head.lines.clear()
        head.framing = Framing.NONE
        assert talk.gets(headers(number, [("x-a", "b")]))[-1] == f"{number} end x-a"
    # The same fields of a response to another method, or at its end, mean something else.
    talk.asks("HEAD")
    talk.gets(status(7, ("content-length", "2"), ("x-a", "b"), end=True))
    assert talk.heads[-1].framing is Framing.NONE
    talk.asks()
    fields = [(":status", "200"), ("content-length", "2"), ("x-a", "b")]
    assert talk.gets(headers(9, fields))[-1].startswith("9 lost: ")


def test_a_long_head_of_a_response_is_not_remembered() -> None:
    """I9."""
    talk = ClientTalk.greeted()
    insert = section((":status", "200")) + b"\x40" + text(b"x-a") + text(b"b" * 3000)
    named = section((":status", "200")) + b"\xbe\xbe"
    for number, payload in ((1, insert), (3, named), (5, named)):
        talk.asks()
        talk.gets(frame(Kind.HEADERS, END_HEADERS | END, number, payload))
        assert len(talk.heads[-1].lines) == (1 if number == 1 else 2)
    (known,) = talk.machine._decoder._repeated.values()
    assert known.meaning == (None, None)


def test_few_and_short_starts_of_requests_are_remembered() -> None:
    """I9."""
    talk = ClientTalk.greeted()
    for number in range(MAX_KNOWN_STARTS + 3):
        assert f" :path=/{number} " in talk.asks(path=f"/{number}")[0] + " "
    assert len(talk.machine._starts) == 3
    long = "/" + "a" * MAX_KNOWN_LINE
    for _ in range(2):
        assert f" :path={long} " in talk.asks(path=long)[0]
    assert len(talk.machine._starts) == 3


def test_a_request_may_go_on_behind_the_length_that_it_has_announced() -> None:
    talk = asked(length=2, method="POST")
    talk.machine.expect_trailers(1)
    talk.machine.expect_trailers(99)
    assert talk.sent(talk.machine.send_data(1, b"hi")) == ["1 DATA hi"]
    assert talk.sent(talk.machine.end_request(1, [SUM])) == ["1 HEADERS x-sum=1 END"]
    # The control: it ends with its last byte.
    talk = asked(length=2, method="POST")
    assert talk.sent(talk.machine.send_data(1, b"hi")) == ["1 DATA hi END"]
    assert talk.sent(talk.machine.end_request(1, [SUM])) == []
