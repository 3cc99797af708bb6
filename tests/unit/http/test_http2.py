"""HTTP/2 on one connection: frames of control, floods of them, and what the halves share."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from keyhole.http.frames import MAX_FRAME, MAX_NUMBER, Kind
from keyhole.http.http2 import Http2Machine
from keyhole.http.http2_stream import (
    BYTES_OF_WORK,
    DEFAULT_WINDOW,
    MAX_SETTINGS,
    MAX_STREAMS,
    MAX_WASTE,
    WASTE_OF_A_RESET,
    WORK_AT_ONCE,
    WORK_OF_A_HEAD,
)
from tests.rigs.http.http2 import (
    ACK,
    END,
    END_HEADERS,
    NOPE,
    PREFACE,
    PRIORITY,
    ServerTalk,
    data,
    frame,
    get,
    goaway,
    headers,
    ping,
    post,
    priority,
    request,
    rst,
    section,
    settings,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def opened() -> ServerTalk:
    """A request with a body is under way."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    return talk


# ── frames ────────────────────────────────────────────────────────────────────────────────────────


def test_a_ping_is_answered() -> None:
    talk = ServerTalk.greeted()
    talk.gets(ping(b"abcdefgh"))
    assert talk.sent() == ["PING abcdefgh ACK"]
    talk.gets(ping(b"abcdefgh", ACK))
    assert talk.sent() == []


def test_settings_are_acknowledged_after_they_apply() -> None:
    talk = opened()
    talk.gets(settings((4, 1), (0xBEEF, 7), (1, 0), (6, 5), (3, 7), (5, MAX_FRAME), (2, 1), (8, 0)))
    assert talk.sent() == ["SETTINGS ACK"]
    assert talk.machine.streams[1].room == 1
    assert talk.machine.peer_streams == 7


def test_a_setting_of_windows_changes_open_streams_by_the_difference() -> None:
    talk = opened()
    talk.machine.send_reply(1, NOPE)
    talk.gets(post(3) + window(3, 5000) + settings((4, 100)) + settings((4, 200)))
    assert talk.machine.streams[3].room == 5200


@pytest.mark.parametrize("kind", [0xA, 0xBB, 0xFF])
def test_unknown_frames_are_ignored(kind: int) -> None:
    talk = opened()
    assert talk.gets(frame(kind, 0xFF, 1, b"x"), frame(kind, 0, 99), ping()) == []
    assert talk.sent() == ["PING 12345678 ACK"]


def test_priorities_are_ignored() -> None:
    """RFC 9113 §5.3.2; browsers send them for streams that they never begin."""
    talk = opened()
    talk.gets(priority(1, 3), priority(3, 0), priority(9, 11))
    assert talk.sent() == []


def test_a_priority_of_a_stream_that_is_over_is_reset_where_it_breaks_a_rule() -> None:
    talk = ServerTalk.greeted()
    talk.gets(get())
    talk.respond(1)
    talk.gets(priority(1, 1))
    assert talk.sent() == ["1 RST PROTOCOL_ERROR"]


def test_the_reserved_bit_of_a_stream_is_ignored() -> None:
    talk = ServerTalk.greeted()
    whole = bytearray(get())
    whole[5] |= 0x80
    assert talk.gets(bytes(whole)) == ["1 GET /a"]


def test_a_frame_may_come_byte_by_byte() -> None:
    talk = ServerTalk.greeted()
    whole = get()
    for at in range(len(whole) - 1):
        assert talk.gets(whole[at : at + 1]) == []
        assert talk.machine.mid_section
    assert talk.gets(whole[-1:]) == ["1 GET /a"]
    assert not talk.machine.mid_section


def test_a_window_is_never_larger_than_the_protocol_allows() -> None:
    talk = opened()
    assert talk.gets(window(1, MAX_NUMBER - DEFAULT_WINDOW)) == []
    assert talk.gets(window(1, 1)) == ["1 lost: a window is too large"]
    assert talk.sent() == ["1 RST FLOW_CONTROL_ERROR"]
    assert opened().fails(window(0, MAX_NUMBER)) == "FLOW_CONTROL_ERROR"
    assert opened().fails(window(0, MAX_NUMBER - DEFAULT_WINDOW)) == ""
    assert opened().fails(window(1, 5000) + settings((4, MAX_NUMBER))) == "FLOW_CONTROL_ERROR"


