"""Streams of events: any splitting gives the same events, and what is written has one reading."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Malformed
from keyhole.wire.event_stream import (
    MAX_PENDING,
    EventStreamReader,
    StreamEvent,
    escape_breaks,
    write_event,
)

MESSAGE = b'{"a":1}'


def read(*pieces: bytes, most: int = 1000) -> list[StreamEvent]:
    reader = EventStreamReader(most)
    return [event for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_kind_of_line_end_ends_a_line(end: bytes) -> None:
    stream = end.join((b"event: message", b"id: 7", b"retry: 250", b"data: " + MESSAGE, b"", b""))
    assert read(stream) == [StreamEvent("message", MESSAGE, "7", "250")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_that_comes_byte_by_byte_has_the_same_events(end: bytes) -> None:
    stream = end.join((b"data: one", b"data: two", b"", b": ping", b"", b"data:three", b"", b""))
    whole = read(stream)
    assert whole == [StreamEvent(data=b"one\ntwo"), StreamEvent(), StreamEvent(data=b"three")]
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == whole


def test_an_empty_piece_between_cr_and_lf_makes_no_second_line_end() -> None:
    assert read(b"data: x\r", b"", b"\n\r", b"\n") == [StreamEvent(data=b"x")]


def test_a_byte_order_mark_is_dropped_at_the_beginning_alone() -> None:
    mark = b"\xef\xbb\xbf"
    assert read(mark + b"data: x\n\n" + mark + b"data: y\n\n") == [
        StreamEvent(data=b"x"),
        StreamEvent(),  # `<mark>data` is a field that nobody knows
    ]


def test_fields_that_are_not_plain_are_not_passed_on() -> None:
    (event,) = read(b"event: a\xe2\x80\xa8b\nid: 1\x002\nretry: soon\nwhatever: x\ndata\n\n")
    assert event == StreamEvent("?", b"", "", "")
    assert write_event(event) == b"event: ?\nid\ndata: \n\n"


def test_an_event_is_written_in_one_form() -> None:
    event = StreamEvent("message", b"one\ntwo", "7", "250")
    assert write_event(event) == b"event: message\nid: 7\nretry: 250\ndata: one\ndata: two\n\n"
    assert write_event(StreamEvent()) == b":\n\n"
    assert read(write_event(event)) == [event]


def test_blank_lines_make_no_event() -> None:
    assert read(b"\n\n\r\n") == []


def test_an_event_is_bounded_also_in_lines_without_data() -> None:
    """I9."""
    assert read(b"data: " + b"x" * 900 + b"\n\n") != []  # control
    with pytest.raises(Malformed):
        read(b"data: " + b"x" * 1001)
    with pytest.raises(Malformed):
        read(b"data: " + b"x" * 1100 + b"\n\n")
    with pytest.raises(Malformed):
        read(b"x\n" * (MAX_PENDING + 1), most=1 << 20)
    with pytest.raises(Malformed):
        read(*[b": still here\n"] * 100)


def test_bytes_of_an_unfinished_event_are_counted() -> None:
    reader = EventStreamReader(1000)
    reader.feed(b"data: abc\ndata: d")
    assert reader.held == len(b"data: abcdata: d")
    reader.feed(b"\n\n")
    assert reader.held == 0


def test_characters_that_some_readers_take_for_line_ends_are_escaped() -> None:
    """A client that uses `splitlines` would read the text of a tool as an event of its own."""
    text = '{"a":"x\u2028\u2028data: {}\u2029\x85ü\u201d"}'.encode()
    escaped = escape_breaks(text)
    assert escaped == '{"a":"x\\u2028\\u2028data: {}\\u2029\\u0085ü\u201d"}'.encode()
    assert len(escaped.decode().splitlines()) == 1
    assert escape_breaks(b'{"a":"plain"}') == b'{"a":"plain"}'
