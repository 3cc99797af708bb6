"""The sending half of HTTP/2: windows of the peer, and what waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.http.frames import MAX_FRAME
from keyhole.http.http2_stream import (
    DEFAULT_WINDOW,
    MAX_FORGOTTEN,
    MAX_KNOWN_LINE,
    MAX_KNOWN_LINES,
    MAX_WASTE,
    SMALL_UPDATE,
    WORK_AT_ONCE,
)
from tests.rigs.http.http2 import NOPE, OK, ServerTalk, data, get, post, rst, settings, window

if TYPE_CHECKING:
    from collections.abc import Iterator


def answering(*numbers: int, first: bytes = b"", length: int = -1) -> ServerTalk:
    """Responses of these streams have begun."""
    talk = ServerTalk.greeted()
    talk.gets(first)
    for number in numbers:
        talk.gets(get(number))
        talk.machine.begin_response(number, OK, [], length)
    talk.reported()
    return talk


def sizes(words: list[str]) -> list[int]:
    return [len(each.split(" ", 2)[2].removesuffix(" END")) for each in words]


def test_data_goes_in_frames_of_the_least_size_that_peers_accept() -> None:
    """Larger ones would delay what is more urgent, whatever the peer accepts."""
    for first in (b"", settings((5, 2**24 - 1))):
        talk = answering(1, first=first)
        assert sizes(talk.sent(talk.machine.send_data(1, bytes(40_000)))) == [
            MAX_FRAME, MAX_FRAME, 40_000 - 2 * MAX_FRAME,
        ]  # fmt: skip


def test_what_the_peer_has_no_room_for_waits() -> None:
    talk = answering(1)
    machine = talk.machine
    words = talk.sent(machine.send_data(1, b"x" * (DEFAULT_WINDOW + 10)))
    assert sum(sizes(words)) == DEFAULT_WINDOW
    assert machine.is_slow(1)
    assert machine.unsent == 10
    assert talk.sent(machine.send_data(1, b"y" * 10)) == []
    assert machine.unsent == 20
    assert talk.sent(machine.end_response(1)) == []
    # Room for the stream is none while the connection has none, and the other way round.
    assert talk.gets(window(1, 5000)) == []
    assert talk.sent() == []
    assert talk.gets(window(0, 15)) == []
    assert talk.sent() == ["1 DATA " + "x" * 10, "1 DATA " + "y" * 5]
    assert machine.moved(1) == DEFAULT_WINDOW + 15
    assert talk.gets(window(0, 5000)) == ["1 caught up"]
    assert talk.sent() == ["1 DATA " + "y" * 5 + " END"]
    assert not machine.streams
    assert not machine.is_slow(1)


def test_a_window_of_one_byte_is_served_byte_by_byte() -> None:
    talk = answering(1, first=settings((4, 1)))
    assert talk.sent(talk.machine.send_data(1, b"abc")) == ["1 DATA a"]
    for left in (b"b", b"c"):
        talk.gets(window(1, 1))
        assert talk.sent() == [f"1 DATA {left.decode()}"]


def test_room_that_is_given_byte_by_byte_is_bounded() -> None:
    """I9, I12: each update costs us a frame."""
    talk = answering(1, first=settings((4, 0)))
    talk.machine.send_data(1, bytes(5000))
    talk.sent()
    assert talk.fails(*[window(1, 1)] * 900) == ""
    talk.machine.refill()
    assert talk.fails(*[window(1, 1)] * (MAX_WASTE + 1)) == "ENHANCE_YOUR_CALM"
    # The control: proper updates.
    talk = answering(1, first=settings((4, 0)))
    assert talk.fails(*[window(1, SMALL_UPDATE)] * (2 * MAX_WASTE)) == ""


def test_a_window_of_zero_stalls_its_stream_alone() -> None:
    """I12."""
    talk = answering(1, 3, first=settings((4, 0)))
    talk.gets(window(3, 5000))
    talk.sent()
    assert talk.sent(talk.machine.send_data(1, b"abc")) == []
    assert talk.sent(talk.machine.send_data(3, b"def")) == ["3 DATA def"]
    assert talk.machine.is_slow(1)
    assert not talk.machine.is_slow(3)
    talk.gets(settings((4, 2)))
    assert talk.sent() == ["SETTINGS ACK", "1 DATA ab"]


def test_a_head_and_the_end_need_no_room() -> None:
    talk = answering(first=settings((4, 0)))
    talk.sent()
    talk.gets(get(1))
    assert talk.sent(talk.machine.begin_response(1, OK, [], -1)) == ["1 HEADERS :status=200"]
    assert talk.sent(talk.machine.end_response(1)) == ["1 DATA  END"]


def test_trailers_wait_behind_the_data() -> None:
    talk = answering(1, first=settings((4, 0)))
    talk.sent()
    talk.machine.send_data(1, b"abc")
    assert talk.machine.end_response(1, b"X-Sum: 1\r\n") == b""
    assert talk.gets(window(1, 5)) == ["1 caught up"]
    assert talk.sent() == ["1 DATA abc", "1 HEADERS x-sum=1 END"]


def test_a_known_length_ends_with_its_last_byte_even_if_that_waits() -> None:
    talk = answering(1, first=settings((4, 2)), length=3)
    assert talk.sent(talk.machine.send_data(1, b"a"))[-1] == "1 DATA a"
    assert talk.sent(talk.machine.send_data(1, b"bc")) == ["1 DATA b"]
    talk.gets(window(1, 1))
    assert talk.sent() == ["1 DATA c END"]


def test_a_window_may_become_less_than_what_was_sent() -> None:
    """RFC 9113 §6.9.2: it is negative then, and nothing is sent until it is not."""
    talk = answering(1)
    talk.machine.send_data(1, b"x" * 100)
    talk.gets(settings((4, 50)))
    assert talk.machine.streams[1].room == -50
    assert talk.sent(talk.machine.send_data(1, b"abc"))[-1] == "SETTINGS ACK"
    talk.gets(window(1, 50))
    assert talk.sent() == []
    talk.gets(window(1, 1))
    assert talk.sent() == ["1 DATA a"]
    talk.gets(settings((4, 52)))
    assert talk.sent() == ["SETTINGS ACK", "1 DATA bc"]


def test_streams_that_wait_take_turns() -> None:
    """I12: a frame of each."""
    talk = answering(1, 3, 5)
    machine = talk.machine
    machine.send_data(1, b"z" * DEFAULT_WINDOW)
    for number, body in ((1, b"a"), (3, b"b"), (5, b"c")):
        machine.send_data(number, body * (2 * MAX_FRAME))
        talk.gets(window(number, 10 * MAX_FRAME))
    talk.sent()
    talk.gets(window(0, 6 * MAX_FRAME))
    assert [each[:8] for each in talk.sent()] == [
        "1 DATA a", "3 DATA b", "5 DATA c", "1 DATA a", "3 DATA b", "5 DATA c",
    ]  # fmt: skip


def test_room_that_comes_bit_by_bit_is_shared_as_well() -> None:
    talk = answering(1, 3, 5)
    machine = talk.machine
    machine.send_data(1, b"z" * DEFAULT_WINDOW)
    for number, body in ((1, b"a"), (3, b"b"), (5, b"c")):
        talk.gets(window(number, 10 * MAX_FRAME))
        machine.send_data(number, body * (2 * MAX_FRAME))
    talk.sent()
    said = []
    for _ in range(6):
        talk.gets(window(0, SMALL_UPDATE))
        said += [each[:8] for each in talk.sent()]
    assert said == ["1 DATA a", "3 DATA b", "5 DATA c"] * 2


def test_a_stream_that_catches_up_may_go_on_or_have_others_reset() -> None:
    talk = answering(1, 3, 5, first=settings((4, 0)))
    machine = talk.machine
    for number in (1, 3, 5):
        machine.send_data(number, b"x")
    talk.sent()

    def reset_another(talk: ServerTalk, stream: int) -> None:
        talk.machine._out.append(talk.machine.reset(3))
        talk.machine._out.append(talk.machine.send_data(1, b"yz"))

    talk.at_catching_up = reset_another
    talk.gets(settings((4, 2)))
    assert talk.sent() == [
        "SETTINGS ACK", "1 DATA x", "3 RST CANCEL", "5 DATA x", "1 DATA y",
    ]  # fmt: skip


def test_a_stream_that_catches_up_goes_on_behind_those_that_wait() -> None:
    """I12: it may have much more to send than the others."""
    talk = answering(1, 3, 5)
    machine = talk.machine
    machine.send_data(1, bytes(DEFAULT_WINDOW))
    for number in (1, 3, 5):
        talk.gets(window(number, 10 * MAX_FRAME))
        machine.send_data(number, b"x" * 2)
    talk.sent()

    def goes_on(talk: ServerTalk, stream: int) -> None:
        if stream == 1:
            talk.machine._out.append(talk.machine.send_data(1, b"y" * MAX_FRAME))
            talk.machine._out.append(talk.machine.send_data(5, b"z"))

    talk.at_catching_up = goes_on
    assert talk.gets(window(0, 1000)) == ["1 caught up", "3 caught up"]
    assert talk.sent() == ["1 DATA xx", "3 DATA xx", "5 DATA xx", "1 DATA " + "y" * 994]
    assert talk.gets(window(0, 10)) == ["5 caught up"]
    assert talk.sent() == ["5 DATA z", "1 DATA " + "y" * 9]


class Counted(dict[int, None]):
    """Streams that wait, and how often they were looked through."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "frames",
    [
        window(0, SMALL_UPDATE) * 1000,
        b"".join(window(number, 1) for number in range(1, 200, 2)) * 10,
        settings(*[(4, 0), (4, 1)] * 16) * 7,
        settings((4, 1)) + settings((4, 0)),
    ],
)
def test_streams_that_wait_are_looked_through_once_for_all_the_room_of_a_go(frames: bytes) -> None:
    """I12: it cost as many looks as there were frames, or settings in them."""
    talk = answering(*range(1, 200, 2), first=settings((4, 0)))
    machine = talk.machine
    for number in range(1, 200, 2):
        machine.send_data(number, bytes(1000))
    machine._waiting = waiting = Counted(machine._waiting)
    machine.refill()
    talk.gets(frames)
    assert not machine.behind
    assert 1 <= waiting.looks <= 3
    machine.send_data(1, b"x")  # it waits, and no room has come
    assert waiting.looks <= 3


