"""Reads the plain part of a YAML file: tables by indentation, texts, and lists of texts.

Enough for goose's `config.yaml`, of which `init` wants to know the extensions. Anchors, tags, texts
of many lines and tables in one line are left out, since nothing here may take a reader's whole
language: the file is bounded, and each line is looked at once (I9).
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 8
"""Tables in tables."""

_ESCAPED = "|>&*!%@`[{#"


def read_indented(text: str) -> dict[str, Any]:
    """The file as a table; lines that are not understood are left out."""
    top: dict[str, Any] = {}
    open_tables: list[tuple[int, dict[str, Any], str]] = [(-1, top, "")]
    for line in text.splitlines():
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        depth = len(line) - len(line.lstrip(" "))
        if words.startswith("- "):
            _add_item(open_tables, depth, words[2:].strip())
            continue
        name, colon, value = words.partition(":")
        if not colon or (value and not value.startswith(" ")):
            continue
        while depth <= open_tables[-1][0]:
            open_tables.pop()
        _, table, _ = open_tables[-1]
        name, value = _plain(name), value.partition(" #")[0].strip()
        if value:
            table[name] = _value(value)
        elif len(open_tables) <= MAX_DEPTH:
            table[name] = inner = dict[str, Any]()
            open_tables.append((depth, inner, name))
    return top


def _add_item(open_tables: list[tuple[int, dict[str, Any], str]], depth: int, text: str) -> None:
    """An item of the list that the last table turns out to be. A list may be indented as little as
    its name."""
    while len(open_tables) > 2 and depth < open_tables[-1][0]:
        open_tables.pop()
    if len(open_tables) < 2:
        return
    _, inner, name = open_tables[-1]
    outer = open_tables[-2][1]
    if not inner:
        items = outer[name] if isinstance(outer.get(name), list) else []
        outer[name] = [*items[:100], _plain(text)]


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    return "" if text[0] in _ESCAPED else _plain(text)


def _plain(text: str) -> str:
    text = text.strip()
    quoted = len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    return text[1:-1] if quoted else text
