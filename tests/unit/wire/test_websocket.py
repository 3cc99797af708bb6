"""Frames of an origin are passed as they came, with a payload that can be searched (I7)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.websocket import (
    ClientFrames,
    FramePiece,
    FrameReader,
    accept_for,
    valid_key,
    write_close,
)

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(
    payload: bytes, opcode: int = TEXT, *, final: bool = True, width: int | None = None
) -> bytes:
    """One frame, its length in the shortest form unless `width` says otherwise."""
    size = len(payload)
    if width is None:
        width = 0 if size < 126 else 2 if size < 1 << 16 else 8
    length = (
        bytes([126 if width == 2 else 127]) + size.to_bytes(width, "big")
        if width
        else bytes([size])
    )
    return bytes([opcode | 0x80 * final]) + length + payload


def read(data: bytes, sizes: list[int]) -> list[FramePiece]:
    """Feed in pieces of these sizes, and then the rest."""
    reader, pieces, at = FrameReader(), [], 0
    for size in [*sizes, len(data)]:
        pieces += reader.feed(data[at : at + size])
        at += size
    return pieces


def messages(pieces: list[FramePiece]) -> tuple[list[bytes], list[bytes]]:
    """Whole messages, and the payloads of control frames."""
    whole, controls, current = [], [], b""
    for piece in pieces:
        if piece.control:
            controls.append(piece.payload)
            continue
        current += piece.payload
        if piece.ends_message:
            whole.append(current)
            current = b""
    assert not current
    return whole, controls


SIZES = st.lists(st.integers(0, 300), max_size=20)
PAYLOADS = st.binary(max_size=200)
MESSAGES = st.lists(
    st.tuples(st.lists(PAYLOADS, min_size=1, max_size=3), st.booleans()), max_size=4
)


def test_the_handshake_of_the_rfc_is_answered_as_there() -> None:
    assert accept_for(KEY) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"x",
        KEY[:-1],
        KEY + b"=",
        b" " + KEY,
        KEY + b"\n",
        KEY.replace(b"Q==", b"R=="),
        KEY.replace(b"G", b"-"),
        KEY.replace(b"G", b"\x00"),
        KEY[:-4] + KEY,
    ],
)
def test_a_key_is_sixteen_bytes_in_base64(key: bytes) -> None:
    assert valid_key(KEY)
    assert not valid_key(key)


@given(MESSAGES, SIZES)
def test_messages_are_the_same_however_they_arrive(
    sent: list[tuple[list[bytes], bool]], sizes: list[int]
) -> None:
    """I7: no cut hides a part of a payload, and nothing is changed."""
    data = b""
    for parts, pinged in sent:
        for number, part in enumerate(parts):
            opcode = CONTINUATION if number else BINARY
            data += frame(part, opcode, final=number == len(parts) - 1)
            data += frame(b"still?", PING) if pinged else b""
    data += frame(b"\x03\xe8bye", CLOSE)
    pieces = read(data, sizes)
    assert b"".join(piece.data for piece in pieces) == data
    assert all(piece.data.endswith(piece.payload) for piece in pieces)
    whole, controls = messages(pieces)
    assert whole == [b"".join(parts) for parts, _ in sent]
    assert controls == [b"still?"] * sum(len(p) for p, pinged in sent if pinged) + [b"\x03\xe8bye"]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 200_000])
def test_each_length_is_read_in_its_form(size: int) -> None:
    data = frame(b"x" * size)
    assert read(data, []) == [FramePiece(data, b"x" * size, ends_message=True, control=False)]


def test_payload_leaves_as_it_comes_and_is_not_copied() -> None:
    reader = FrameReader()
    data = frame(b"x" * 100_000)
    (first,) = reader.feed(data[:10])
    assert (first.data, first.payload, first.ends_message) == (data[:10], b"", False)
    part = data[10:-1]
    (second,) = reader.feed(part)
    assert second.data is part
    assert second.payload is part
    (third,) = reader.feed(b"x")
    assert third.ends_message


def test_a_control_frame_comes_whole() -> None:
    """I7: it is searched alone, since it may stand within a message."""
    reader = FrameReader()
    data = frame(b"still?", PING)
    for octet in data[:-1]:
        assert reader.feed(bytes([octet])) == []
    assert reader.feed(data[-1:]) == [FramePiece(data, b"still?", ends_message=True, control=True)]


@pytest.mark.parametrize(
    "data",
    [
        # RSV bits: permessage-deflate would hide a secret.
        bytes([0xC1, 1]) + b"x",
        bytes([0xA1, 1]) + b"x",
        bytes([0x91, 1]) + b"x",
        bytes([0xC9, 0]),
        # Opcodes without a meaning.
        *(frame(b"x", opcode) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
        # Masked, as only a client may.
        bytes([0x81, 0x81]) + b"\0\0\0\0x",
        bytes([0x81, 0xFE]) + b"\0\x80",
        # Lengths not in their shortest form, or too large.
        frame(b"x" * 125, width=2),
        frame(b"", width=2),
        frame(b"x" * 126, width=8),
        frame(b"x" * 65535, width=8),
        bytes([0x82, 127]) + (1 << 63).to_bytes(8, "big"),
        bytes([0x82, 127]) + b"\xff" * 8,
        # Control frames that are long, in fragments, or close with half a reason.
        frame(b"x" * 126, PING),
        frame(b"x" * 126, CLOSE),
        frame(b"x" * 65536, PONG),
        frame(b"x", PING, final=False),
        frame(b"\x03", CLOSE),
        # Fragments out of order.
        frame(b"x", CONTINUATION),
        frame(b"x", CONTINUATION, final=False),
        frame(b"x", TEXT, final=False) + frame(b"y", TEXT),
        frame(b"x", TEXT, final=False) + frame(b"y", BINARY, final=False),
        frame(b"x") + frame(b"y", CONTINUATION),
        # Nothing comes after the end.
        frame(b"", CLOSE) + frame(b"x"),
        frame(b"", CLOSE) + frame(b"", CLOSE),
    ],
)
def test_a_frame_that_a_client_might_read_otherwise_is_refused(data: bytes) -> None:
    """I7."""
    for sizes in ([], [1], [2], [3], [4], [1] * 20):
        assert messages(read(frame(b"x") + frame(b"", CLOSE), sizes)) == ([b"x"], [b""])
        with pytest.raises(Malformed):
            read(data, sizes)


def test_the_end_is_told() -> None:
    reader = FrameReader()
    reader.feed(frame(b"x", PING))
    assert not reader.closed
    reader.feed(frame(b"\x03\xe8", CLOSE))
    assert reader.closed


def test_the_largest_frame_is_not_waited_for() -> None:
    """I9: whatever length is announced, nothing is held."""
    start = bytes([0x82, 127]) + (2**63 - 1).to_bytes(8, "big")
    assert read(start + b"x", []) == [
        FramePiece(start + b"x", b"x", ends_message=False, control=False)
    ]


@given(st.lists(st.binary(max_size=30) | PAYLOADS.map(frame), max_size=6))
def test_any_bytes_are_read_or_refused(parts: list[bytes]) -> None:
    """What was passed before a refusal is a part of what came, in order."""
    reader, passed = FrameReader(), b""
    with contextlib.suppress(Malformed):
        for part in parts:
            passed += b"".join(piece.data for piece in reader.feed(part))
    assert b"".join(parts).startswith(passed)


# A client's frames


def masked(
    payload: bytes, opcode: int = TEXT, *, final: bool = True, key: bytes = b"k3y!"
) -> bytes:
    """One frame of a client's."""
    plain = frame(payload, opcode, final=final)
    head = len(plain) - len(payload)
    hidden = bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))
    return plain[:1] + bytes([plain[1] | 0x80]) + plain[2:head] + key + hidden


