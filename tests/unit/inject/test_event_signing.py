"""Events go on with the real key's signature if the client signed them with its placeholder (I4).

`THEIRS` and `OURS` were made by @smithy/signature-v4 5 and @smithy/eventstream-codec 4, as AWS's
JavaScript SDK signs them: the same three events by each key, at a quarter second past `NOON`.
"""

from __future__ import annotations

import base64
import contextlib
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.event_signing import MAX_EVENT
from keyhole.inject.sigv4 import (
    EVENTS,
    MAX_SKEW,
    VerifiedSignature,
    check,
    sign,
    signature_in,
)
from keyhole.model.errors import Malformed
from tests.rigs.inject.events import (
    OWN_HEAD,
    date,
    event_signer,
    message,
    signature,
    signature_of,
    signed,
    text,
)
from tests.unit.inject.test_sigv4 import BUCKET, NOON, keys, sent

if TYPE_CHECKING:
    from collections.abc import Callable

THEIRS = tuple(
    map(
        base64.b64decode,
        (
            "AAAAhgAAAEO0UYpxBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACB2kW6p7luCKFTqfdrs"
            "o4quVzd/HS+ZenpLhNl4pwMPCgAAADMAAAAUmXnJQgs6ZXZlbnQtdHlwZQcABWNodW5reyJieXRlcyI6"
            "Im9uZSJ9Cgb8gpqBrQk=",
            "AAAAhgAAAEO0UYpxBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACCmHGHsPUFYJvcy0LyJ"
            "uzW3FQbk6RdT1UekZc2KDv9DWgAAADMAAAAUmXnJQgs6ZXZlbnQtdHlwZQcABWNodW5reyJieXRlcyI6"
            "InR3byJ9PbDH0is16rs=",
            "AAAAUwAAAEP1RHpYBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACAOheXZPwm7EdcBHnAi"
            "OQSr9zxv9z0ra+o6I0jh2+fDWj8jAaU=",
        ),
    )
)
OURS = tuple(
    map(
        base64.b64decode,
        (
            "AAAAhgAAAEO0UYpxBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACDfF8ARoAUGRcQWfcg6"
            "eoabOAP6vrAmJkpkIAvs41jjVQAAADMAAAAUmXnJQgs6ZXZlbnQtdHlwZQcABWNodW5reyJieXRlcyI6"
            "Im9uZSJ9Cgb8gjVwCVM=",
            "AAAAhgAAAEO0UYpxBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACCngNiDOUcIzNVuLb3z"
            "mKCl2M6QmgxdstLgfZl8seoghQAAADMAAAAUmXnJQgs6ZXZlbnQtdHlwZQcABWNodW5reyJieXRlcyI6"
            "InR3byJ9PbDH0kRUh3g=",
            "AAAAUwAAAEP1RHpYBTpkYXRlCAAAAZ8djOL6EDpjaHVuay1zaWduYXR1cmUGACCT+1/fkFAsqLmo76rP"
            "1fwnRp9HM6bTYTm4nQ2Cc+Rmj/MLnZM=",
        ),
    )
)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_events_are_signed_as_the_sdk_signs_them_however_they_are_cut(sizes: list[int]) -> None:
    events, whole, out, at = event_signer(), b"".join(THEIRS), b"", 0
    for number in range(len(whole)):
        size = sizes[number % len(sizes)]
        out += events.feed(whole[at : at + size], NOON)
        at += size
    events.finish()
    assert out == b"".join(OURS)


def test_an_event_goes_on_as_soon_as_it_is_whole() -> None:
    events = event_signer()
    assert events.feed(THEIRS[0][:-1], NOON) == b""
    assert events.feed(THEIRS[0][-1:] + THEIRS[1][:5], NOON) == OURS[0]
    with pytest.raises(Malformed, match="in the middle of an event"):
        events.finish()
    assert events.feed(THEIRS[1][5:] + THEIRS[2], NOON) == OURS[1] + OURS[2]
    events.finish()


