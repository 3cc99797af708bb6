"""Packets are cut where one reading of their lengths says, and nowhere else (I4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.pkt_line import (
    DELIM,
    FLUSH,
    MAX_DATA,
    MAX_PACKET,
    Marker,
    Packet,
    PacketReader,
    chomp,
    encode,
    read_packets,
)

MARKED = {Marker.FLUSH: FLUSH, Marker.DELIM: DELIM, Marker.RESPONSE_END: b"0002"}


def written(packets: list[Packet]) -> bytes:
    return b"".join(MARKED[p] if isinstance(p, Marker) else encode(p) for p in packets)


@given(
    st.lists(st.one_of(st.binary(max_size=300), st.sampled_from(Marker)), max_size=8),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_packets_come_out_as_they_went_in_wherever_the_bytes_are_cut(
    packets: list[Packet], sizes: list[int]
) -> None:
    data, reader, at = written(packets), PacketReader(), 0
    found: list[Packet] = []
    for size in [*sizes, len(data)]:
        found += reader.feed(data[at : at + size])
        at += size
    assert found == packets
    assert reader.held == b""
    assert read_packets(data) == packets


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_give_packets_that_are_those_bytes_or_are_refused(data: bytes, cut: int) -> None:
    reader = PacketReader()
    try:
        packets = reader.feed(data[:cut]) + reader.feed(data[cut:])
    except Malformed:
        return
    assert written(packets) + reader.held == data


@pytest.mark.parametrize(
    "length",
    [b"0x1f", b"+01f", b" 01f", b"1_f0", b"01f\n", b"001F", b"\xb2\xb2\xb2\xb2", b"zzzz", b"00 5"],
)
def test_a_length_is_four_lower_case_hex_digits(length: bytes) -> None:
    """I4: what two readers take for two lengths is refused; the plain spelling is read."""
    with pytest.raises(Malformed, match="lower-case hex"):
        PacketReader().feed(length + b"x" * 600)
    assert PacketReader().feed(b"001f" + b"x" * 27) == [b"x" * 27]


def test_the_length_three_is_refused_and_four_is_an_empty_packet() -> None:
    with pytest.raises(Malformed, match="length 3"):
        PacketReader().feed(b"0003")
    assert PacketReader().feed(b"0004") == [b""]


def test_a_packet_has_a_largest_size_before_its_data_comes() -> None:
    """I9: the largest packet passes; one byte more is refused by its length alone."""
    whole = encode(b"x" * MAX_DATA)
    assert len(whole) == MAX_PACKET
    assert PacketReader().feed(whole) == [b"x" * MAX_DATA]
    with pytest.raises(Malformed, match="at most 65520"):
        PacketReader().feed(b"fff1")
    with pytest.raises(Malformed, match="at most"):
        encode(b"x" * (MAX_DATA + 1))


def test_what_follows_a_taken_packet_is_left_as_it_is() -> None:
    reader = PacketReader()
    reader.add(b"0000PACK\x00")
    assert reader.take() is Marker.FLUSH
    assert reader.held == b"PACK\x00"


@pytest.mark.parametrize("cut", [b"0", b"000", b"0005", b"0009done"])
def test_a_complete_body_does_not_end_within_a_packet(cut: bytes) -> None:
    with pytest.raises(Malformed, match="cut"):
        read_packets(b"0000" + cut)
    assert read_packets(b"0009done\n0000") == [b"done\n", Marker.FLUSH]


def test_a_complete_body_has_as_many_packets_as_it_may() -> None:
    """I9: a small compressed body may be millions of them."""
    assert read_packets(b"0004" * 3, 3) == [b""] * 3
    with pytest.raises(Malformed, match="at most 3"):
        read_packets(b"0004" * 4, 3)


def test_one_line_feed_ends_a_text_and_a_second_belongs_to_it() -> None:
    assert [chomp(x) for x in (b"a\n", b"a", b"a\n\n", b"", b"\n")] == [
        b"a",
        b"a",
        b"a\n",
        b"",
        b"",
    ]
