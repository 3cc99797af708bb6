"""Sizes and durations with units, as a policy writes them."""

from __future__ import annotations

import re

from keyhole.model.errors import Unparsable

_KIB = 1024
_SIZE_UNITS = {"B": 1, "KiB": _KIB, "MiB": _KIB**2, "GiB": _KIB**3, "TiB": _KIB**4} | {
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# ASCII digits only: str.isdigit() is true for superscripts and other scripts' digits.
_QUANTITY = re.compile(r"([0-9]{1,12}) ?([A-Za-z]{1,3})")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")

_SHOWN_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

MAX_SIZE = 2**60
MAX_DURATION = 366 * 86400.0


def parse_size(text: str) -> int:
    """Read `512 MiB`, `10GB`, … into bytes; a unit is required."""
    found = _QUANTITY.fullmatch(text)
    if not found or found[2] not in _SIZE_UNITS:
        raise Unparsable(
            "a size is a number and a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
            _nearest_unit(text),
        )
    size = int(found[1]) * _SIZE_UNITS[found[2]]
    if not 0 < size <= MAX_SIZE:
        raise Unparsable("a size is more than zero and at most 1024 PiB")
    return size


def parse_duration(text: str) -> float:
    """Read `90s`, `1h30m`, `250ms`, … into seconds; a unit is required."""
    if not _DURATION.fullmatch(text):
        raise Unparsable("a duration is numbers with units (ms, s, m, h, d), as in '1h30m'")
    parts = _DURATION_PART.findall(text)
    seconds = sum(int(n) * _DURATION_UNITS[unit] for n, unit in parts) / 1000
    if not 0 < seconds <= MAX_DURATION:
        raise Unparsable("a duration is more than zero and at most 366 days")
    return seconds


def format_size(size: int) -> str:
    """Write bytes as `parse_size` reads them, in the largest unit that divides them."""
    unit = max((u for u, n in _SIZE_UNITS.items() if size % n == 0), key=_SIZE_UNITS.__getitem__)
    return f"{size // _SIZE_UNITS[unit]}{unit}"


def show_size(number: int) -> str:
    """`0 B`, `1.5 KiB`, `12 MiB`: two digits."""
    amount, unit = float(number), 0
    # 1023.6 B would be printed as 1024 B, so it becomes 1.0 KiB.
    while round(amount) >= 1024 and unit < len(_SHOWN_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    digits = 1 if unit and amount < 9.95 else 0
    return f"{amount:.{digits}f} {_SHOWN_UNITS[unit]}"


def format_duration(seconds: float) -> str:
    """Write seconds as `parse_duration` reads them."""
    left, text = round(seconds * 1000), ""
    for unit in ("d", "h", "m", "s", "ms"):
        step = _DURATION_UNITS[unit]
        if left >= step:
            text += f"{left // step}{unit}"
            left %= step
    return text or "0s"


def _nearest_unit(text: str) -> str | None:
    """`512mb` and `512M` are near-misses; say the binary unit."""
    found = re.fullmatch(r"([0-9]{1,12}) ?([kKmMgGtT])i?[bB]?", text)
    return f"{found[1]}{found[2].upper()}iB" if found else None
