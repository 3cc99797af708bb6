"""TOML with positions: tomllib's values, and where each key and value stands.

tomllib alone decides what a file means; the scanner below only finds places in a text that tomllib
has accepted, so that a slip in it can misplace a caret but never change a policy. (No maintained
library gives positions in Python; a property test compares the two on every path.)
"""

from __future__ import annotations

import bisect
import re
import tomllib
from typing import Any, TypeAlias

from msgspec import Struct

from keyhole.model.redacted import redacted_repr
from keyhole.model.toml import LONG_KEY, parse_toml
from keyhole.policy.fault import PolicyFault, PolicyFaults, TextSpan

MAX_DOCUMENT_SIZE = 1024 * 1024
"""Bytes of a policy: 5,000 rules are about 200 KiB."""

Path: TypeAlias = tuple[str | int, ...]

_HIDDEN = '"…"'

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*+)*")
_HEADER_END = re.compile(r"[ \t]*\]+")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d[^\s,\]}#]*")
_SCALAR = re.compile(r"[^\s,\]}#]+")
_VALUES = (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _DATE_TIME, _SCALAR)
_TOML_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class TomlDocument(Struct, frozen=True):
    """A parsed file: its values and their places."""

    file: str
    text: str
    tree: dict[str, Any]
    keys: dict[Path, TextSpan]
    values: dict[Path, TextSpan]

    __repr__ = redacted_repr("keys", "values")

    def fault(
        self,
        span: TextSpan | None,
        message: str,
        hint: str | None = None,
        *,
        hides: bool = False,
    ) -> PolicyFault:
        """A fault at a place of this document; with `hides`, the text there is not shown."""
        span = span or TextSpan(1, 1)
        lines = self.text.split("\n")
        source = lines[span.line - 1].removesuffix("\r") if span.line <= len(lines) else ""
        if hides:
            start = span.column - 1
            source = source[:start] + _HIDDEN + source[start + span.length :]
            span = TextSpan(span.line, span.column, len(_HIDDEN))
        return PolicyFault(self.file, span, message, hint, source)


def parse_document(file: str, data: bytes) -> TomlDocument:
    """Read TOML, or raise PolicyFaults with the one place where it stops being TOML."""
    if len(data) > MAX_DOCUMENT_SIZE:
        raise PolicyFaults(
            (
                PolicyFault(
                    file, TextSpan(1, 1), f"the file is larger than {MAX_DOCUMENT_SIZE} bytes"
                ),
            )
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        at = TextSpan(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise PolicyFaults((PolicyFault(file, at, "the file is not UTF-8"),)) from None
    document = TomlDocument(file, text, {}, {}, {})
    try:
        document.tree.update(parse_toml(text))
        TomlScanner(text, document.keys, document.values).scan()
    except RecursionError:
        raise PolicyFaults((document.fault(None, "values are nested too deeply"),)) from None
    except ValueError as error:
        raise PolicyFaults((_syntax_fault(document, str(error)),)) from None
    return document


def _syntax_fault(document: TomlDocument, message: str) -> PolicyFault:
    found = _TOML_PLACE.fullmatch(message)
    if not found:
        return document.fault(None, f"not TOML: {message}")
    if found[2]:
        span = TextSpan(int(found[2]), int(found[3]))
    else:
        lines = document.text.rstrip("\n").split("\n")
        span = TextSpan(len(lines), len(lines[-1]) + 1)
    said = found[1] if found[1] == LONG_KEY else f"not TOML: {found[1]}"
    return document.fault(span, said)


class TomlScanner:
    """Scans a text that is known to be TOML and notes the place of each path."""

    def __init__(self, text: str, keys: dict[Path, TextSpan], values: dict[Path, TextSpan]) -> None:
        self.text = text
        self.at = 0
        self.keys = keys
        self.values = values
        self.rows: dict[Path, int] = {}
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def scan(self) -> None:
        prefix: Path = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_BLANK)

    def _header(self) -> Path:
        is_row = self.text.startswith("[[", self.at)
        self.at += 2 if is_row else 1
        path: Path = ()
        names = self._key()
        for depth, (name, span) in enumerate(names, 1):
            path = (*path, name)
            self.keys.setdefault(path, span)
            if is_row and depth == len(names):
                self.rows[path] = self.rows.get(path, -1) + 1
                self.keys[(*path, self.rows[path])] = span
            if path in self.rows:
                path = (*path, self.rows[path])
        self._skip(_HEADER_END)
        return path

    def _pair(self, prefix: Path) -> Path:
        path = prefix
        for name, span in self._key():
            path = (*path, name)
            self.keys.setdefault(path, span)
        self.at += 1  # the '='
        self._skip(_SPACE)
        self._value(path)
        return path

    def _key(self) -> list[tuple[str, TextSpan]]:
        names = []
        while True:
            self._skip(_SPACE)
            start = self.at
            if self.text[start] in "\"'":
                token = self._skip(_BASIC if self.text[start] == '"' else _LITERAL)
                name = tomllib.loads(f"key = {token}")["key"]
            else:
                name = self._skip(_BARE_KEY)
            names.append((name, self._span(start, self.at)))
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return names
            self.at += 1

    def _value(self, path: Path) -> None:
        start = self.at
        if self.text[start] == "[":
            self._sequence("]", path)
        elif self.text[start] == "{":
            self._sequence("}", path)
        else:
            any(self._skip(pattern) for pattern in _VALUES)  # the first that fits
        self.values[path] = self._span(start, self.at)

    def _sequence(self, end: str, path: Path) -> None:
        """An array or an inline table: its items are at path + index, or path + key."""
        self.at += 1
        self._skip(_BLANK)
        index = 0
        while self.text[self.at] != end:
            if end == "]":
                self._value((*path, index))
            else:
                self._pair(path)
            index += 1
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self._skip(_BLANK)
        self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        return found[0]

    def _span(self, start: int, end: int) -> TextSpan:
        line = bisect.bisect_right(self.starts, start) - 1
        column = start - self.starts[line] + 1
        newline = self.text.find("\n", start, end)
        return TextSpan(line + 1, column, (newline if newline >= 0 else end) - start)