def heard(data: bytes, size: int) -> tuple[bytes, list[bytes]]:
    """The text and the control payloads, fed in pieces of this size."""
    frames, text, controls = ClientFrames(), b"", []
    for at in range(0, len(data), size):
        more, other = frames.feed(data[at : at + size])
        text += more
        controls += other
    return text, controls


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1 << 20])
@pytest.mark.parametrize("long", [0, 3, 126, 70_000])
def test_a_clients_payloads_are_unmasked_in_whatever_pieces(size: int, long: int) -> None:
    if size < 5 and long > 1000:
        long = 1000
    data = (
        masked(b"one", final=False)
        + masked(b"ping", PING, key=b"\0\1\2\3")
        + masked(b"", CONTINUATION, final=False)
        + masked(b"x" * long, CONTINUATION, key=b"abcd")
        + masked(b"", CLOSE)
    )
    assert heard(data, size) == (b"one" + b"x" * long, [b"ping", b""])


@pytest.mark.parametrize(
    "data",
    [
        frame(b"x"),  # not masked
        masked(b"x", TEXT | 0x40),  # compressed, which was not agreed on
        masked(b"x", 3),
        masked(b"x" * 126, PING),
        bytes([0x81, 0xFE, 0, 1]) + b"mask",
    ],
)
def test_a_clients_frame_that_cannot_be_read_is_refused(data: bytes) -> None:
    """Otherwise what follows it would not be searched."""
    assert heard(masked(b"x"), 1) == (b"x", [])
    with pytest.raises(Malformed):
        heard(data, 1)


@given(st.lists(st.binary(max_size=30) | PAYLOADS.map(masked), max_size=6))
def test_any_bytes_of_a_client_are_read_or_refused(parts: list[bytes]) -> None:
    frames = ClientFrames()
    with contextlib.suppress(Malformed):
        for part in parts:
            frames.feed(part)


def test_a_closing_frame_has_the_words_that_fit() -> None:
    assert write_close(1008, "no") == b"\x88\x04\x03\xf0no"
    long = write_close(1008, "é" * 200)
    assert long[1] == len(long) - 2 <= 125
    assert long[4:].decode() == "é" * 61


def test_a_reader_knows_whether_it_is_between_two_frames() -> None:
    reader, known = FrameReader(), []
    for piece in (b"\x81\x02a", b"b", b"\x81"):
        reader.feed(piece)
        known.append(reader.between_frames)
    assert known == [False, True, False]
