"""Makes text of somebody else safe to show on a terminal or in a log (I8), or to normalise
(I12)."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MARKS = 30
"""Combining marks in a row: as many as Unicode's "Stream-Safe Text Format" has (UAX 15 §13)."""

MAX_PILED = 2
"""Marks on one letter that are drawn where a person decides: Vietnamese and Thai have as many."""

# Cc: control; Cf: format, which holds the bidi overrides; Cs: surrogates; Co, Cn: private and
# unassigned; Zl, Zp: line breaks that `splitlines` honours.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks that are drawn as nothing: a joiner, fillers, a blank, variation selectors.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)

# Letters of Hebrew, Arabic and the like, and Arabic digits (UAX 9, table 4).
_BACKWARDS = frozenset({"R", "AL", "AN"})

# A circle or a bar around or over the letter before it.
_ENCLOSING = "Me"

# Letters by their category that become marks.
_MARKS_TOO = frozenset("\uff9e\uff9f")


def visible(text: str) -> str:
    """The text with every character that hides, reorders or moves the cursor written as an escape.

    Attack: a policy whose bidi override makes `evil.example` read as a comment in the prompt.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if _is_hidden(c) else c for c in text)


def in_order(text: str) -> str:
    """The same, and as escapes, too: letters that are written from right to left, and marks that
    enclose a letter or pile up on it.

    Attack: a path such as `/v1/<hebrew>/1/safe`, whose neutral signs and digits a terminal or a
    browser draws around the letters in another order than the server reads them. Where a person
    decides, the order is that of the characters. Or thirty marks on one letter, which a browser
    draws over the lines above and below it.
    """
    text = visible(text)
    return text if text.isascii() else "".join(_in_order(text))


def _in_order(text: str) -> Iterator[str]:
    pile = 0
    for char in text:
        category = unicodedata.category(char)
        pile = pile + 1 if category[0] == "M" else 0
        strange = pile > MAX_PILED or category == _ENCLOSING or runs_backwards(char)
        yield _escape(char) if strange else char


def runs_backwards(text: str) -> bool:
    """Whether a text has letters or digits that are drawn from right to left."""
    return not text.isascii() and any(unicodedata.bidirectional(c) in _BACKWARDS for c in text)


def check_marks(text: str) -> None:
    """Refuse a text that takes long to normalise; called before normalising.

    Normalising puts each run of combining marks in order, one by one: 16,000 marks take half a
    second, and ten times as many a minute. No language has more than a few in a row.
    """
    run = 0
    for char in text if len(text) > MAX_MARKS and not text.isascii() else "":
        # Not `combining()`: some marks of class 0 are made of others that are not.
        run = run + 1 if unicodedata.category(char)[0] == "M" or char in _MARKS_TOO else 0
        if run > MAX_MARKS:
            raise Unparsable(f"a text has at most {MAX_MARKS} combining marks in a row")


def _is_hidden(char: str) -> bool:
    return (
        unicodedata.category(char) in _HIDDEN or (char != " " and char.isspace()) or char in _BLANK
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
