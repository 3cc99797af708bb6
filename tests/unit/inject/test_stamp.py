"""Moments as AWS writes them, held against the standard library's calendar."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.inject.stamp import moment_of, stamp_of

FIRST, LAST = 946684800, 32503679999  # the years 2000 to 2999


def written(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


@given(st.integers(FIRST, LAST))
@example(FIRST)
@example(LAST)
@example(951782400)  # 2000-02-29
@example(951868800)
@example(4107542399)  # 2100-02-28, no leap year
@example(4107542400)
def test_a_moment_is_written_as_the_calendar_has_it_and_read_back(moment: int) -> None:
    assert stamp_of(moment) == written(moment)
    assert moment_of(stamp_of(moment)) == moment


@pytest.mark.parametrize("moment", [0, FIRST, 1798761599, 4133980799, LAST])
def test_a_year_begins_when_the_last_one_ends(moment: int) -> None:
    assert (stamp_of(moment), stamp_of(moment + 1)) == (written(moment), written(moment + 1))


@given(st.floats(0, FIRST))
def test_a_part_of_a_second_is_dropped(moment: float) -> None:
    assert stamp_of(moment) == written(int(moment))


@pytest.mark.parametrize(
    "text",
    ["", "20260701", "20260701T120000", "20260701T120000z", "20260701T240000Z", "20260701T126000Z",
     "20260701T120060Z", "20260700T120000Z", "20260732T120000Z", "20260631T120000Z",
     "20270229T120000Z", "20261301T120000Z", "20260001T120000Z", "19990101T000000Z",
     "00000101T000000Z", "20260701T120000Z\n", "\uff120260701T120000Z", "2026-07-01T12:00:00Z"],
)  # fmt: skip
def test_a_text_that_is_no_moment_is_none(text: str) -> None:
    assert moment_of("20280229T120000Z") is not None
    assert moment_of(text) is None


@given(st.text(max_size=20))
def test_any_text_is_a_moment_or_none(text: str) -> None:
    moment = moment_of(text)
    assert moment is None or stamp_of(moment) == text
