"""Every request of a connection is judged, whatever stands between them and however it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.wire.httpstream import MAX_CHUNK_LINE, MAX_HEAD, HttpStream
from keyhole.wire.step import Step

if TYPE_CHECKING:
    from keyhole.wire.httphead import Head

GET = b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"
EVIL = GET.replace(b"ok.", b"evil.")
POST = b"POST / HTTP/1.1\r\nHost: ok.example\r\n%s\r\n\r\n"
SIZED = POST % b"Content-Length: 5" + b"hello"
CHUNKED = POST % b"Transfer-Encoding: chunked"
CHUNKS = CHUNKED + b"5\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n"


def judge(head: Head) -> str | None:
    """Only ok.example."""
    return None if head.host.name == "ok.example" else "host"


def run(data: bytes, size: int) -> Step:
    """Feed in pieces; the whole that was passed, and the last word."""
    stream = HttpStream(judge)
    passed = b""
    for index in range(0, len(data), size):
        step = stream.feed(data[index : index + size])
        passed += step.forward
        if step.refusal is not None:
            assert stream.why
            return Step(passed, refusal=step.refusal)
    return Step(passed)


SIZES = st.integers(1, 200)


HONEST = [GET, GET * 3, SIZED + GET, CHUNKS + GET, CHUNKS + SIZED + CHUNKS]


@pytest.mark.parametrize("data", HONEST)
@given(size=SIZES)
def test_honest_requests_pass_unchanged(data: bytes, size: int) -> None:
    assert run(data, size) == Step(data)


@pytest.mark.parametrize("before", [b"", GET, SIZED, CHUNKS])
@given(size=SIZES)
def test_a_foreign_request_is_refused_wherever_it_stands(before: bytes, size: int) -> None:
    step = run(before + EVIL, size)
    assert step.refusal == "host"
    assert b"evil" not in step.forward


def test_a_request_in_a_body_is_a_body() -> None:
    data = POST % b"Content-Length: %d" % len(EVIL) + EVIL + GET
    assert run(data, 1000) == Step(data)


AMBIGUOUS = [
    CHUNKED + b"0x5\r\nhello\r\n",
    CHUNKED + b"+5\r\nhello\r\n",
    CHUNKED + b" 5\r\nhello\r\n",
    CHUNKED + b"5_0\r\n",
    CHUNKED + b"5;a=b\r\nhello\r\n",
    CHUNKED + b"\r\n",
    CHUNKED + b"5\nhello",
    CHUNKED + b"1" * MAX_CHUNK_LINE,
    CHUNKED + b"5\r\nhelloX\r\n",
    CHUNKED + b"5\r\nhello\rX",
    CHUNKED + b"0\r\nTrailer: x\r\n\r\n",
    b"\r\n\r\n" + GET,
    b"x" * (MAX_HEAD + 1),
    b"x" * (MAX_HEAD + 1) + b"\r\n\r\n",
]


@pytest.mark.parametrize("data", AMBIGUOUS)
@given(size=st.sampled_from([7, 64, 200_000]))
def test_framing_that_could_be_read_in_two_ways_is_refused(data: bytes, size: int) -> None:
    assert run(data + GET, size).refusal is not None


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from([b"", GET, CHUNKED]))
def test_no_bytes_make_it_raise(pieces: list[bytes], start: bytes) -> None:
    stream = HttpStream(judge)
    for piece in [start, *pieces]:
        if stream.feed(piece).refusal is not None:
            break


def test_one_byte_at_a_time_and_all_at_once_are_read_alike() -> None:
    for size in (1, 200_000):
        for data in HONEST:
            assert run(data, size) == Step(data)
            step = run(data + EVIL, size)
            assert (step.refusal, b"evil" in step.forward) == ("host", False)
    for data in AMBIGUOUS:
        assert {run(data + GET, size).refusal for size in (7, 200_000)} == {"http-malformed"}
