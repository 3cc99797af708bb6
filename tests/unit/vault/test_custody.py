"""Bytes become a Secret that can be written into a header and found again, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.secret import Secret
from keyhole.vault.custody import MAX_SIZE, admit_reading, seal_secret
from keyhole.vault.interface import FetchedSecret, SecretReading, SecretUnavailable
from tests.rigs.vault.rig import VALUE, ref, told

REF = ref("store:x")


def revealed(reading: SecretReading) -> str:
    assert reading.secret is not None
    return reading.secret.reveal()


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_the_line_end_that_editors_add_is_no_part_of_a_secret(end: str) -> None:
    assert revealed(seal_secret((end + VALUE).encode())) == VALUE
    assert revealed(seal_secret((VALUE + end).encode())) == VALUE


def test_a_secret_may_have_several_lines() -> None:
    data = b"access-token-0123456789\r\naccount-id-0123456789\n"
    assert revealed(seal_secret(data)) == "access-token-0123456789\naccount-id-0123456789"


def test_a_document_of_many_lines_is_one_secret() -> None:
    text = '{\n  "type": "service_account",\n  "a": 1,\n  "b": 2,\n  "key": "x"\n}'
    reading = seal_secret(text.encode())
    assert (revealed(reading), reading.short) == (text, False)


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\xff" + VALUE.encode(), "not UTF-8"),
        (VALUE.encode("utf-16"), "not UTF-8"),
        (b"x" * (MAX_SIZE + 1), "larger than"),
        (f"{VALUE}\rX-Evil: 1".encode(), "control"),
        (f"{VALUE}\0".encode(), "control"),
        (f"{VALUE}\tx".encode(), "control"),
        (f"{VALUE}\x1b[2J".encode(), "control"),
        (f"{VALUE}\x7f".encode(), "control"),
        (f"{VALUE}\u0085x".encode(), "control"),
        (f"{VALUE}\u2028x".encode(), "control"),
        (f"{VALUE}\u202ex".encode(), "control"),
        (f"\ufeff{VALUE}".encode(), "control"),
        (f" {VALUE}".encode(), "space"),
        (f"{VALUE} \n".encode(), "space"),
    ],
)
def test_what_could_start_a_header_of_its_own_or_not_be_found_again_is_refused(
    data: bytes, flaw: str
) -> None:
    """I4, I7: and the refusal has nothing of it."""
    reading = seal_secret(data)
    assert reading.secret is None
    assert flaw in reading.flaw
    with pytest.raises(SecretUnavailable) as refusal:
        admit_reading(REF, reading)
    assert flaw in str(refusal.value)
    assert VALUE not in told(refusal.value)


def test_the_largest_secret_is_taken() -> None:
    """I9: the control of the bound above."""
    assert len(revealed(seal_secret(b"x" * MAX_SIZE))) == MAX_SIZE


@pytest.mark.parametrize("text", ["x" * 15, "y" * 40 + "\n" + "x" * 15, "a\nb\nc\nd\ne", "é" * 15])
def test_a_short_secret_is_refused_unless_someone_insists(text: str) -> None:
    """I7: it would be found in ordinary answers; who insists is told that it is not removed."""
    reading = seal_secret(text.encode())
    assert reading.short
    with pytest.raises(SecretUnavailable, match="shorter than 16"):
        admit_reading(REF, reading)
    for given_ in (
        admit_reading(REF, reading, unsafe_short=True),
        admit_reading(REF, SecretReading(reading.secret, short=True, insisted=True)),
    ):
        assert given_.unscrubbed
        assert "store:x is shorter than 16 characters" in given_.warning


@pytest.mark.parametrize("text", ["x" * 16, "y" * 16 + "\n" + "x" * 16, "é" * 16])
def test_sixteen_characters_are_enough(text: str) -> None:
    """The control of the test above."""
    given_ = admit_reading(REF, seal_secret(text.encode()), unsafe_short=True)
    assert (given_.warning, given_.unscrubbed) == ("", False)


def test_no_reading_is_no_secret() -> None:
    """I3: the zero value gives nothing."""
    with pytest.raises(SecretUnavailable, match="nothing was read"):
        admit_reading(REF, SecretReading())


def test_warnings_are_told_together() -> None:
    reading = SecretReading(Secret("short"), short=True, warning="kept badly")
    assert admit_reading(REF, reading, unsafe_short=True).warning.startswith(
        "kept badly; store:x is"
    )


def test_what_travels_shows_no_secret() -> None:
    """I8."""
    assert VALUE not in f"{seal_secret(VALUE.encode())!r}{FetchedSecret(Secret(VALUE))!r}"


@given(st.binary(max_size=200))
def test_whatever_is_read_is_printable_lines_or_refused(data: bytes) -> None:
    reading = seal_secret(data)
    if reading.secret is None:
        assert reading.flaw
        return
    text = reading.secret.reveal()
    assert text.encode() in data.replace(b"\r\n", b"\n")
    assert text
    assert all(line.isprintable() for line in text.split("\n"))
    assert text == text.strip(" \n")
