"""The receiving half of HTTP/2: windows that we grant, what is held, and field sections."""

from __future__ import annotations

import tracemalloc

import hpack
import pytest

from keyhole.http.field import MAX_HEAD
from keyhole.http.frames import MAX_FRAME, Kind
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    EXTRA_WINDOW,
    HELD_PIECE,
    MAX_SECTION_FRAMES,
    MAX_WASTE,
    STREAM_WINDOW,
    SpareWindow,
)
from tests.rigs.http.http2 import (
    END_HEADERS,
    PADDED,
    PRIORITY,
    ServerTalk,
    data,
    frame,
    get,
    headers,
    ping,
    post,
    request,
    section,
    window,
)

FULL = bytes(MAX_FRAME)
PER_STREAM = STREAM_WINDOW // MAX_FRAME
"""Full frames in the window of a stream."""


def paused(*numbers: int) -> ServerTalk:
    """Requests with a body of which nothing is passed on."""
    talk = ServerTalk.greeted(lambda talk, stream: talk.machine.pause(stream))
    talk.gets(*(post(number) for number in numbers))
    return talk


# ── windows ───────────────────────────────────────────────────────────────────────────────────────


def test_windows_are_opened_again_as_data_is_passed_on() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post())
    for _ in range(200):
        talk.machine.receive(memoryview(data(1, FULL)))
    granted: dict[str, int] = {"0": 0, "1": 0}
    for words in talk.sent():
        stream, kind, amount = words.split()
        assert kind == "WINDOW"
        granted[stream] += int(amount)
    passed = 200 * MAX_FRAME
    span = STREAM_WINDOW + EXTRA_WINDOW
    assert passed - span // 2 < granted["1"] - EXTRA_WINDOW <= passed
    assert passed - CONNECTION_WINDOW // 2 < granted["0"] <= passed