def test_after_goodbye_to_a_peer_that_broke_a_rule_nothing_is_left() -> None:
    talk = opened()
    talk.machine.send_reply(1, NOPE)
    talk.gets(post(3))
    talk.machine.pause(3)
    talk.gets(data(3, b"held"))
    assert talk.machine._count_held == 4
    assert talk.fails(frame(Kind.PING, 0, 0, b"short")) == "FRAME_SIZE_ERROR"
    assert not talk.machine.streams
    assert not talk.machine.behind
    assert not talk.machine.mid_section
    assert talk.machine._count_held == 0
    assert talk.gets(get(5)) == []
    assert talk.machine.take() == b""


def test_only_the_machine_of_one_side_can_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Http2Machine({})  # type: ignore[abstract]


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────


def test_many_frames_at_once_are_read_a_few_at_a_time() -> None:
    """I12: other connections have their turn between."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    came = talk.gets(data(1, b"x") * (WORK_AT_ONCE + 5))
    assert came == ["1 data " + "x" * WORK_AT_ONCE]
    assert talk.machine.behind
    talk.machine.read_on()
    assert talk.reported() == ["1 data xxxxx"]
    assert not talk.machine.behind


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (data(1, b"bc"), ["1 data abc"]),
        (data(1, b"bc", end=True), ["1 data abc", "1 end"]),
        (data(3, b"bc"), ["1 data a", "3 data bc"]),
        (data(1, b""), ["1 data a"]),
        (data(1, b"bc")[:-1], ["1 data a"]),
        (data(1, b"bc", padding=1), ["1 data a", "1 data bc"]),
        (ping(bytes(8)) + data(1, b"bc"), ["1 data a", "1 data bc"]),
    ],
)
def test_data_of_one_stream_that_comes_together_is_one_piece(
    behind: bytes, said: list[str]
) -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(1) + post(3))
    assert talk.gets(data(1, b"a") + behind) == said


def test_frames_of_data_that_are_joined_count_with_their_framing() -> None:
    """I9: a body in tiny frames is as large as it is on the wire."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    talk.gets(data(1, b"x") * 5)
    assert talk.machine.wire_size(1) == 5 * len(data(1, b"x"))


def test_data_that_is_joined_is_still_held_to_the_length_of_a_frame() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post())
    assert talk.fails(data(1, b"x") + frame(Kind.DATA, 0, 1, bytes(MAX_FRAME + 1)))


