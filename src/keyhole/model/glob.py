"""Globs over segments: `*` within one segment, `**` across any number of them, also none.

One meaning for request paths, branches, tags and file paths. Matching is iterative and greedy,
so that no pattern or subject can make it exponential or deep (I9).
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

ANY_DEPTH = "**"
"""The segment that stands for any number of segments."""


class Glob(Struct, frozen=True):
    """A pattern as its segments. Callers parse their own alphabet and hand over segments."""

    segments: tuple[str, ...]

    def matches(self, subject: tuple[str, ...]) -> bool:
        """Whether the whole subject is covered."""
        return _covers(self.segments, subject, segment_matches)

    def covers(self, other: Glob) -> bool:
        """Whether everything that `other` matches is matched here too (sound, not complete)."""
        return _covers(self.segments, other.segments, _segment_covers)

    def overlaps(self, other: Glob) -> bool:
        """Whether some subject is matched by both."""
        return _overlap(self.segments, other.segments)

    def folded(self) -> Glob:
        """The same pattern for subjects that were folded."""
        return Glob(tuple(fold(s) for s in self.segments))

    def __str__(self) -> str:
        return "/".join(self.segments)


def fold(segment: str) -> str:
    """Fold the case and compatibility forms of one segment. A text of somebody else must have
    passed `check_marks`."""
    if segment.isascii():
        return segment.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", segment).casefold())


def segment_matches(pattern: str, segment: str) -> bool:
    """Whether a segment pattern (with `*`) covers one literal segment."""
    if "*" not in pattern:
        return pattern == segment
    head, *middle, tail = pattern.split("*")
    if len(segment) < len(head) + len(tail) or not segment.startswith(head):
        return False
    if not segment.endswith(tail):
        return False
    at, end = len(head), len(segment) - len(tail)
    for piece in middle:
        found = segment.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _segment_covers(pattern: str, other: str) -> bool:
    """As `segment_matches`, where `other` may itself be a pattern."""
    if other == ANY_DEPTH:
        return False
    # A `*` in `other` is matched as a character: sound, because only a `*` here can absorb it.
    return segment_matches(pattern, other)


def _covers(
    pattern: tuple[str, ...],
    subject: tuple[str, ...],
    one: Callable[[str, str], bool],
) -> bool:
    """The greedy matcher: on a mismatch, let the last `**` swallow one segment more."""
    p = s = 0
    retry_p, retry_s = -1, 0
    while s < len(subject):
        if p < len(pattern) and pattern[p] == ANY_DEPTH:
            p += 1
            retry_p, retry_s = p, s
        elif p < len(pattern) and one(pattern[p], subject[s]):
            p, s = p + 1, s + 1
        elif retry_p >= 0:
            retry_s += 1
            p, s = retry_p, retry_s
        else:
            return False
    return all(left == ANY_DEPTH for left in pattern[p:])


def _segments_overlap(one: str, two: str) -> bool:
    if "*" not in one:
        return segment_matches(two, one)
    if "*" not in two:
        return segment_matches(one, two)
    heads = sorted((one.partition("*")[0], two.partition("*")[0]), key=len)
    tails = sorted((one.rpartition("*")[2], two.rpartition("*")[2]), key=len)
    return heads[1].startswith(heads[0]) and tails[1].endswith(tails[0])


def _overlap(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
    """Walk both at once; each pair of positions is visited once (I9)."""
    ahead, seen = [(0, 0)], {(0, 0)}
    while ahead:
        i, j = ahead.pop()
        if i == len(one) and j == len(two):
            return True
        wide = i < len(one) and one[i] == ANY_DEPTH, j < len(two) and two[j] == ANY_DEPTH
        steps = []
        if any(wide):
            steps = [(i + 1, j)] * (i < len(one)) + [(i, j + 1)] * (j < len(two))
        elif i < len(one) and j < len(two) and _segments_overlap(one[i], two[j]):
            steps = [(i + 1, j + 1)]
        fresh = [step for step in steps if step not in seen]
        ahead += fresh
        seen.update(fresh)
    return False
