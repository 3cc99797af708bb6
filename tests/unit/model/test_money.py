"""Money is read exactly, and shown so that a person understands it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.money import MAX_MONEY, NANO, format_money, parse_money, show_money


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("20 USD", 20 * NANO),
        ("0.075USD", 75_000_000),
        ("0.000000001 USD", 1),
        ("1000000 USD", MAX_MONEY),
        ("0 USD", 0),
    ],
)
def test_an_amount_is_read_exactly(text: str, nano: int) -> None:
    assert parse_money(text) == nano


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("20", "20 USD"),
        ("20.5 EUR", "20.5 USD"),
        ("$20", None),
        ("1000000.01 USD", None),
        ("0.0000000001 USD", None),
        ("-1 USD", None),
        ("\u0661 USD", None),
    ],
)
def test_anything_else_is_refused_with_the_right_spelling(text: str, hint: str | None) -> None:
    with pytest.raises(Unparsable) as caught:
        parse_money(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (0, "0.00 USD"),
        (20 * NANO, "20.00 USD"),
        (1_239_999_999, "1.23 USD"),
        (99_000_000, "0.099000 USD"),
        (1_500, "0.000001 USD"),
        (1, "<0.000001 USD"),
    ],
)
def test_an_amount_is_shown_in_cents_or_smaller(nano: int, shown: str) -> None:
    assert show_money(nano) == shown


def test_an_amount_is_written_exactly() -> None:
    assert [format_money(each) for each in (20 * NANO, 75_000_000, 1)] == [
        "20 USD", "0.075 USD", "0.000000001 USD"
    ]  # fmt: skip


@given(st.integers(0, MAX_MONEY))
def test_what_is_written_is_read_again(nano: int) -> None:
    assert parse_money(format_money(nano)) == nano
