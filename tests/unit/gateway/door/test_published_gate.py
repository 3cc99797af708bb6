"""The first bytes of a connection to a published port."""

from __future__ import annotations

import pytest

from keyhole.gateway.door.published_gate import PublishedGate, published_name
from keyhole.http.field import MAX_HEAD
from keyhole.model.decision import NO_RULE, Reason
from tests.rigs.wire.hellos import hello

NAME = published_name("0123456789ab")
PASSES = b"GET / HTTP/1.1\r\nHost: 0123456789ab.localhost:8123\r\n\r\n"


def gate() -> PublishedGate:
    return PublishedGate(NAME, 8123, 3000)


def test_bytes_pass_when_the_head_is_whole_and_are_not_judged_after_it() -> None:
    made = gate()
    for at in range(len(PASSES) - 1):
        assert made.feed(PASSES[at : at + 1]).forward == b""
    step = made.feed(PASSES[-1:] + b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
    assert step.free
    assert step.forward == PASSES + b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"


def test_a_head_without_an_end_is_refused() -> None:
    made = gate()
    assert made.feed(b"GET / HTTP/1.1\r\na: ").refusal is None
    assert made.feed(b"b" * MAX_HEAD).refusal == Reason.HTTP_MALFORMED
    assert made.last_bytes(Reason.HTTP_MALFORMED, NO_RULE).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (b"localhost:8123", True),
        (b"LOCALHOST", True),
        (b"127.0.0.2:8123", True),
        (b"[::1]:8123", True),
        (b"192.0.2.1:8123", False),
        (b"[2001:db8::1]:8123", False),
        (b"[::1", True),
        (b"rebound.example:8123", False),
        (b"0123456789ab.localhost:8124", False),
    ],
)
def test_a_person_is_told_the_name_and_a_rebound_page_is_not(host: bytes, told: bool) -> None:
    made = gate()
    step = made.feed(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert step.refusal == Reason.FOREIGN_NAME
    page = made.last_bytes(Reason.FOREIGN_NAME, NO_RULE)
    assert page.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
    assert (b"http://0123456789ab.localhost:8123/" in page) is told
    assert (b"0123456789ab" in page) is told


def test_a_hello_passes_that_names_the_port_and_no_other() -> None:
    named = hello(sni=NAME.name)
    assert gate().feed(named).forward == named
    made = gate()
    assert made.feed(hello(sni="rebound.example")).refusal == Reason.SNI_MISMATCH
    assert made.last_bytes(Reason.SNI_MISMATCH, NO_RULE)[:1] == b"\x15"
    assert gate().feed(hello(sni=None)).refusal == Reason.SNI_MISSING
