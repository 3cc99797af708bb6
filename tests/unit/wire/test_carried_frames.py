"""Frames between a remote door and its gateway: one reading, bounded, whatever comes (I9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.carried_frames import (
    MAX_PAYLOAD,
    CarriedFrame,
    CarriedFrameReader,
    FrameKind,
    credit_frame,
    open_frame,
)

FRAMES = [
    open_frame(1, "198.18.0.7", 443),
    open_frame(7, "2001:db8::1", 22),
    CarriedFrame(FrameKind.DATA, 1, b"x" * MAX_PAYLOAD),
    credit_frame(1, 2**32 - 1),
    CarriedFrame(FrameKind.END, 1),
    CarriedFrame(FrameKind.RESET, 2**32 - 1),
    CarriedFrame(FrameKind.QUESTION, 3, b"q"),
    CarriedFrame(FrameKind.WORD, 0, b"{}"),
    CarriedFrame(FrameKind.BEAT),
]


def test_frames_are_read_as_they_were_written() -> None:
    data = b"".join(each.written() for each in FRAMES)
    assert list(CarriedFrameReader().feed(data)) == FRAMES
    assert FRAMES[0].destination == ("198.18.0.7", 443)
    assert FRAMES[1].destination == ("2001:db8::1", 22)
    assert FRAMES[3].credit == 2**32 - 1


def test_a_frame_is_read_when_it_is_whole() -> None:
    reader, data = CarriedFrameReader(), CarriedFrame(FrameKind.DATA, 1, b"xyz").written()
    assert [len(list(reader.feed(data[at : at + 1]))) for at in range(len(data))] == [
        *[0] * (len(data) - 1), 1,
    ]  # fmt: skip


@given(st.lists(st.integers(1, 40_000), max_size=30))
def test_the_boundaries_of_what_comes_do_not_matter(sizes: list[int]) -> None:
    data = b"".join(each.written() for each in FRAMES)
    reader, found, at = CarriedFrameReader(), [], 0
    for size in (*sizes, len(data)):
        found += list(reader.feed(data[at : at + size]))
        at += size
    assert found == FRAMES


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00\x01\x00\x00",
        b"\x0a\x00\x00\x00\x01\x00\x00",
        b"\x02\x00\x00\x00\x01\xff\xff",
        b"\x02\x00\x00\x00\x00\x00\x01x",
        b"\x08\x00\x00\x00\x01\x00\x01x",
        b"\x01\x00\x00\x00\x01\x00\x05",
        b"\x03\x00\x00\x00\x01\x00\x05",
        b"\x04\x00\x00\x00\x01\x00\x01",
        b"\x02\x00\x00\x00\x01\x00\x00",
    ],
)
def test_a_frame_that_breaks_a_rule_ends_the_connection(data: bytes) -> None:
    """Before its payload is waited for."""
    with pytest.raises(Malformed):
        list(CarriedFrameReader().feed(data))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        found = list(CarriedFrameReader().feed(data))
    except Malformed:
        return
    assert sum(len(each.written()) for each in found) <= len(data)
