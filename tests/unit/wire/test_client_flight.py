"""Every hello that a client sends in the clear is judged, the one after a retry too (I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.wire.client_flight import ClientFlight
from keyhole.wire.stream_step import StreamStep
from tests.rigs.wire.hellos import hello, vector

if TYPE_CHECKING:
    from keyhole.wire.client_hello import ClientHello

CCS = b"\x14\x03\x03\x00\x01\x01"
DATA = b"\x17\x03\x03\x00\x05hello"
KEY_EXCHANGE = b"\x16\x03\x03\x00\x03\x10ab"
EARLY = hello(extensions=[(42, b"")])
GOOD, EVIL = hello("ok.example"), hello("evil.example")


def judge(found: ClientHello) -> Decision:
    """Only ok.example."""
    allowed = found.sni == "ok.example"
    return Decision(Verdict.ALLOW) if allowed else Decision(reason=Reason.SNI_MISMATCH)


def run(data: bytes, size: int, *, required: bool = True) -> StreamStep:
    """Feed in pieces; the whole that was passed, and the last word."""
    flight = ClientFlight(judge, required=required)
    passed = b""
    for index in range(0, len(data), size):
        step = flight.feed(data[index : index + size])
        passed += step.forward
        if step.refusal is not None or step.free:
            rest = data[index + size :] if step.free else b""
            return StreamStep(passed + rest, step.free, step.refusal)
    return StreamStep(passed)


SIZES = st.integers(1, 400)


HONEST = [
    (GOOD, False),
    (GOOD + CCS + DATA, True),
    (GOOD + KEY_EXCHANGE + CCS, True),
    (GOOD + CCS, False),
    (GOOD + CCS + GOOD + CCS + DATA, True),
    (EARLY + CCS + DATA + DATA, False),
    (EARLY + CCS + DATA + GOOD + DATA, True),
    (GOOD + b"\x15\x03\x03\x00\x02\x01\x00", False),
]


@pytest.mark.parametrize(("data", "free"), HONEST)
@given(size=SIZES)
def test_an_honest_handshake_passes_unchanged(data: bytes, free: bool, size: int) -> None:
    assert run(data, size) == StreamStep(data, free)


FOREIGN = [
    (EVIL, Reason.SNI_MISMATCH),
    (GOOD + EVIL, Reason.SNI_MISMATCH),
    (GOOD + CCS + EVIL, Reason.SNI_MISMATCH),
    (EARLY + CCS + DATA + DATA + EVIL, Reason.SNI_MISMATCH),
    (GOOD + b"\x16\x03\x03\x00\x00" + EVIL, "hello-malformed"),
    (GOOD + b"\x18\x03\x03\x00\x01\x00", "not-tls"),
    (GOOD + b"\x16\x09\x03\x00\x01\x01", "not-tls"),
    (b"\x16\x03\x01\x00\x00", "hello-malformed"),
    (b"GET / HTTP/1.1\r\n", "not-tls"),
]


@pytest.mark.parametrize(("data", "refusal"), FOREIGN)
@given(size=SIZES)
def test_a_foreign_hello_anywhere_in_the_clear_is_refused(
    data: bytes, refusal: str, size: int
) -> None:
    step = run(data, size)
    assert step.refusal == refusal
    assert b"evil" not in step.forward


@given(size=SIZES)
def test_where_tls_is_not_required_other_protocols_pass(size: int) -> None:
    for data in (b"SSH-2.0-x\r\n", b"\x16\x00binary", b"\x00"):
        assert run(data, size, required=False) == StreamStep(data, free=True)
    assert run(EVIL, size, required=False).refusal == Reason.SNI_MISMATCH


def test_it_says_whether_it_holds_something_back() -> None:
    flight = ClientFlight(judge, required=False)
    said = [flight.begun]
    for part in (GOOD[:7], GOOD[7:]):
        flight.feed(part)
        said.append(flight.begun)
    assert said == [False, True, False]


def test_it_says_whether_the_client_speaks_tls() -> None:
    for parts, said in (((GOOD[:7], GOOD[7:]), [True, True]), ((b"ping", b"x"), [False, False])):
        flight = ClientFlight(judge, required=False)
        assert not flight.is_tls
        seen = []
        for part in parts:
            flight.feed(part)
            seen.append(flight.is_tls)
        assert seen == said


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_no_bytes_make_it_raise(pieces: list[bytes], begun: bool) -> None:
    flight = ClientFlight(judge)
    for piece in [GOOD, *pieces] if begun else pieces:
        step = flight.feed(piece)
        if step.refusal is not None or step.free:
            break


def test_a_hello_may_be_cut_into_records_after_a_retry_too() -> None:
    data = GOOD + hello("evil.example", pieces=5)
    assert run(data, 3).refusal == Reason.SNI_MISMATCH
    assert run(GOOD + hello(pieces=5) + vector(2, b"x"), 3).free


def test_one_byte_at_a_time_and_all_at_once_are_read_alike() -> None:
    for size in (1, 1000):
        for data, free in HONEST:
            assert run(data, size) == StreamStep(data, free)
        for data, refusal in FOREIGN:
            assert run(data, size).refusal == refusal
        assert run(b"SSH-2.0-x\r\n", size, required=False) == StreamStep(
            b"SSH-2.0-x\r\n", free=True
        )
