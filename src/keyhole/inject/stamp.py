"""Moments as AWS signatures write them, from and to seconds since 1970.

A pure room has no clock, and so none of the standard library's calendars. Used by `sigv4.py`.
"""

from __future__ import annotations

import re

_DAY = 24 * 60 * 60
_EPOCH = 719_162
"""Days from the first day of the year 1 to 1970-01-01."""
_STAMP = re.compile(
    r"(2[0-9]{3})(0[1-9]|1[0-2])([0-9]{2})T([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9])Z"
)
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def _days(year: int, month: int) -> int:
    """Days from 1970-01-01 to the first of a month."""
    past = year - 1
    leaps = past // 4 - past // 100 + past // 400
    leaps += month > 2 and ((year % 4 == 0 and year % 100 != 0) or year % 400 == 0)
    return 365 * past + leaps + _DAYS_BEFORE[month - 1] - _EPOCH


def stamp_of(now: float) -> str:
    """A moment as SigV4 writes it, in UTC: `20260131T235959Z`."""
    days, seconds = divmod(int(now), _DAY)
    year = 1970 + days // 366
    while _days(year + 1, 1) <= days:
        year += 1
    month = max(m for m in range(1, 13) if _days(year, m) <= days)
    day = days - _days(year, month) + 1
    clock = f"{seconds // 3600:02}{seconds // 60 % 60:02}{seconds % 60:02}"
    return f"{year:04}{month:02}{day:02}T{clock}Z"


def moment_of(stamp: str) -> int | None:
    """The seconds since 1970 of a stamp; None where it is not one."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    moment = (_days(year, month) + day - 1) * _DAY + hour * 3600 + minute * 60 + second
    return moment if stamp_of(moment) == stamp else None