def test_room_that_comes_while_frames_wait_for_the_next_turn_is_used_at_once() -> None:
    talk = answering(1, 3, first=settings((4, 0)))
    for number in (1, 3):
        talk.machine.send_data(number, b"x")
    talk.sent()
    assert talk.gets(window(1, 5000) * WORK_AT_ONCE + window(3, 5000)) == ["1 caught up"]
    assert talk.sent() == ["1 DATA x"]
    assert talk.machine.behind
    talk.machine.read_on()
    assert talk.reported() == ["3 caught up"]
    assert talk.sent() == ["3 DATA x"]


def test_data_is_sent_before_what_waits_where_its_stream_and_the_connection_have_room() -> None:
    """A request and room for other streams may come at once."""
    talk = answering(1, first=settings((4, 0)))
    talk.machine.send_data(1, b"x")
    talk.sent()
    talk.do = lambda talk, stream: talk.machine._out.append(
        talk.machine.begin_response(stream, OK, [], -1)
        + talk.machine.send_data(stream, b"abc")
        + talk.machine.send_data(1, b"y")
    )
    assert talk.gets(settings((4, 2)) + get(3)) == ["3 GET /a", "1 caught up"]
    assert talk.sent() == [
        "SETTINGS ACK", "3 HEADERS :status=200", "1 DATA x", "3 DATA ab", "1 DATA y",
    ]  # fmt: skip