def test_padding_is_granted_again() -> None:
    """It counts for the windows (RFC 9113 §6.1)."""
    talk = ServerTalk.greeted()
    talk.gets(post(1, ("content-length", "1")))
    talk.gets(*[data(1, b"", padding=255)] * (STREAM_WINDOW // 2 // 256))
    assert talk.sent() == [f"1 WINDOW {STREAM_WINDOW // 2 + STREAM_WINDOW}"]


def test_the_window_of_a_stream_that_is_passed_on_grows_by_what_its_connection_has_to_spare() -> (
    None
):
    """I9: all streams together hold no more than their windows and `EXTRA_WINDOW`."""
    talk = ServerTalk.greeted()
    talk.gets(post(1), post(3), post(5))
    for number in (1, 3) * 100:
        talk.gets(data(number, FULL))
    machine = talk.machine
    spans = [machine.streams[number].span for number in (1, 3, 5)]
    assert sum(spans) == 3 * STREAM_WINDOW + EXTRA_WINDOW
    assert spans[0] > STREAM_WINDOW < spans[1]
    assert spans[2] == STREAM_WINDOW
    machine.pause(5)
    machine.pause(1)
    for number in (1, 5):
        talk.gets(*[data(number, FULL)] * (machine.streams[number].window // MAX_FRAME))
        assert talk.gets(data(number, FULL)) == [f"{number} lost: data goes beyond the window"]
    # What the first stream had is another's now.
    assert machine._spare.left == spans[0] - STREAM_WINDOW
    talk.sent()
    talk.gets(*[data(3, FULL)] * 100)
    assert machine.streams[3].span == STREAM_WINDOW + EXTRA_WINDOW


def test_connections_of_one_client_share_what_their_windows_grow_by() -> None:
    """I9: a client with many connections holds no more than one with few."""
    spare = SpareWindow(3 * STREAM_WINDOW)
    talks = [ServerTalk.greeted(), ServerTalk.greeted()]
    for talk in talks:
        talk.machine._spare = spare
        talk.gets(post(), *[data(1, FULL)] * 100)
    spans = [talk.machine.streams[1].span for talk in talks]
    assert spans == [4 * STREAM_WINDOW, STREAM_WINDOW]
    talks[0].machine.close()
    assert spare.left == 3 * STREAM_WINDOW
    talks[1].gets(*[data(1, FULL)] * 100)
    assert talks[1].machine.streams[1].span == 4 * STREAM_WINDOW
    talks[1].machine.reset(1)
    assert spare.left == 3 * STREAM_WINDOW


def test_the_window_of_a_stream_does_not_grow_while_more_of_it_is_held() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post())
    machine = talk.machine
    talk.gets(*[data(1, FULL)] * (PER_STREAM // 2 + PER_STREAM))
    assert machine.streams[1].span == 4 * STREAM_WINDOW == 2 * HELD_PIECE
    machine.pause(1)
    talk.gets(*[data(1, FULL)] * (2 * HELD_PIECE // MAX_FRAME))
    assert machine._count_held == 2 * HELD_PIECE
    talk.sent()
    machine.resume(1)
    spare = EXTRA_WINDOW - 3 * STREAM_WINDOW
    assert talk.sent() == [f"1 WINDOW {HELD_PIECE}", f"1 WINDOW {HELD_PIECE + spare}"]


def test_the_last_data_of_a_stream_opens_its_window_no_more() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(), *[data(1, FULL)] * (PER_STREAM // 2 - 1), data(1, FULL, end=True))
    assert talk.sent() == []


def test_a_paused_stream_is_granted_nothing_and_goes_on_where_it_stopped() -> None:
    talk = paused(1)
    talk.gets(*[data(1, FULL)] * PER_STREAM)
    assert talk.sent() == []
    assert talk.machine.is_paused(1)
    assert not talk.machine.is_whole(1)
    talk.machine.resume(1)
    assert [len(words) - len("1 data ") for words in talk.reported()] == [STREAM_WINDOW]
    assert talk.sent() == [f"1 WINDOW {STREAM_WINDOW + STREAM_WINDOW}"]
    assert not talk.machine.is_paused(1)


def test_a_message_that_is_held_to_its_end_is_whole() -> None:
    talk = paused(1)
    talk.gets(data(1, b"x", end=True))
    assert talk.machine.is_whole(1)
    talk.machine.resume(1)
    assert not talk.machine.is_whole(1)
    assert not talk.machine.is_whole(99)


def test_data_beyond_the_window_of_a_stream_is_an_error_of_the_stream() -> None:
    """I9: what is held of a stream is what it was granted."""
    talk = paused(1)
    assert talk.gets(*[data(1, FULL)] * PER_STREAM) == []
    assert talk.gets(data(1, b"x")) == ["1 lost: data goes beyond the window"]
    assert talk.sent() == ["1 RST FLOW_CONTROL_ERROR"]
    assert talk.machine._count_held == 0


def test_data_beyond_the_window_of_the_connection_ends_it() -> None:
    """I9. It is granted again as it is read, so that only a peer of many windows at once fails."""
    talk = paused(*range(1, 200, 2))
    talk.machine._window = MAX_FRAME
    assert talk.gets(data(1, FULL)) == []
    assert talk.fails(data(3, b"x")) == "FLOW_CONTROL_ERROR"


def test_streams_that_wait_hold_no_more_than_their_windows_and_hinder_no_other() -> None:
    """I9, I12."""
    numbers = range(1, 198, 2)
    talk = paused(*numbers)
    for number in numbers:
        talk.gets(*[data(number, FULL)] * PER_STREAM)
    assert talk.machine._count_held == len(numbers) * STREAM_WINDOW
    talk.do = lambda talk, stream: None
    talk.gets(post(199))
    assert len(talk.gets(*[data(199, FULL)] * 4)) == 4


def test_a_slow_stream_does_not_hold_up_another() -> None:
    """I12."""
    talk = paused(1)
    talk.gets(*[data(1, FULL)] * PER_STREAM)
    talk.do = lambda talk, stream: None
    talk.gets(post(3))
    for _ in range(200):
        talk.machine.receive(memoryview(data(3, FULL)))
    assert len(talk.reported()) == 200


def test_data_of_streams_that_are_over_is_granted_again() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post())
    talk.machine.reset(1)
    talk.gets(*[data(1, FULL)] * (CONNECTION_WINDOW // MAX_FRAME))
    assert sum(int(words.split()[2]) for words in talk.sent()) == CONNECTION_WINDOW


# ── what is held ──────────────────────────────────────────────────────────────────────────────────


def test_a_byte_that_is_held_costs_a_byte() -> None:
    """I9. Attack: frames of one byte for a stream that is paused, each an object of ours."""
    talk = paused(1)
    frames = memoryview(data(1, b"x") * 1000)
    tracemalloc.start()
    for _ in range(10):
        talk.machine.receive(frames)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert talk.machine.streams[1].held_size == 10_000
    assert held < 20_000


def test_what_is_held_keeps_its_order_and_its_end() -> None:
    talk = paused(1)
    talk.gets(data(1, b"a"), data(1, b"b", padding=3), data(1, b"c", end=True))
    talk.machine.resume(1)
    assert talk.reported() == ["1 data abc", "1 end"]
    assert talk.machine._count_held == 0


def test_a_stream_may_be_paused_again_while_it_goes_on() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(), *[data(1, FULL)] * (PER_STREAM // 2 + PER_STREAM))
    talk.machine.pause(1)
    full = HELD_PIECE // MAX_FRAME - 1
    talk.gets(*[data(1, b"a" * MAX_FRAME)] * full, data(1, b"a" * (MAX_FRAME - 1)))
    talk.gets(data(1, b"bc", end=True))
    talk.at_data = lambda talk, stream: talk.machine.pause(stream)
    talk.machine.resume(1)
    assert talk.reported() == ["1 data " + "a" * (HELD_PIECE - 1) + "b"]
    talk.machine.resume(1)
    assert talk.reported() == ["1 data c"]
    talk.machine.resume(1)
    assert talk.reported() == ["1 end"]


def test_what_comes_before_what_is_held_went_on_is_held_behind_it() -> None:
    talk = paused(1)
    talk.gets(data(1, b"a"))
    talk.machine.unpause(1)
    assert talk.gets(data(1, b"b")) == []
    talk.machine.resume(1)
    assert talk.reported() == ["1 data ab"]


def test_padding_alone_may_be_held() -> None:
    talk = paused(1)
    talk.gets(data(1, b"", padding=9), data(1, b"", padding=9, end=True))
    talk.machine.resume(1)
    assert talk.reported() == ["1 end"]
    assert talk.machine._count_held == 0


def test_a_stream_may_be_reset_or_paused_by_its_own_data() -> None:
    talk = ServerTalk.greeted()
    talk.at_data = lambda talk, stream: talk.machine._out.append(talk.machine.reset(stream))
    assert talk.gets(post(), data(1, b"x")) == ["1 POST /a", "1 data x"]
    assert talk.gets(post(3), data(3, b"x", end=True)) == ["3 POST /a", "3 data x"]
    talk = paused(1)
    talk.at_data = lambda talk, stream: talk.machine._out.append(talk.machine.reset(stream))
    talk.gets(data(1, b"x", end=True))
    talk.machine.resume(1)
    assert talk.reported() == ["1 data x"]


def test_calls_for_a_stream_that_is_over_do_nothing() -> None:
    machine = ServerTalk.greeted().machine
    machine.pause(1)
    machine.unpause(1)
    machine.resume(1)
    assert not machine.is_paused(1)
    assert not machine.waits_for_data(1)
    assert (machine.wire_size(1), machine.moved(1)) == (0, 0)


def test_whether_data_is_waited_for() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get(1) + post(3))
    assert not talk.machine.waits_for_data(1)
    assert talk.machine.waits_for_data(3)
    talk.machine.pause(3)
    assert not talk.machine.waits_for_data(3)


# ── waste ─────────────────────────────────────────────────────────────────────────────────────────


def test_empty_frames_are_counted() -> None:
    """I9: of open streams, of streams that we have reset, and of streams that are over."""
    for reset in (False, True):
        talk = ServerTalk.greeted()
        talk.gets(post())
        if reset:
            talk.machine.reset(1)
        assert talk.fails(*[data(1, b"")] * (MAX_WASTE - 1)) == ""
        assert talk.fails(data(1, b"")) == "ENHANCE_YOUR_CALM"
    talk = ServerTalk.greeted()
    talk.gets(get())
    talk.respond(1)
    assert talk.fails(*[data(1, b"x")] * (MAX_WASTE + 1)) == "ENHANCE_YOUR_CALM"
    # The control: a frame with a byte in it is no waste.
    talk = ServerTalk.greeted()
    talk.gets(post())
    assert talk.fails(*[data(1, b"x")] * (2 * MAX_WASTE)) == ""


def test_field_sections_of_streams_that_we_have_reset_are_counted() -> None:
    """I9: each is decoded."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    talk.machine.reset(1)
    assert talk.fails(*[headers(1, [("a", "b")])] * (MAX_WASTE + 1)) == "ENHANCE_YOUR_CALM"


# ── field sections ────────────────────────────────────────────────────────────────────────────────


def in_pieces(stream: int, whole: bytes, size: int, end: int = 1) -> bytes:
    """A section in HEADERS and CONTINUATIONs of so many bytes."""
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    frames = [frame(Kind.HEADERS, end, stream, pieces[0])]
    frames += [frame(Kind.CONTINUATION, 0, stream, piece) for piece in pieces[1:]]
    last = bytearray(frames[-1])
    last[4] |= END_HEADERS
    return b"".join([*frames[:-1], bytes(last)])


def test_a_section_may_come_in_several_frames() -> None:
    whole = section(*request())
    talk = ServerTalk.greeted()
    assert talk.gets(in_pieces(1, whole, 10)) == ["1 GET /a"]
    assert talk.gets(in_pieces(3, whole, 10, end=0)) == ["3 GET /a"]
    assert talk.gets(data(3, b"", end=True)) == ["3 end"]
    assert talk.gets(frame(Kind.HEADERS, 1, 5, whole)) == []
    assert talk.machine.mid_section
    assert talk.gets(frame(Kind.CONTINUATION, END_HEADERS, 5)) == ["5 GET /a"]
    assert not talk.machine.mid_section


@pytest.mark.parametrize(
    "between",
    [
        ping(),
        data(1, b"x"),
        get(3),
        window(0, 5000),
        frame(Kind.CONTINUATION, END_HEADERS, 3),
        frame(Kind.PRIORITY, 0, 1, bytes(5)),
        frame(0xBB, 0, 1),
    ],
)
def test_nothing_comes_between_the_frames_of_a_section(between: bytes) -> None:
    """I4: interleaved heads."""
    talk = ServerTalk.greeted()
    begin = frame(Kind.HEADERS, 1, 1, section(*request()))
    assert talk.fails(begin + between) == "PROTOCOL_ERROR"


def test_a_section_is_bounded() -> None:
    """I9: a flood of CONTINUATIONs ends the connection, be they full, small or empty."""
    assert (
        ServerTalk.greeted().fails(
            in_pieces(1, section(*request(("a", "x" * 15_000), ("b", "x" * 15_000))), MAX_FRAME)
        )
        == ""
    )
    for size in (0, 1, MAX_FRAME):
        flood = frame(Kind.CONTINUATION, 0, 1, bytes(size))
        talk = ServerTalk.greeted()
        begin = frame(Kind.HEADERS, 1, 1, b"")
        assert talk.fails(begin) == ""
        fits = min(MAX_SECTION_FRAMES - 1, MAX_HEAD // size if size else 99)
        assert talk.fails(*[flood] * fits) == ""
        assert talk.fails(flood) == "ENHANCE_YOUR_CALM"


def test_a_section_that_cannot_be_read_ends_the_connection() -> None:
    """The table depends on each, whatever becomes of its stream."""
    for bad in (b"\x80", b"\x00\x01", b"\x3f\xff\xff\x7f"):
        talk = ServerTalk.greeted()
        assert talk.fails(frame(Kind.HEADERS, 5, 1, bad)) == "COMPRESSION_ERROR"
        talk = ServerTalk.greeted()
        talk.gets(get())
        talk.machine.reset(1)
        assert talk.fails(frame(Kind.HEADERS, 5, 1, bad)) == "COMPRESSION_ERROR"


def test_sections_of_streams_that_are_reset_still_fill_the_table() -> None:
    encoder = hpack.Encoder()
    talk = ServerTalk.greeted()
    talk.gets(frame(Kind.HEADERS, 4, 1, encoder.encode(request(("x-a", "1")))))
    talk.machine.reset(1)
    talk.gets(frame(Kind.HEADERS, 5, 1, encoder.encode([("x-b", "2")])))
    talk.gets(frame(Kind.HEADERS, 5, 3, encoder.encode(request(("x-a", "1"), ("x-b", "2")))))
    assert talk.heads[3].lines == [b"x-a: 1\r\n", b"x-b: 2\r\n"]


def test_a_small_section_that_becomes_a_large_head_ends_the_connection() -> None:
    """I9: the HPACK bomb."""
    talk = ServerTalk.greeted()
    entry = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
    assert talk.fails(frame(Kind.HEADERS, 5, 1, section(*request()) + entry)) == ""
    assert talk.fails(frame(Kind.HEADERS, 5, 3, b"\xbe" * 10_000)) == "COMPRESSION_ERROR"


def test_a_head_with_padding_and_priority() -> None:
    whole = section(*request())
    talk = ServerTalk.greeted()
    priority = b"\x80\0\0\x05\xff"
    flags = END_HEADERS | 1
    assert talk.gets(
        frame(Kind.HEADERS, flags | PADDED, 1, b"\x03" + whole + bytes(3)),
        frame(Kind.HEADERS, flags | PRIORITY, 3, priority + whole),
        frame(Kind.HEADERS, flags | PRIORITY | PADDED, 7, b"\x01" + priority + whole + b"\0"),
    ) == ["1 GET /a", "3 GET /a", "7 GET /a"]


def test_a_head_that_depends_on_itself_is_an_error_of_its_stream() -> None:
    talk = ServerTalk.greeted()
    whole = b"\0\0\0\x01\0" + section(*request())
    assert talk.gets(frame(Kind.HEADERS, END_HEADERS | 1 | PRIORITY, 1, whole)) == []
    assert talk.sent() == ["1 RST PROTOCOL_ERROR"]
    assert talk.gets(get(3)) == ["3 GET /a"]


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (END_HEADERS | PADDED, b"", "PROTOCOL_ERROR"),
        (END_HEADERS | PADDED, b"\x05abc", "PROTOCOL_ERROR"),
        (END_HEADERS | PRIORITY, b"abcd", "FRAME_SIZE_ERROR"),
    ],
)
def test_a_head_that_is_cut_off_ends_the_connection(flags: int, payload: bytes, code: str) -> None:
    assert ServerTalk.greeted().fails(frame(Kind.HEADERS, flags, 1, payload)) == code


def test_whether_something_may_follow_the_data_that_is_here() -> None:
    talk = ServerTalk.greeted()
    told: list[bool] = []
    talk.at_data = lambda talk, stream: told.append(talk.machine.may_have_trailers(stream))
    talk.gets(post(1), data(1, b"a"), data(1, b"b", end=True))
    assert told == [True, False]
    talk.gets(post(3), data(3, b"c"), headers(3, [("x-sum", "1")]))
    assert told == [True, False, True]
    assert not talk.machine.may_have_trailers(3)
    assert not talk.machine.may_have_trailers(99)