def test_heads_count_for_more() -> None:
    """I12."""
    talk = ServerTalk.greeted(lambda talk, stream: talk.sent(talk.machine.send_reply(stream, NOPE)))
    each = WORK_OF_A_HEAD + (len(get()) - 9) // BYTES_OF_WORK
    count = -(-WORK_AT_ONCE // each)
    heads = b"".join(get(number) for number in range(1, 2 * count + 4, 2))
    assert len(talk.gets(heads)) == count
    assert talk.machine.behind
    # What comes meanwhile waits behind.
    assert talk.gets(ping()) == [f"{2 * count + 1} GET /a", f"{2 * count + 3} GET /a"]
    assert talk.sent() == ["PING 12345678 ACK"]


LARGE = section(*request(("a", "x" * 9000)))


@pytest.mark.parametrize(
    "head",
    [
        lambda number: frame(Kind.HEADERS, END | END_HEADERS, number, LARGE),
        lambda number: (
            frame(Kind.HEADERS, END, number, LARGE[:100])
            + frame(Kind.CONTINUATION, END_HEADERS, number, LARGE[100:])
        ),
        # A stream that depends on itself is refused when its head was decoded.
        lambda number: frame(
            Kind.HEADERS,
            END | END_HEADERS | PRIORITY,
            number,
            struct.pack(">LB", number, 0) + LARGE,
        ),
    ],
)
def test_one_large_head_is_enough_at_once(head: Callable[[int], bytes]) -> None:
    """I12: Huffman code is read slowly."""
    talk = ServerTalk.greeted()
    talk.gets(b"".join(head(number) for number in (1, 3, 5)))
    for number in (1, 3):
        assert talk.machine.last == number
        assert talk.machine.behind
        talk.machine.read_on()
    assert talk.machine.last == 5
    assert not talk.machine.behind


def test_frames_count_for_the_streams_that_they_concern() -> None:
    """I12: a setting of windows changes all of them."""
    for flood in (settings((4, 1)), goaway(0)):
        for streams, turns in ((1, 1), (MAX_STREAMS, 10)):
            talk = ServerTalk.greeted()
            for number in range(1, 2 * streams, 2):
                talk.gets(post(number))
            talk.gets(flood * 100)
            while talk.machine.behind:
                talk.machine.read_on()
                turns -= 1
            assert 0 <= turns <= 1


def test_a_connection_may_be_closed_while_it_is_behind() -> None:
    talk = ServerTalk.greeted()
    talk.gets(post(), data(1, b"x") * (WORK_AT_ONCE + 5))
    talk.machine.close()
    talk.machine.read_on()
    assert talk.reported() == []


# ── floods ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "flood",
    [
        ping(),
        ping(flags=ACK),
        settings(),
        settings((4, 1)),
        frame(Kind.SETTINGS, ACK),
        priority(1, 3),
        goaway(0),
        frame(0xBB),
        window(0, 1),
        window(1, 1),
        rst(3),
        data(1, b""),
    ],
)
def test_floods_of_frames_that_carry_nothing_end_the_connection(flood: bytes) -> None:
    """I9. Some of them are part of a conversation; with time they are forgiven."""
    talk = ServerTalk.greeted()
    talk.gets(post(1) + get(3))
    talk.respond(3)
    talk.machine.refill()
    assert talk.fails(*[flood] * MAX_WASTE) == ""
    talk.sent()
    talk.machine.refill()
    assert talk.fails(*[flood] * MAX_WASTE) == ""
    assert talk.fails(flood) == "ENHANCE_YOUR_CALM"


