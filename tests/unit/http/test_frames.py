"""Frames of HTTP/2 as they are written."""

from __future__ import annotations

import pytest

from keyhole.http.frames import (
    MAX_FRAME,
    PADDED,
    PREFACE,
    Code,
    ConnectionFault,
    Kind,
    Setting,
    StreamFault,
    data_frames,
    frame,
    goaway_frame,
    header_frames,
    reset_frame,
    settings_frame,
    unpadded,
    window_frame,
)


def test_a_frame_is_its_length_kind_flags_stream_and_payload() -> None:
    assert frame(Kind.PING, 1, 0, b"12345678") == b"\0\0\x08\x06\x01\0\0\0\0" + b"12345678"
    assert (
        frame(Kind.DATA, 0, 0x7FFFFFFF, bytes(0x012345))[:9] == b"\x01\x23\x45\0\0\x7f\xff\xff\xff"
    )


def test_the_frames_of_control() -> None:
    assert settings_frame({Setting.ENABLE_PUSH: 0}) == b"\0\0\x06\x04\0\0\0\0\0" + b"\0\x02\0\0\0\0"
    assert window_frame(3, 5) == b"\0\0\x04\x08\0\0\0\0\x03" + b"\0\0\0\x05"
    assert reset_frame(3, Code.CANCEL) == b"\0\0\x04\x03\0\0\0\0\x03" + b"\0\0\0\x08"
    assert goaway_frame(5, Code.NO_ERROR) == b"\0\0\x08\x07\0\0\0\0\0" + b"\0\0\0\x05\0\0\0\0"
    assert PREFACE.startswith(b"PRI * HTTP/2.0\r\n\r\n")


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(
    ("size", "sizes"), [(0, [0]), (1, [1]), (10, [10]), (11, [10, 1]), (20, [10, 10])]
)
def test_data_goes_in_frames_of_which_the_last_ends_the_stream(
    size: int, sizes: list[int], ended: bool
) -> None:
    whole = bytes(range(size))
    pieces = data_frames(1, memoryview(whole), 10, ended=ended)
    assert [len(piece) for piece in pieces[1::2]] == sizes
    assert b"".join(pieces[1::2]) == whole
    flags = [bytes(piece)[4] for piece in pieces[::2]]
    assert flags == [0] * (len(sizes) - 1) + [int(ended)]


@pytest.mark.parametrize("ended", [True, False])
def test_a_long_section_goes_on_in_continuations(ended: bool) -> None:
    assert header_frames(1, b"abc", 4, ended=ended) == frame(1, 4 | ended, 1, b"abc")
    assert header_frames(1, b"abcdefghi", 4, ended=ended) == (
        frame(1, int(ended), 1, b"abcd") + frame(9, 0, 1, b"efgh") + frame(9, 4, 1, b"i")
    )
    assert MAX_FRAME == 2**14


@pytest.mark.parametrize(
    ("payload", "data"), [(b"\0abc", b"abc"), (b"\2abc", b"a"), (b"\3abc", b""), (b"\0", b"")]
)
def test_padding_is_taken_off(payload: bytes, data: bytes) -> None:
    assert unpadded(memoryview(payload), PADDED) == data


@pytest.mark.parametrize("payload", [b"", b"\1", b"\4abc", b"\xffabc"])
def test_padding_beyond_the_end_is_an_error_of_the_connection(payload: bytes) -> None:
    with pytest.raises(ConnectionFault) as caught:
        unpadded(memoryview(payload), PADDED)
    assert caught.value.error is Code.PROTOCOL_ERROR
    # The control: without the flag it is data.
    assert unpadded(memoryview(payload), 0) == payload


def test_a_fault_has_a_code_and_a_reason() -> None:
    fault = StreamFault(Code.STREAM_CLOSED, "it is over")
    assert (fault.error, fault.why) == (Code.STREAM_CLOSED, "it is over")