def test_headers_may_stand_in_the_other_order_and_the_chain_begins_with_the_head() -> None:
    event = signed(b"hello")
    out = event_signer().feed(event, NOON)
    assert len(out) == len(event)
    assert (b"hello" in out, out != event) == (True, True)
    for wrong in (signed(b"hello", "c" * 64), signed(b"hello", OWN_HEAD)):
        with pytest.raises(Malformed, match="placeholder key"):
            event_signer().feed(wrong, NOON)


def changed(at: int, value: int) -> bytes:
    """The first event with one byte changed, and its checksum made right."""
    event = bytearray(THEIRS[0][:-4])
    event[at] ^= value
    return bytes(event) + zlib.crc32(event).to_bytes(4, "big")


@pytest.mark.parametrize("moment", [NOON + MAX_SKEW + 2, NOON - MAX_SKEW - 2])
def test_an_event_of_another_time_is_refused(moment: float) -> None:
    with pytest.raises(Malformed, match="another time"):
        event_signer().feed(THEIRS[0], moment)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: changed(-1, 1), "placeholder key"),  # of the payload
        (lambda: changed(60, 1), "placeholder key"),  # of the signature
        (lambda: THEIRS[1], "placeholder key"),  # without the one before it
        (lambda: THEIRS[0][:-1] + b"\0", "checksum"),
        (lambda: b"\0\0\0\x0f" + bytes(8), "not an event"),
        (lambda: (MAX_EVENT + 1).to_bytes(4, "big") + bytes(8), "not an event"),
        (lambda: b"\0\0\0\x10\0\0\0\0\0\0\0\0", "not an event"),
        (lambda: b"GET / HTTP/1.1\r\n\r\n", "not an event"),
        (lambda: message(b"", length=1), "longer than it is"),
        (lambda: message(b""), "its date and its signature"),
        (lambda: message(date()), "its date and its signature"),
        (lambda: message(signature()), "its date and its signature"),
        (lambda: message(date() + signature(), length=50), "its date and its signature"),
        (lambda: message(date() + date() + signature()), "another header"),
        (lambda: message(date() + signature() + signature()), "another header"),
        (lambda: message(date() + signature(bytes(31))), "another length"),
        (lambda: message(text(b":date") + b"\x07" + bytes(8)), "another header"),
        (lambda: message(text(b":chunk-signature") + b"\x07" + bytes(34)), "another header"),
        (lambda: message(text(b":event-type") + b"\x07\0\0"), "another header"),
        (lambda: message(b"\xff"), "are cut"),
        (lambda: message(text(b":date")), "are cut"),
    ],
)
def test_an_event_that_is_not_the_clients_own_is_refused(
    make: Callable[[], bytes], why: str
) -> None:
    """I4: what the sandbox did not sign with its placeholder is never signed with the real key.
    Control: the tests above."""
    with pytest.raises(Malformed, match=why):
        event_signer().feed(make(), NOON)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert event_signer().feed(data, NOON) == b""


def test_a_head_that_announces_events_is_signed_and_begins_the_chain() -> None:
    request = sent(payload=EVENTS)
    found = check(keys("s3"), request, NOON)
    assert isinstance(found, VerifiedSignature)
    assert found.payload == EVENTS
    assert f"Signature={found.signature}".encode() in b"".join(request.lines)
    onward = msgspec.structs.replace(request, lines=[b"Host: " + BUCKET.encode()])
    written = sign(keys("s3"), found, onward, NOON)
    assert any(EVENTS.encode() in line for line in written)
    assert written[0].endswith(f"Signature={signature_in(written[0])}\r\n".encode())
    assert signature_in(written[0]) != found.signature


def test_many_small_events_at_once_are_refused() -> None:
    """I12: each takes two signatures. Controls: as many one by one, or of some size."""
    small, large = [signed(b"")], [signed(b"x" * 600)]
    for made, payload in ((small, b""), (large, b"x" * 600)):
        while len(made) < 200:
            made.append(signed(payload, signature_of(made[-1])))
    with pytest.raises(Malformed, match="too many small events"):
        event_signer().feed(b"".join(small), NOON)
    one_by_one = event_signer()
    assert all(one_by_one.feed(each, NOON) for each in small)
    assert len(event_signer().feed(b"".join(large), NOON)) == sum(map(len, large))
