"""The pictures of README and the documents are what a person sees today (I10)."""

from __future__ import annotations

import re

import pytest

from scripts import make_picture
from tests.rigs.pictures import DOCS, LARGEST, words_of

pytestmark = pytest.mark.outside

TESTS = DOCS.parent / "tests" / "system"


def test_the_picture_is_current_and_makes_no_requests() -> None:
    drawn = make_picture.picture()
    assert drawn == make_picture.PLACE.read_text("utf-8"), "run `make docs`"
    for request in ("url(http", "href", "@import", "@font-face", "<script", "<image"):
        assert request not in drawn
    shown = re.sub(r"<[^>]+>", "", drawn).replace("&#160;", " ")
    for line in make_picture.SHOWN:
        assert f"$ {line}" in shown
    assert "made-up-for-this-page" not in drawn


def test_every_picture_is_small_shown_and_taken_by_a_test() -> None:
    """Those of a page or a screen carry its words, which the test that sees it compares."""
    pictures = {each for kind in ("png", "svg") for each in DOCS.rglob(f"*.{kind}")}
    shown = set()
    for page in DOCS.rglob("*.md"):
        named = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))
        shown |= {(page.parent / name).resolve() for name in named}
    assert pictures == shown | {make_picture.PLACE}  # README has that one
    taken = "".join(each.read_text("utf-8") for each in TESTS.rglob("test_*.py"))
    for picture in shown:
        data = picture.read_bytes()
        assert len(data) <= LARGEST
        assert words_of(data), f"{picture} was not made by `make pictures`"
        assert f'"{picture.relative_to(DOCS)}"' in taken
        assert b"http" not in data.replace(b"http://www.w3.org/", b"")