def test_settings_of_one_frame_are_few() -> None:
    """I12."""
    most = settings(*[(4, 1)] * MAX_SETTINGS)
    assert opened().fails(most) == ""
    assert opened().fails(settings(*[(4, 1)] * (MAX_SETTINGS + 1))) == "ENHANCE_YOUR_CALM"
    # Each counts, however they are packed.
    assert opened().fails(*[most] * (MAX_WASTE // MAX_SETTINGS + 1)) == "ENHANCE_YOUR_CALM"
    assert opened().fails(*[most] * ((MAX_WASTE - 1) // MAX_SETTINGS)) == ""


def test_errors_of_streams_count_as_resets_do() -> None:
    """I9."""
    talk = ServerTalk.greeted()
    allowed = (MAX_WASTE - 1) // WASTE_OF_A_RESET
    faults = [get(number) + data(number, b"x") for number in range(1, 2 * MAX_WASTE, 2)]
    assert talk.fails(*faults[:allowed]) == ""
    assert talk.fails(faults[allowed]) == "ENHANCE_YOUR_CALM"


def test_what_a_connection_holds_for_streams_that_are_left_is_bounded() -> None:
    """I9: heads of thousands of streams, none of which goes on."""
    talk = ServerTalk.greeted()
    for number in range(1, 20_000, 2):
        talk.machine.refill()
        talk.machine.receive(memoryview(post(number)))
        talk.machine.take()
    assert len(talk.machine.streams) == MAX_STREAMS
    assert len(talk.machine._forgotten) <= 256


# ── what a client sends, and the error that it gets: the cases of h2spec, and some more ───────────

HEAD = headers(1, request(method="POST"), end=False)
WHOLE = get(1)
P, F, S, Z = "PROTOCOL_ERROR", "FLOW_CONTROL_ERROR", "STREAM_CLOSED", "FRAME_SIZE_ERROR"

CONNECTION_ERRORS = {
    # RFC 9113 §4
    "4.2 a frame beyond the maximum": (HEAD + frame(0, 0, 1, bytes(MAX_FRAME + 1)), Z),
    "4.2 headers beyond the maximum": (frame(1, 5, 1, bytes(MAX_FRAME + 1)), Z),
    "4.3 a section that cannot be read": (frame(1, 5, 1, b"\x20\x80"), "COMPRESSION_ERROR"),
    "4.3 a continuation of another stream": (frame(1, 1, 1) + frame(9, 4, 3), P),
    "4.3 another frame amid a section": (frame(1, 1, 1) + ping(), P),
    # §5.1: idle
    "5.1 data of an idle stream": (data(1, b"x"), P),
    "5.1 a reset of an idle stream": (rst(1), P),
    "5.1 a window of an idle stream": (window(1, 5000), P),
    "5.1 a continuation of an idle stream": (frame(9, 4, 1), P),
    # §5.1: closed
    "5.1 headers of a stream that is over": (HEAD + rst(1) + WHOLE, S),
    "5.1 a continuation of a stream that is over": (HEAD + rst(1) + frame(9, 4, 1), P),
    # §5.1.1
    "5.1.1 an even number": (get(2), P),
    "5.1.1 a smaller number": (get(5) + get(3), S),
    # §5.4.1, 5.5
    "5.5 an unknown frame amid a section": (frame(1, 1, 1) + frame(0xBB, 0, 1), P),
    # §5.3.1
    "5.3.1 an idle stream that depends on itself": (priority(3, 3), P),
    # §6.1
    "6.1 data of no stream": (data(0, b"x"), P),
    "6.1 padding beyond the end": (HEAD + frame(0, 8, 1, b"\x05abc"), P),
    "6.1 padding as long as the frame": (HEAD + frame(0, 8, 1, b"\x04abc"), P),
    "6.1 no length of the padding": (HEAD + frame(0, 8, 1, b""), P),
    # §6.2
    "6.2 headers of no stream": (get(0), P),
    "6.2 padding beyond the end": (frame(1, 0xD, 1, b"\x05abc"), P),
    "6.2 a priority that is cut off": (frame(1, 0x25, 1, b"abcd"), Z),
    # §6.3
    "6.3 a priority of no stream": (priority(0, 1), P),
    "6.3 a short priority of no stream": (frame(2, 0, 0, b"abcd"), Z),
    "6.3 a short priority of an idle stream": (frame(2, 0, 3, b"abcd"), Z),
    # §6.4
    "6.4 a reset of no stream": (rst(0), P),
    "6.4 a reset of another size": (HEAD + frame(3, 0, 1, b"abc"), Z),
    # §6.5
    "6.5 an acknowledgement with settings": (frame(4, 1, 0, bytes(6)), Z),
    "6.5 settings of a stream": (frame(4, 0, 1), P),
    "6.5 settings of a broken size": (frame(4, 0, 0, bytes(5)), Z),
    "6.5.2 pushes that are neither on nor off": (settings((2, 2)), P),
    "6.5.2 a window beyond the maximum": (settings((4, 2**31)), F),
    "6.5.2 frames below the minimum": (settings((5, MAX_FRAME - 1)), P),
    "6.5.2 frames beyond the maximum": (settings((5, 2**24)), P),
    "RFC 8441 §3 a setting that is neither on nor off": (settings((8, 2)), P),
    # §6.6
    "6.6 a promise": (HEAD + frame(5, 4, 1, b"\0\0\0\x02"), P),
    # §6.7
    "6.7 a ping of a stream": (frame(6, 0, 1, bytes(8)), P),
    "6.7 a ping of another size": (frame(6, 0, 0, bytes(6)), Z),
    # §6.8
    "6.8 goodbye of a stream": (frame(7, 0, 1, bytes(8)), P),
    "6.8 goodbye that is cut off": (frame(7, 0, 0, bytes(7)), Z),
    # §6.9
    "6.9 an update of nothing": (window(0, 0), P),
    "6.9 an update of another size": (frame(8, 0, 0, bytes(3)), Z),
    "6.9.1 an update beyond the maximum": (window(0, MAX_NUMBER) + window(0, MAX_NUMBER), F),
    "6.9.2 windows beyond the maximum": (
        HEAD + window(1, MAX_NUMBER - DEFAULT_WINDOW) + settings((4, DEFAULT_WINDOW + 1)),
        F,
    ),
    # §6.10
    "6.10 a continuation of nothing": (frame(9, 4, 1), P),
    "6.10 a continuation of no stream": (frame(1, 1, 1) + frame(9, 4, 0), P),
    "6.10 a continuation behind the end": (WHOLE + frame(9, 4, 1), P),
    "6.10 data amid a section": (HEAD + frame(1, 0, 1) + data(1, b"x"), P),
    "6.10 headers amid a section": (frame(1, 1, 1) + get(1), P),
    # RFC 7541
    "HPACK 2.3.3 an entry that there is not": (frame(1, 5, 1, b"\xff\x00"), "COMPRESSION_ERROR"),
    "HPACK 4.2 a table resized too late": (frame(1, 5, 1, b"\x82\x20"), "COMPRESSION_ERROR"),
    "HPACK 5.2 Huffman padding of eight bits": (
        frame(1, 5, 1, b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
        "COMPRESSION_ERROR",
    ),
    "HPACK 5.2 Huffman padding of zeros": (
        frame(1, 5, 1, b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
        "COMPRESSION_ERROR",
    ),
    "HPACK 5.2 Huffman code with its end": (
        frame(1, 5, 1, b"\x00\x85\xf2\xb2\x4a\x87\xff\xff\xff\xfa\x8d\x40"),
        "COMPRESSION_ERROR",
    ),
    "HPACK 6.1 entry zero": (frame(1, 5, 1, b"\x80"), "COMPRESSION_ERROR"),
    "HPACK 6.3 a table beyond the limit": (
        frame(1, 5, 1, b"\x3f\xe2\x1f\x82"),
        "COMPRESSION_ERROR",
    ),
}


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_an_error_of_the_connection(case: str) -> None:
    frames, code = CONNECTION_ERRORS[case]
    assert ServerTalk.greeted().fails(frames) == code


def test_a_preface_that_is_none() -> None:
    assert ServerTalk().fails(b"INVALID CONNECTION PREFACE\r\n\r\n") == P
    assert ServerTalk().fails(PREFACE + ping()) == P


LENGTH = ("content-length", "1")
STREAM_ERRORS = {
    "5.1 data behind the end": (WHOLE + data(1, b"x"), S),
    "5.1 headers behind the end": (WHOLE + headers(1, [("a", "b")]), S),
    "5.1 data of a stream that was reset": (HEAD + rst(1) + data(1, b"x"), S),
    "5.3.1 headers that depend on themselves": (
        frame(1, 0x25, 1, b"\0\0\0\x01\0" + HEAD[9:]),
        P,
    ),
    "5.3.1 a stream that depends on itself": (HEAD + priority(1, 1), P),
    "6.3 a priority of another size": (HEAD + frame(2, 0, 1, b"abcd"), Z),
    "6.9 an update of nothing": (HEAD + window(1, 0), P),
    "6.9.1 an update beyond the maximum": (HEAD + window(1, MAX_NUMBER), F),
    "8.1 a second head": (HEAD + headers(1, [("a", "b")], end=False), P),
    "8.1.1 an unknown pseudo-field": (headers(1, request((":test", "x"))), P),
    "8.1.2 a name in capitals": (headers(1, request(("X-Test", "ok"))), P),
    "8.1.2.1 a pseudo-field of a response": (headers(1, request((":status", "200"))), P),
    "8.1.2.1 a pseudo-field in trailers": (HEAD + headers(1, [(":method", "200")]), P),
    "8.1.2.1 a pseudo-field behind others": (
        headers(1, [("x-test", "ok"), *request()]),
        P,
    ),
    "8.1.2.2 Connection": (headers(1, request(("connection", "keep-alive"))), P),
    "8.1.2.2 TE": (headers(1, request(("te", "trailers, deflate"))), P),
    "8.1.2.3 an empty path": (headers(1, request(path="")), P),
    "8.1.2.3 no method": (headers(1, request()[1:]), P),
    "8.1.2.3 no scheme": (headers(1, [request()[0], *request()[2:]]), P),
    "8.1.2.3 no path": (headers(1, request()[:3]), P),
    "8.1.2.3 two methods": (headers(1, [(":method", "GET"), *request()]), P),
    "8.1.2.3 two schemes": (headers(1, [(":scheme", "https"), *request()]), P),
    "8.1.2.3 two paths": (headers(1, [(":path", "/"), *request()]), P),
    "8.1.2.6 a length that data does not have": (
        headers(1, request(LENGTH, method="POST"), end=False) + data(1, b"test", end=True),
        P,
    ),
    "8.1.2.6 a length that all data does not have": (
        headers(1, request(LENGTH, method="POST"), end=False)
        + data(1, b"test")
        + data(1, b"test", end=True),
        P,
    ),
    "8.5 CONNECT": (headers(1, [(":method", "CONNECT"), (":authority", "ok.example:443")]), P),
}


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_an_error_of_a_stream(case: str) -> None:
    """The connection serves another stream behind it."""
    frames, code = STREAM_ERRORS[case]
    talk = ServerTalk.greeted()
    talk.gets(frames)
    assert f"1 RST {code}" in talk.sent()
    assert 1 not in talk.machine.streams
    assert talk.gets(get(3)) == ["3 GET /a"]
    assert talk.respond(3)[-1] == "3 DATA hi END"


NO_ERRORS = {
    "4.1 an unknown kind": frame(0x16, 0, 0, bytes(8)),
    "4.1 flags that mean nothing": frame(6, 0x16, 0, bytes(8)),
    "4.1 a reserved bit": frame(6, 0, 2**31, bytes(8)),
    "4.2 a frame of the maximum": HEAD + frame(0, 0, 1, bytes(MAX_FRAME)),
    "5.1 a priority of an idle stream": priority(9, 0),
    "5.1 a window behind the end": WHOLE + window(1, 5000),
    "5.1 a reset behind the end": WHOLE + rst(1),
    "5.1 a priority behind the end": WHOLE + priority(1, 0),
    "5.1 a window of a stream that was reset": HEAD + rst(1) + window(1, 0),
    "6.1 data that is padding": HEAD + data(1, b"", padding=6),
    "6.5.3 unknown settings": settings((0xFF, 1)),
    "6.7 an answer to no ping": ping(flags=ACK),
    "6.8 goodbye with words": frame(7, 0, 0, bytes(8) + b"why"),
    "7 an unknown code of a goodbye": goaway(0, 0xFF),
    "7 an unknown code of a reset": HEAD + rst(1, 0xFF),
    "8.1 trailers": HEAD + data(1, b"x") + headers(1, [("x-test", "ok")]),
    "HPACK 4.2 two changes of the table": frame(1, 5, 1, b"\x20\x3f\xe1\x1f" + WHOLE[9:]),
}


@pytest.mark.parametrize("case", NO_ERRORS)
def test_what_is_no_error(case: str) -> None:
    """The control of the two tables above."""
    talk = ServerTalk.greeted()
    assert talk.fails(NO_ERRORS[case]) == ""
    assert not [words for words in talk.sent() if " RST " in words]
    talk.reported()
    assert talk.gets(get(3)) == ["3 GET /a"]


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_frame_that_comes_in_two_reads_goes_on_with_those_behind_it(cut: int) -> None:
    """Only this frame is put together, and its data is still joined with that of the next."""
    talk = ServerTalk.greeted()
    talk.gets(post())
    frames = data(1, b"held here") + data(1, b", and there") + data(1, b"!", end=True)
    assert talk.gets(frames[:cut]) == (["1 data held here"] if cut >= 18 else [])
    heard = talk.gets(frames[cut : cut + 1], frames[cut + 1 :])
    assert "".join(words.removeprefix("1 data ") for words in heard[:-1]).endswith(
        "held here, and there!" if cut < 18 else ", and there!"
    )
    assert heard[-1] == "1 end"


def test_what_waits_for_the_next_turn_is_read_before_what_comes_meanwhile() -> None:
    talk = ServerTalk.greeted()
    heads = b"".join(get(number) for number in range(1, 81, 2))
    assert 0 < len(talk.gets(heads)) < 40
    assert talk.gets(get(81)[:5])
    while talk.machine.behind:
        talk.machine.read_on()
    talk.gets(get(81)[5:])
    assert list(talk.heads) == list(range(1, 83, 2))
