"""gRPC messages: a secret is replaced at its length, or the body cut; nothing waits (I7, I12)."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.message_scanner import MessageScanner
from keyhole.inject.scrub import Needles
from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "sk-live-0123456789abcdefghij"
STAND_IN = "kh-placeholder-000000000000"
RAW = SECRET.encode()
PACK: dict[bytes, Callable[[bytes], bytes]] = {b"gzip": gzip.compress, b"deflate": zlib.compress}


def message(body: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(body).to_bytes(4) + body


def scanner(encoding: bytes = b"") -> MessageScanner:
    return MessageScanner(Needles.of(SECRET, STAND_IN), encoding)


def passed(scan: MessageScanner, data: bytes, step: int) -> bytes:
    pieces = [scan.feed(data[at : at + step]) for at in range(0, len(data), step)]
    return b"".join(pieces) + scan.end()


def refusal(scan: MessageScanner, data: bytes) -> str:
    with pytest.raises(ResponseUnfit) as error:
        passed(scan, data, 7)
    return error.value.reason


@given(st.lists(st.binary(max_size=40), max_size=4), st.binary(max_size=9), st.integers(1, 60))
def test_a_secret_is_replaced_and_every_length_stays_true(
    others: list[bytes], around: bytes, step: int
) -> None:
    bodies = [*others, around + RAW + around, b""]
    scan = scanner()
    got = passed(scan, b"".join(map(message, bodies)), step)
    assert RAW not in got
    assert scan.hits == 1
    for body in bodies:
        assert got[:5] == message(body)[:5]
        assert (got[5 : 5 + len(body)] == body) is (RAW not in body)
        got = got[5 + len(body) :]
    assert not got


def test_a_message_that_is_whole_waits_for_nothing() -> None:
    """A call that goes both ways would stand still."""
    for encoding, data in (
        (b"", message(b"tokenlike")),
        (b"", message(b"")),
        (b"gzip", message(gzip.compress(b"tokenlike"), 1)),
        (b"gzip", message(b"", 1)),
        (b"", message(b"grpc-status: 0\r\n", 0x80)),
        (b"", message(b"{}", 2)),
    ):
        assert scanner(encoding).feed(data) == data


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("step", [1, 5, 6, 4096])
def test_a_compressed_message_passes_as_it_is_and_is_cut_with_a_secret(
    encoding: bytes, step: int
) -> None:
    clean = message(PACK[encoding](b"nothing to see " * 40), 1) + message(b"plain")
    assert passed(scanner(encoding), clean, step) == clean
    dirty = message(PACK[encoding](b"see: " + RAW), 1)
    assert refusal(scanner(encoding), clean + dirty) == Reason.SECRET_REFLECTED
    assert refusal(scanner(encoding), message(PACK[encoding](RAW), 0x81)) == Reason.SECRET_REFLECTED


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        (b"snappy", message(b"xyz", 1)),
        (b"identity", message(b"xyz", 1)),
        (b"", message(b"xyz", 1)),
        (b"gzip", message(b"not gzip at all", 1)),
        (b"gzip", message(gzip.compress(b"halved"), 1)[:-4]),
        (b"", message(b"xyz", 4)),
        (b"", message(b"xyz", 0x41)),
    ],
)
def test_a_message_that_cannot_be_searched_ends_the_body(encoding: bytes, data: bytes) -> None:
    assert refusal(scanner(encoding), data) == Reason.ENCODING_REFUSED
    # The control: messages that are not compressed pass whatever encoding was named.
    assert passed(scanner(encoding), message(b"xyz"), 3) == message(b"xyz")


def test_many_small_bombs_are_one_bomb() -> None:
    """I12: each decodes to less than what a single body may without being weighed."""
    bomb = message(gzip.compress(bytes(1000 * 1000)), 1)
    assert passed(scanner(b"gzip"), bomb, 4096) == bomb
    assert refusal(scanner(b"gzip"), bomb * 3) == Reason.ENCODING_REFUSED


def test_a_secret_that_begins_in_the_bytes_of_a_length_is_found() -> None:
    """I7: a body may have gRPC's type and be something else."""
    got = passed(scanner(), b"\0" + RAW, 4)
    assert len(got) == 1 + len(RAW)
    assert RAW not in got
    assert RAW[6:] not in got


def test_a_body_that_ends_in_the_midst_passes_as_far_as_it_came() -> None:
    for data in (b"\0\0", message(b"only a part")[:-3]):
        assert passed(scanner(), data, 2) == data


def test_what_was_replaced_is_counted() -> None:
    scan = scanner()
    assert RAW not in passed(scan, message(RAW) + message(b"x") + message(RAW), 7)
    assert scan.hits == 2
