"""Counts, ages, sizes and moments as a table shows them."""

from __future__ import annotations

from datetime import UTC, datetime

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def age(seconds: float) -> str:
    """`42s`, `12m`, `3h`, `5d`: the largest unit that is full."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


def size(number: int) -> str:
    """`0 B`, `1.5 KiB`, `12 MiB`: two digits."""
    amount, unit = float(number), 0
    # 1023.6 B would be printed as 1024 B, so it becomes 1.0 KiB.
    while round(amount) >= 1024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 1 if unit and amount < 9.95 else 0
    return f"{amount:.{digits}f} {_SIZES[unit]}"


def moment(seconds: float) -> str:
    """A time for scripts: UTC, as in the audit log."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def count(number: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
