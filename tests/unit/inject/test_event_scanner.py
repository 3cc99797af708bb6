"""An event stream is searched event by event, and an event does not wait for the next (I7)."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.event_scanner import EventScanner
from keyhole.inject.scrub import Needles
from keyhole.model.errors import ResponseUnfit
from tests.rigs.inject.events import message

SECRET, STAND_IN = (
    "sk-test-0123456789abcdefghijklmnopqrstuv",
    "keyhole-ABCDEFGHIJKLMNOPQRSTUVWXYZ012345",
)
NEEDLES = Needles.of(SECRET, STAND_IN)
PLAIN = [message(b"", b'{"bytes":"aGVsbG8"}' + bytes([number])) for number in range(256)]
"""Events with all kinds of checksums at their ends."""


def scanned(*pieces: bytes) -> bytes:
    scanner = EventScanner(NEEDLES)
    return b"".join(map(scanner.feed, pieces)) + scanner.end()


def test_an_event_goes_on_whole_whatever_it_ends_with() -> None:
    """Control: in any other body, what could be the beginning of a token waits."""
    scanner = EventScanner(NEEDLES)
    for event in PLAIN:
        assert scanner.feed(event) == event
    assert any(event[-1:].isalnum() for event in PLAIN)
    assert EventScanner(NEEDLES).feed(b"no events, but text") == b"no events, but "
    assert scanner.hits == 0


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(0, 255))
def test_a_secret_is_replaced_however_the_events_are_cut(sizes: list[int], number: int) -> None:
    held = message(b"", b'{"key":"' + SECRET.encode() + b'"}')
    whole, at = PLAIN[number] + held + PLAIN[0], 0
    pieces: list[bytes] = []
    while at < len(whole):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(whole[at : at + size])
        at += size
    found = scanned(*pieces)
    assert found == whole.replace(SECRET.encode(), STAND_IN.encode())
    assert SECRET.encode() not in found


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    "before",
    [b"", b"\0", b"\0\0\0", b"\0\0\0\x0f", b"\xff\xff\xff\xff", b"\x01\0\0\0", b"\0\0\0\x14abc"],
)
def test_a_body_that_is_no_event_stream_is_searched_all_the_same(before: bytes, step: int) -> None:
    """Also a secret that begins in the bytes of a length, or in an event that is cut."""
    body = before + SECRET.encode() + b" and more " + SECRET.encode()
    found = scanned(*(body[at : at + step] for at in range(0, len(body), step)))
    assert SECRET.encode() not in found
    assert len(found) == len(body)


def test_replaced_secrets_are_counted() -> None:
    scanner = EventScanner(NEEDLES)
    scanner.feed(message(b"", SECRET.encode()) * 2)
    assert scanner.hits == 2


def forged(text: bytes) -> bytes:
    """An event of this text, the last four bytes of which are its checksum: eight bytes of it are
    chosen so. A checksum is linear, so they are found bit by bit."""
    start, rest, wanted = (len(text) + 20).to_bytes(4, "big"), text[:-4], text[-4:]

    def summed(chosen: int) -> int:
        return zlib.crc32(start + b"A" * 8 + chosen.to_bytes(8, "big") + rest)

    rows: dict[int, tuple[int, int]] = {}
    for bit in range(64):
        value, chosen = summed(1 << bit) ^ summed(0), 1 << bit
        while value and value.bit_length() in rows:
            row = rows[value.bit_length()]
            value, chosen = value ^ row[0], chosen ^ row[1]
        if value:
            rows[value.bit_length()] = value, chosen
    left, solution = int.from_bytes(wanted, "big") ^ summed(0), 0
    while left:
        row = rows[left.bit_length()]
        left, solution = left ^ row[0], solution ^ row[1]
    return start + b"A" * 8 + solution.to_bytes(8, "big") + text


def passed_until_cut(body: bytes, step: int) -> bytes:
    scanner, passed = EventScanner(NEEDLES), b""
    try:
        for at in range(0, len(body), step):
            passed += scanner.feed(body[at : at + step])
    except ResponseUnfit:
        return passed
    raise AssertionError("the response is not cut")


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("guessed", [1, 2, 7])
def test_an_event_that_ends_in_the_middle_of_a_secret_ends_the_response(
    guessed: int, step: int
) -> None:
    """I7: the beginning of a secret can be guessed, or is known; so is what stands before."""
    before, secret = b"Authorization: Bearer ", SECRET.encode()
    for known in (0, guessed):
        event = forged(before + secret[:known])
        assert scanned(event) == event
        body = event + secret[known:] + b" and more"
        assert event.startswith(passed_until_cut(body, step))
