"""The picture of README is what a run shows on a terminal today (I10)."""

from __future__ import annotations

import re

import pytest

from scripts import make_picture

pytestmark = pytest.mark.outside


def test_the_picture_is_current_and_makes_no_requests() -> None:
    drawn = make_picture.picture()
    assert drawn == make_picture.PLACE.read_text("utf-8"), "run `make docs`"
    for request in ("url(http", "href", "@import", "@font-face", "<script", "<image"):
        assert request not in drawn
    shown = re.sub(r"<[^>]+>", "", drawn).replace("&#160;", " ")
    for line in make_picture.SHOWN:
        assert f"$ {line}" in shown
    assert "made-up-for-this-page" not in drawn
