"""Sizes and durations are written with units, in plain digits, within bounds (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.quantity import (
    MAX_DURATION,
    MAX_SIZE,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    show_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("form", ["512{}", "512 {}"])
def test_a_size_is_a_number_and_a_unit(unit: str, form: str) -> None:
    assert parse_size(form.format(unit)) == 512 * UNITS[unit]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("512mb", "512MiB"),
        ("512M", "512MiB"),
        ("512 m", "512MiB"),
        ("512Mb", "512MiB"),
        ("4k", "4KiB"),
        ("4KB", "4KiB"),
        ("4kib", "4KiB"),
        ("1g", "1GiB"),
        ("2T", "2TiB"),
        *((text, None) for text in "512 512b 1.5GiB 1,5GiB -1GiB +1GiB 1_000B 0x10B".split()),
        *((text, None) for text in "1e3B GiB 1PiB 9999999999999B".split()),
        ("512 bytes", None),
        ("", None),
        (" 1GiB", None),
        ("1GiB ", None),
        ("1GiB\n", None),
        ("1  GiB", None),
        ("1\tGiB", None),
        ("1\u00a0GiB", None),
        # Digits of other scripts: str.isdigit() is true of them.
        ("\u0665MiB", None),
        ("\u00b2MiB", None),
        ("\uff15MiB", None),
        ("\uff15M", None),
        # Kelvin sign and long s, whose other case is plain.
        ("5\u212aiB", None),
    ],
)
def test_a_size_in_any_other_form_is_refused_and_a_near_miss_corrected(
    text: str, hint: str | None
) -> None:
    with pytest.raises(Unparsable, match="a number and a unit") as refusal:
        parse_size(text)
    assert refusal.value.hint == hint
    assert hint is None or parse_size(hint)


@pytest.mark.parametrize("text", ["0B", "0GiB", "000 MiB", "1048577TiB", "999999999999TB"])
def test_a_size_is_more_than_nothing_and_less_than_absurd(text: str) -> None:
    """A limit of zero would be no limit to some readers and no service to others."""
    assert parse_size("1B") == 1
    assert parse_size("1048576TiB") == MAX_SIZE
    with pytest.raises(Unparsable, match="more than zero"):
        parse_size(text)


@given(st.integers(1, 10**12 - 1), st.sampled_from(sorted(UNITS)))
def test_a_size_is_written_as_it_is_read(count: int, unit: str) -> None:
    size = count * UNITS[unit]
    if size <= MAX_SIZE:
        assert parse_size(format_size(parse_size(f"{count}{unit}"))) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(1, "1B"), (1024, "1KiB"), (1025, "1025B"), (2 * 1024**3, "2GiB"), (1536, "1536B"),
     (10**9, "1GB"), (1500, "1500B"), (MAX_SIZE, "1048576TiB")],
)  # fmt: skip
def test_a_size_is_written_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("250ms", 0.25), ("1m", 60), ("1h30m", 5400), ("2d", 172800), ("1s1ms", 1.001),
     ("1d1h1m1s1ms", 90061.001), ("366d", MAX_DURATION), ("0h1s", 1), ("007s", 7)],
)  # fmt: skip
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "90", "s", "1.5h", "90 s", "1h 30m", "-1s", "+1s", "1S", "1min", "1w", "1y", "1h30", "1sm",
     "1s\n", " 1s", "1e3s", "1_0s", "0x1s", "\u0665s", "\u00b2s", "\uff15s", "9999999999s"],
)  # fmt: skip
def test_a_duration_in_any_other_form_is_refused(text: str) -> None:
    with pytest.raises(Unparsable, match="numbers with units"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", "0ms", "0d0h", "367d", "366d1ms", "999999999d"])
def test_a_duration_is_more_than_nothing_and_at_most_a_year(text: str) -> None:
    with pytest.raises(Unparsable, match="more than zero"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (1, "1s"), (90, "1m30s"), (5400, "1h30m"), (86400, "1d"), (90061.001,
     "1d1h1m1s1ms"), (MAX_DURATION, "366d"), (0, "0s")],
)  # fmt: skip
def test_a_duration_is_written_from_days_to_milliseconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, int(MAX_DURATION * 1000)))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=12), st.sampled_from([parse_size, parse_duration]))
def test_any_text_is_a_quantity_or_refused(text: str, parse: Callable[[str], float]) -> None:
    for typed in (text, "5" + text):
        try:
            found = parse(typed)
        except Unparsable:
            continue
        assert found > 0


def test_a_size_is_shown_in_two_digits() -> None:
    shown = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 10**6: "977 KiB", 2**50: "1024 TiB"}
    assert {each: show_size(each) for each in shown} == shown
