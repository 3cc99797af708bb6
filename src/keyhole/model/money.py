"""Amounts of money, as a policy writes them: whole billionths of a US dollar inside.

Prices of single tokens are fractions of a cent, and sums of thousands of them must be exact, so
there is no floating point here.
"""

from __future__ import annotations

import re

from keyhole.model.errors import Unparsable

NANO = 10**9
"""Parts of a dollar that are counted."""

MAX_MONEY = 1_000_000 * NANO
"""The largest amount of a policy; a larger one is probably a typing error."""

CURRENCY = "USD"

# ASCII digits only: `\d` is true for other scripts' digits.
_AMOUNT = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,9}))? ?([A-Za-z$]{0,3})")


def parse_money(text: str) -> int:
    """Read `20 USD` or `0.075 USD` into billionths of a dollar; the currency is required."""
    found = _AMOUNT.fullmatch(text.strip())
    if not found or found[3] != CURRENCY:
        raise Unparsable(
            "an amount of money is a number and USD, as providers bill",
            f"{found[1]}{'.' + found[2] if found[2] else ''} {CURRENCY}" if found else None,
        )
    amount = int(found[1]) * NANO + int((found[2] or "").ljust(9, "0"))
    if amount > MAX_MONEY:
        raise Unparsable("an amount of money is at most 1000000 USD")
    return amount


def format_money(nano: int) -> str:
    """Write an amount as `parse_money` reads it, exactly."""
    whole, rest = divmod(nano, NANO)
    digits = f"{rest:09}".rstrip("0")
    return f"{whole}.{digits} {CURRENCY}" if digits else f"{whole} {CURRENCY}"


def show_money(nano: int) -> str:
    """The amount for a list: in cents, and in as much of a cent as a small amount has."""
    whole, rest = divmod(nano, NANO)
    if nano >= NANO // 10 or not nano:
        return f"{whole}.{rest // 10**7:02} {CURRENCY}"
    return f"{whole}.{f'{rest:09}'[:6]} {CURRENCY}" if rest >= 1000 else f"<0.000001 {CURRENCY}"
