"""A diff is right, bounded, and shows nothing that moves a cursor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyhole.changes import difference
from keyhole.changes.difference import changed_ranges, is_text, unified_lines

LINES = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=14)


@given(LINES, LINES)
def test_the_ranges_turn_one_text_into_the_other(before: list[bytes], after: list[bytes]) -> None:
    made, at = [], 0
    for old_from, old_to, new_from, new_to in changed_ranges(before, after):
        made += before[at:old_from]
        assert len(made) == new_from
        made += after[new_from:new_to]
        at = old_to
    assert made + before[at:] == after


def test_a_change_is_shown_with_the_lines_around_it() -> None:
    old = b"".join(b"%d\n" % n for n in range(1, 21))
    new = old.replace(b"5\n", b"five\n", 1).replace(b"20\n", b"20\n21\n")
    assert unified_lines(old, new) == [
        "@@ -2,7 +2,7 @@", " 2", " 3", " 4", "-5", "+five", " 6", " 7", " 8",
        "@@ -18,3 +18,4 @@", " 18", " 19", " 20", "+21",
    ]  # fmt: skip
    assert unified_lines(b"", b"x\n") == ["@@ -0,0 +1,1 @@", "+x"]
    assert unified_lines(old, old) == []


def test_text_that_would_move_the_cursor_is_escaped_and_long_lines_are_cut() -> None:
    """I8. Control: plain text and tabs are shown as they are."""
    shown = unified_lines(b"", b"\x1b[2J\xff\r\n\tplain\n" + b"w" * 5000 + b"\n")
    assert shown[1:3] == ["+\\x1b[2J\\udcff\\x0d", "+\tplain"]
    assert len(shown[3]) <= difference.MAX_COLUMNS + 2
    assert shown[3].endswith("…")


def test_a_missing_newline_at_the_end_is_a_change() -> None:
    marked = "a\\ no newline at the end"
    assert unified_lines(b"a\n", b"a")[1:] == ["-a", f"+{marked}"]
    # Attack: a line that reads like the mark must not count as the same.
    assert unified_lines(b"a", marked.encode() + b"\n")[1:] == [f"-{marked}", f"+{marked}"]


def test_work_and_output_are_bounded_whatever_the_texts_are() -> None:
    """I12: two texts with nothing in common are shown as one replacement, cut after some lines."""
    old = b"".join(b"old %d\n" % n for n in range(20_000))
    new = b"".join(b"new %d\n" % n for n in range(20_000))
    assert changed_ranges(old.split(b"\n"), new.split(b"\n")) == [(0, 20_000, 0, 20_000)]
    assert len(unified_lines(old, new)) == difference.MAX_LINES + 1


def test_a_file_with_a_nul_is_no_text() -> None:
    assert is_text(b"abc")
    assert not is_text(b"a\0c")
