"""Globs mean what a slow, plain reading of them means, and no glob is slow (I3, I9)."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.model.glob import ANY_DEPTH, Glob, fold, segment_matches

LITERALS = st.text("ab", min_size=1, max_size=3)
PIECES = st.one_of(st.text("ab*", min_size=1, max_size=4).filter(lambda s: "**" not in s), LITERALS)
GLOBS = st.lists(st.one_of(PIECES, st.just(ANY_DEPTH)), max_size=5).map(lambda s: Glob(tuple(s)))
SUBJECTS = st.lists(LITERALS, max_size=6).map(tuple)


def reference(glob: Glob) -> re.Pattern[str]:
    """The glob as a regular expression over segments that each end in a slash."""
    parts = []
    for segment in glob.segments:
        if segment == ANY_DEPTH:
            parts.append("(?:[^/]+/)*")
        else:
            parts.append("[^/]*".join(map(re.escape, segment.split("*"))) + "/")
    return re.compile("".join(parts))


def spelled(subject: tuple[str, ...]) -> str:
    return "".join(segment + "/" for segment in subject)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("a", ["a"], ["", "b", "A", "a/b"]),
        ("*", ["a", "abc"], ["", "a/b"]),
        ("a*", ["a", "ab"], ["ba", "a/b"]),
        ("*a", ["a", "ba"], ["ab"]),
        ("a*b", ["ab", "aab", "axb"], ["a", "b", "aba"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("*a*b*", ["ab", "xaxbx"], ["ba", "xbxax"]),
        ("**", ["", "a", "a/b/c"], []),
        ("a/**", ["a", "a/b", "a/b/c"], ["", "b", "ab"]),
        ("**/a", ["a", "b/a", "b/c/a"], ["", "a/b"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b", "a/b/b"], ["a", "b", "a/b/x"]),
        ("**/a/**/b/**", ["a/b", "x/a/y/b/z", "a/a/b/b"], ["b/a", "a"]),
        ("*/*", ["a/b"], ["a", "a/b/c", ""]),
    ],
)
def test_one_star_stays_in_its_segment_and_two_cross_any_number(
    glob: str, yes: list[str], no: list[str]
) -> None:
    pattern = Glob(tuple(glob.split("/")) if glob else ())
    assert str(pattern) == glob
    for subject in yes:
        assert pattern.matches(tuple(subject.split("/")) if subject else ()), subject
    for subject in no:
        assert not pattern.matches(tuple(subject.split("/")) if subject else ()), subject


@settings(max_examples=300)
@given(GLOBS, SUBJECTS)
def test_matching_agrees_with_a_regular_expression(glob: Glob, subject: tuple[str, ...]) -> None:
    assert glob.matches(subject) is bool(reference(glob).fullmatch(spelled(subject)))


@given(st.text("ab*", max_size=6), st.text("ab*", max_size=8))
def test_a_segment_agrees_with_a_regular_expression(pattern: str, segment: str) -> None:
    """A star in the subject is a character like any other."""
    plain = ".*".join(map(re.escape, pattern.split("*")))
    assert segment_matches(pattern, segment) is bool(re.fullmatch(plain, segment))


WORDS = ["a", "b", "ab", "ba", "aab", "abab"]
SMALL_UNIVERSE = [subject for depth in range(4) for subject in product(WORDS, repeat=depth)]


@settings(max_examples=300)
@given(GLOBS, GLOBS)
def test_a_glob_that_covers_another_matches_all_that_it_matches(one: Glob, two: Glob) -> None:
    """`covers` lets an allow open a guarded endpoint, so it must never be wrong (I3)."""
    if one.covers(two):
        wide, narrow = reference(one), reference(two)
        for subject in SMALL_UNIVERSE:
            if narrow.fullmatch(spelled(subject)):
                assert wide.fullmatch(spelled(subject)), subject


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("v1/**", "v1"),
        ("v1/**", "v1/keys"),
        ("v1/**", "v1/*/keys/**"),
        ("v1/*", "v1/a*"),
        ("v1/a*", "v1/a*b"),
        ("v1/*b", "v1/a*b"),
        ("**", "**"),
        ("**", "a/**/b"),
        ("a/**", "a/**/b"),
        ("**/b", "a/**/b"),
        ("*/keys", "*/keys"),
        ("a*", "a*"),
    ],
)
def test_a_wide_glob_covers_a_narrow_one_but_not_the_reverse(wide: str, narrow: str) -> None:
    one, two = Glob(tuple(wide.split("/"))), Glob(tuple(narrow.split("/")))
    assert one.covers(two)
    assert two.covers(one) is (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("*", "**"),
        ("**/*", "**"),
        ("a*", "*"),
        ("a", "*"),
        ("*a*", "*"),
        ("a/*", "a/**"),
        ("", "*"),
    ],
)
def test_a_glob_does_not_cover_what_reaches_further(one: str, two: str) -> None:
    narrow = Glob(tuple(one.split("/")) if one else ())
    assert not narrow.covers(Glob(tuple(two.split("/"))))


@pytest.mark.parametrize(
    ("one", "two", "common"),
    [
        ("", "", True),
        ("", "**", True),
        ("", "a", False),
        ("a", "a", True),
        ("a", "b", False),
        ("a*", "ab", True),
        ("a*", "ba", False),
        ("a*", "*b", True),
        ("a*", "b*", False),
        ("*a", "*b", False),
        ("aa*", "a*b", True),
        ("a/**", "**/b", True),
        ("a/**/c", "b/**", False),
        ("a/**", "a", True),
        ("a/*/c", "a/b/**", True),
        ("a/b", "a", False),
    ],
)
def test_globs_overlap_if_one_subject_is_matched_by_both(one: str, two: str, common: bool) -> None:
    first, second = (Glob(tuple(t.split("/")) if t else ()) for t in (one, two))
    assert first.overlaps(second) is second.overlaps(first) is common


@settings(max_examples=300)
@given(GLOBS, GLOBS)
def test_globs_that_match_the_same_subject_overlap(one: Glob, two: Glob) -> None:
    """A rule that opens a guarded endpoint is marked by it, so none may be missed (I10)."""
    first, second = reference(one), reference(two)
    if any(first.fullmatch(spelled(s)) and second.fullmatch(spelled(s)) for s in SMALL_UNIVERSE):
        assert one.overlaps(two)


class Watched(tuple[str, ...]):
    """A subject that counts how often a segment of it is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as in tuple
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "pattern",
    [
        ("**",) * 100 + ("b",),
        ("**", "a") * 100 + ("b",),
        ("*",) * 100 + ("**", "b"),
        ("**", "*a*a*a*a*b") * 50,
        ("**", "a", "**", "a*", "**", "*a", "b"),
    ],
    ids=range(5),
)
def test_no_glob_makes_matching_explode(pattern: tuple[str, ...]) -> None:
    """I9: looks are bounded by the product of the two lengths, however many stars there are."""
    subject = Watched(("a" * 60,) * 128)
    assert not Glob(pattern).matches(subject)
    assert 0 < subject.looks <= len(pattern) * len(subject)


