"""Messages of a client's WebSocket are held until they are whole, and bounded (I9)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Malformed
from keyhole.wire.client_messages import MAX_FRAGMENTS, ClientMessage, ClientMessages, write_text
from tests.rigs.gateway.frames import BINARY, CLOSE, PING, masked

MOST = 1000


def read(*pieces: bytes) -> list[ClientMessage]:
    reader = ClientMessages(MOST)
    found: list[ClientMessage] = []
    for piece in pieces:
        reader.feed(piece)
        while (one := reader.take()) is not None:
            found.append(one)
    return found


def test_a_message_is_whole_over_fragments_and_any_pieces() -> None:
    ping, close = masked(b"p", PING), masked(b"\x03\xe8", CLOSE)
    parts = masked(b"hel", final=False), masked(b"lo", 0, key=b"abcd")
    wire = parts[0] + ping + parts[1] + masked(b"x", BINARY) + close
    expected = [
        (ping, b"p", True, False),
        (parts[0] + parts[1], b"hello", False, True),
        (masked(b"x", BINARY), b"x", False, False),
        (close, b"\x03\xe8", True, False),
    ]
    assert read(wire) == expected
    assert read(*(wire[n : n + 1] for n in range(len(wire)))) == expected


def test_a_message_of_nothing_is_a_message() -> None:
    assert read(masked(b"")) == [(masked(b""), b"", False, True)]


def test_lengths_of_every_form_are_read() -> None:
    for size in (125, 126, 900, 70_000):
        reader = ClientMessages(1 << 20)
        wire = write_text(b"x" * size)
        reader.feed(wire[:7])
        assert reader.take() is None
        reader.feed(wire[7:])
        found = reader.take()
        assert found is not None
        assert (found.wire, found.payload, found.text) == (wire, b"x" * size, True)
        assert reader.held == 0


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"\x83\x80\0\0\0\0", "extension"),
        (b"\xc1\x80\0\0\0\0", "extension"),
        (b"\x81\x00", "not masked"),
        (masked(b"x", 0), "out of order"),
        (masked(b"x", final=False) + masked(b"y"), "out of order"),
        (masked(b"x", PING, final=False), "control frame"),
        (b"\x89\xfe\x00\x7e\0\0\0\0", "control frame"),
        (b"\x81\xfe\x03\xe9\0\0\0\0", "more than"),
        (masked(b"x" * 100, final=False) + masked(b"x" * 100, 0, final=False) * 9, "more than"),
        (b"\x81\xfe\x00\x01\0\0\0\0x", "shortest"),
    ],
    ids=["an opcode", "a reserved bit", "no mask", "a continuation of nothing", "a second message",
         "a cut control frame", "a long control frame", "too long", "too long in parts",
         "a length in a long form"],
)  # fmt: skip
def test_what_breaks_the_rules_or_bounds_is_refused(wire: bytes, why: str) -> None:
    """I9."""
    with pytest.raises(Malformed, match=why):
        read(wire)


def test_the_number_of_fragments_is_bounded() -> None:
    """I12."""
    reader = ClientMessages(1 << 20)
    reader.feed(masked(b"x", final=False) + masked(b"x", 0, final=False) * (MAX_FRAGMENTS - 1))
    assert reader.take() is None
    reader.feed(masked(b"x", 0))
    with pytest.raises(Malformed, match="too many frames"):
        reader.take()
