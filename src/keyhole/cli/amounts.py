"""Counts, ages, sizes and moments as a table shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from keyhole.model.quantity import show_size as size

__all__ = ["age", "count", "moment", "size"]


def age(seconds: float) -> str:
    """`42s`, `12m`, `3h`, `5d`: the largest unit that is full."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(int(seconds), 0)}s"


def moment(seconds: float) -> str:
    """A time for scripts: UTC, as in the audit log."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def count(number: int, what: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