class WatchedText(str):
    """A segment that counts how often it is searched."""

    searches = 0

    def find(self, *args: Any) -> int:  # noqa: ANN401 - as in str
        self.searches += 1
        return super().find(*args)


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b*", "a*" * 100 + "b*", "*aa" * 100 + "*b*"])
def test_no_star_within_a_segment_is_tried_twice(pattern: str) -> None:
    """I9."""
    segment = WatchedText("a" * 8000)
    assert not segment_matches(pattern, segment)
    assert 0 < segment.searches <= pattern.count("*")


def test_a_glob_of_a_hundred_stars_still_matches_what_it_should() -> None:
    """The control of the test above."""
    assert Glob(("**", "a") * 100).matches(("a",) * 128)
    assert Glob(("*a" * 100,)).matches(("a" * 8000,))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Keys", "keys"),
        ("KEYS", "\uff4b\uff45\uff59\uff53"),
        ("straße", "STRASSE"),
        ("É", "e\u0301"),
        ("\u212a", "k"),
        ("\ufb01les", "FILES"),
        ("\u00b2", "2"),
    ],
)
def test_folding_makes_one_of_what_some_server_treats_as_one(one: str, two: str) -> None:
    assert fold(one) == fold(two)
    assert Glob((one, "**")).folded() == Glob((two, "**")).folded()


def test_folding_keeps_apart_what_differs() -> None:
    assert fold("keys") != fold("keyz")
    assert fold("é") != fold("e")


@given(st.text(max_size=10))
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)
