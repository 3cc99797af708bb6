"""The difference of two texts by line, as a person reads it. Pure.

The texts are hostile: the work is bounded by the number of differing lines that are searched for
(Myers, "An O(ND) Difference Algorithm"), and every line is made visible. Nothing of a repository
(attributes, filters, textconv) takes part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_DIFFERENCES = 600
"""Lines that are searched for one by one; with more, the whole middle is shown as replaced. The
work grows with its square: so many take some tenths of a second."""
MAX_LINES = 500
"""Lines that are shown for one file."""
MAX_COLUMNS = 400
"""Characters of a line that are shown."""
CONTEXT = 3
"""Unchanged lines around a change."""

_UNENDED = b"\n"
"""After the last line of a text that ends without a newline: no other line has one, so that the
sandbox can write none that is taken for it."""

_Range = tuple[int, int, int, int]
"""From and to in the old lines, from and to in the new ones."""


def is_text(data: bytes) -> bool:
    """Whether it is shown by lines: git takes a file with a NUL for binary, too."""
    return b"\0" not in data


def unified_lines(old: bytes, new: bytes) -> list[str]:
    """The lines of a unified diff, without a head, bounded and safe for a terminal."""
    before, after = _lines(old), _lines(new)
    shown: list[str] = []
    for line in _hunks(before, after):
        if len(shown) >= MAX_LINES:
            shown.append("… and more lines")
            break
        shown.append(line)
    return shown


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else [*lines[:-1], lines[-1] + _UNENDED]


def _hunks(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[str]:
    group: list[_Range] = []
    for change in changed_ranges(before, after):
        if group and change[0] - group[-1][1] > 2 * CONTEXT:
            yield from _hunk(group, before, after)
            group = []
        group.append(change)
    if group:
        yield from _hunk(group, before, after)


def _hunk(
    group: Sequence[_Range], before: Sequence[bytes], after: Sequence[bytes]
) -> Iterator[str]:
    start = max(group[0][0] - CONTEXT, 0)
    end = min(group[-1][1] + CONTEXT, len(before))
    other = group[0][2] - (group[0][0] - start)
    other_end = group[-1][3] + (end - group[-1][1])
    yield f"@@ -{_position(start, end)} +{_position(other, other_end)} @@"
    at = start
    for old_from, old_to, new_from, new_to in group:
        yield from (f" {_shown(line)}" for line in before[at:old_from])
        yield from (f"-{_shown(line)}" for line in before[old_from:old_to])
        yield from (f"+{_shown(line)}" for line in after[new_from:new_to])
        at = old_to
    yield from (f" {_shown(line)}" for line in before[at:end])


def _position(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"


def _shown(line: bytes) -> str:
    if line.endswith(_UNENDED):
        return f"{_shown(line.removesuffix(_UNENDED))}\\ no newline at the end"
    cut = line[: MAX_COLUMNS * 4].decode("utf-8", "surrogateescape")[:MAX_COLUMNS]
    text = "\t".join(map(visible, cut.split("\t")))
    return f"{text}…" if len(line) > MAX_COLUMNS * 4 or len(cut) == MAX_COLUMNS else text


def changed_ranges(before: Sequence[bytes], after: Sequence[bytes]) -> list[_Range]:
    """The ranges of lines that differ, in order."""
    start = 0
    least = min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    tail = 0
    while tail < least - start and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    old, new = before[start : len(before) - tail], after[start : len(after) - tail]
    if not old and not new:
        return []
    trace = _search(old, new) if old and new else None
    if trace is None:
        return [(start, start + len(old), start, start + len(new))]
    return _merged(_walk_back(trace, len(old), len(new)), start)


def _search(old: Sequence[bytes], new: Sequence[bytes]) -> list[dict[int, int]] | None:
    """The furthest positions by diagonal, one table for each number of differences; None if there
    are too many."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for count in range(min(len(old) + len(new), MAX_DIFFERENCES) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-count, count + 1, 2):
            down = diagonal == -count or (
                diagonal != count and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return trace
    return None


def _walk_back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, bool]]:
    """Each differing line: its positions, and whether it is an added one. In order."""
    found = []
    for count in range(len(trace) - 1, 0, -1):
        furthest, diagonal = trace[count], x - y
        down = diagonal == -count or (
            diagonal != count and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        came = diagonal + 1 if down else diagonal - 1
        x = furthest[came]
        y = x - came
        found.append((x, y, down))
    return found[::-1]


def _merged(steps: list[tuple[int, int, bool]], start: int) -> list[_Range]:
    found: list[_Range] = []
    for x, y, added in steps:
        old, new = x + start, y + start
        end = (old, new + 1) if added else (old + 1, new)
        if found and found[-1][1] == old and found[-1][3] == new:
            found[-1] = (found[-1][0], end[0], found[-1][2], end[1])
        else:
            found.append((old, end[0], new, end[1]))
    return found
