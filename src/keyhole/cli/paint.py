"""Coloured text on a terminal, plain text elsewhere; notices; columns; JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

_PLAIN_TERMINALS = frozenset({"", "dumb", "unknown"})
"""Values of TERM of terminals that cannot move the cursor."""


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in colour where the stream is a terminal and NO_COLOR is unset."""
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return text
    codes = ";".join(_CODES[s] for s in styles)
    return f"\x1b[{codes}m{text}\x1b[0m"


def is_drawn(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in _PLAIN_TERMINALS


def notice(line: str, colour: str = "yellow") -> None:
    """Print a line on standard error, after `keyhole:`."""
    name = paint("keyhole:", colour, stream=sys.stderr)
    print(f"{name} {line}", file=sys.stderr, flush=True)


def json_text(value: object, indent: int | None = None) -> str:
    """JSON in readable characters; all in ASCII if it has a path that is not UTF-8, whose
    characters no terminal takes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json_text(value, indent=2))


def print_below(
    head: str, text: str, mark: str = "", style: str = "yellow", stream: TextIO | None = None
) -> None:
    """Print a text and a mark in colour after their head. On a terminal that is narrower, they go
    on below themselves; elsewhere they are one line."""
    stream = stream or sys.stdout
    width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    words = [(word, "") for word in text.split(" ")]
    if mark:
        words += [("", ""), *((word, style) for word in mark.split(" "))]
    line, used = head, len(head)
    for index, (word, colour) in enumerate(words):
        between = " " if index else ""
        if width and used > len(head) and used + len(between) + len(word) > width:
            print(line.rstrip(), file=stream)
            line, used, between = " " * len(head), len(head), ""
        line += between + (paint(word, colour, stream=stream) if colour else word)
        used += len(between) + len(word)
    print(line, file=stream)


def columns(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Rows as aligned columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        indent + "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
