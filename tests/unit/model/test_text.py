"""Text from someone else moves no cursor, hides nothing and breaks no line (I8)."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.text import MAX_MARKS, MAX_PILED, check_marks, in_order, runs_backwards, visible

HIDDEN = {
    "control": "a\0b a\x7fb a\x08b",
    "terminal escapes, in seven and in eight bits": "\x1b[2Jgone \x1b]0;title\x07 \x9b2J",
    "what reorders": "\u202eevil \u2066x\u2069 \u200fx \u061cx",
    "what breaks a line": "a\u2028b a\u2029b a\x85b a\x0b\x0cb",
    "what is not seen": "a\u200bb a\u00adb \ufeffa a\u2060b a\u3164b a\u115f\u1160b a\uffa0b "
    "a\u2800b a\u034fb a\ufe00\ufe0fb a\u180b\u180fb a\U000e0100\U000e01efb a\U000e0041b",
    "spaces that are none": "a\u00a0b a\u3000b a\u2003b",
    "what has no meaning": "a\ud800b a\udcffb a\ue000b a\U0010ffffb a\u0378b a\uffffb",
}
"""Each is shown as Python itself writes it out."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\x0ab"),
        ("a\r\nb", "a\\x0d\\x0ab"),
        ("a\tb", "a\\x09b"),
        *((t, ascii(t)[1:-1]) for texts in HIDDEN.values() for t in texts.split(" ")),
    ],
)
def test_a_character_that_hides_reorders_or_moves_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain text, 100 %",
        "café au lait",
        "\u1810\ufe10",
        "中国",
        "Ün\u00efcödé",
        "a\\x1bb",
        "💩",
        "e\u0301",
        "\u2018\u2019",
    ],
)
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    """The control: escapes are for what deserves them."""
    assert visible(text) == text


@given(st.text(st.characters(), max_size=30))
def test_what_is_shown_is_one_line_of_printable_text(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.bidirectional(c) in {"RLO", "LRO", "RLE", "LRE"} for c in shown)
    shown.encode("utf-8")


@given(st.text(st.characters(), max_size=30))
def test_showing_twice_is_showing_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("mark", ["\u0301", "\u0323", "\u0f73", "\uff9e"])
def test_combining_marks_in_a_row_are_bounded(mark: str) -> None:
    """I12: to put a run of them in order takes quadratic time."""
    check_marks(("a" + mark * MAX_MARKS) * 3)
    check_marks("a" * 1000)
    with pytest.raises(Unparsable, match="marks in a row"):
        check_marks("a" + mark * (MAX_MARKS + 1))


def test_every_character_that_becomes_a_mark_counts_as_one() -> None:
    """Attack: one that does not would join two runs of thirty to one of sixty, and so on."""
    for code in range(0x110000):
        char = chr(code)
        if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]):
            with pytest.raises(Unparsable):
                check_marks(char * (MAX_MARKS + 1))


def test_marks_cannot_cover_other_lines_of_what_a_person_decides_by_i8() -> None:
    """Control: the marks of languages stay."""
    piled = "/z" + "\u0336" * 30
    assert in_order(piled) == "/z" + "\u0336" * MAX_PILED + "\\u0336" * (30 - MAX_PILED)
    assert in_order("/a\u20e0\u0301b\u0301") == "/a\\u20e0\u0301b\u0301"
    assert in_order("/\u0e1b\u0e35\u0e48/e\u0323\u0302") == "/\u0e1b\u0e35\u0e48/e\u0323\u0302"


def test_letters_from_right_to_left_cannot_reorder_what_a_person_decides_by() -> None:
    """Control: what other scripts have stays readable."""
    path = "/v1/\u05d0\u05d1/1/\u0627\u0661/x"
    assert in_order(path) == "/v1/\\u05d0\\u05d1/1/\\u0627\\u0661/x"
    assert in_order("/\u00fc/\u65e5\u672c/a\u202eb") == "/\u00fc/\u65e5\u672c/a\\u202eb"
    assert runs_backwards(path)
    assert not runs_backwards("/\u00fc/\u65e5\u672c")
    assert not runs_backwards("/plain")