def test_the_connection_may_be_closed_when_a_stream_has_caught_up() -> None:
    talk = answering(1, 3, first=settings((4, 0)))
    for number in (1, 3):
        talk.machine.send_data(number, b"x")
    talk.at_catching_up = lambda talk, stream: talk.machine.close()
    assert talk.gets(settings((4, 9))) == ["1 caught up"]


def test_a_reset_lets_go_of_what_waits() -> None:
    talk = answering(1, 3, first=settings((4, 0)))
    for number in (1, 3):
        talk.machine.send_data(number, b"x" * 1000)
    assert talk.machine.unsent == 2000
    assert talk.gets(rst(1)) == ["1 lost"]
    talk.machine.reset(3)
    assert talk.machine.unsent == 0
    talk.sent()
    talk.gets(settings((4, 5000)))
    assert talk.sent() == ["SETTINGS ACK"]


def test_a_response_that_waits_when_the_request_is_not_whole_ends_by_a_reset() -> None:
    talk = ServerTalk.greeted()
    assert talk.gets(settings((4, 0)) + post()) == ["1 POST /a"]
    talk.machine.send_reply(1, NOPE)
    assert talk.gets(data(1, b"x")) == [], "the rest of the request is of no use"
    talk.sent()
    talk.gets(window(1, 9000))
    assert talk.sent() == ["1 DATA no END", "1 RST NO_ERROR"]


@pytest.mark.parametrize("length", [MAX_KNOWN_LINE, MAX_KNOWN_LINE + 1])
def test_lines_that_were_written_before_are_remembered(length: int) -> None:
    talk = ServerTalk.greeted()
    line = b"A: ".ljust(length - 2, b"x") + b"\r\n"
    for number in (1, 3):
        talk.gets(get(number))
        talk.machine.begin_response(number, OK, [line], 0)
    assert (line in talk.machine._lines) == (length <= MAX_KNOWN_LINE)


def test_few_lines_are_remembered() -> None:
    """I9."""
    talk = answering(1)
    for number in range(3 * MAX_KNOWN_LINES):
        talk.machine._encode(b"A: %d\r\n" % number)
        assert len(talk.machine._lines) <= MAX_KNOWN_LINES


def test_few_resets_are_remembered() -> None:
    """I9: a frame of a stream that was reset long ago is answered, and counted."""
    talk = ServerTalk.greeted()
    for number in range(1, 2 * MAX_FORGOTTEN + 4, 2):
        talk.gets(get(number))
        talk.machine.reset(number)
    assert len(talk.machine._forgotten) == MAX_FORGOTTEN
    talk.sent()
    talk.gets(data(2 * MAX_FORGOTTEN + 3, b"x") + data(1, b"x"))
    assert talk.sent() == ["1 RST STREAM_CLOSED"]


def test_a_stream_of_small_messages_makes_up_for_the_windows_that_answer_them() -> None:
    """I12. The control: the same windows without a message are waste."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    talk.machine.begin_response(1, OK, [], -1)
    windows = window(1, 9) + window(0, 9)
    for _ in range(MAX_WASTE):
        talk.machine.send_data(1, b"message")
        talk.machine.receive(memoryview(windows))
    talk.sent()
    assert talk.fails(*[windows] * MAX_WASTE) == "ENHANCE_YOUR_CALM"
