"""Reads the text of a git config file, without running git and without following an include.

Called for the host's own settings (`git_identity.py`) and for the sandbox's. A line that git would
reject makes the whole file unreadable, because half of a config may mean its opposite. The copy of
a repository's config for the sandbox is made by git itself, not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"'}
_BLANKS = " \t\r"
_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_COMMENTS = "#;"
_REJECTED = "git would reject this file"


class GitSetting(Struct, frozen=True):
    """`section[.subsection].name`, the outer two in lower case; no value means true."""

    section: str
    subsection: str | None
    name: str
    value: str | None


def parse(text: str) -> tuple[GitSetting, ...]:
    """The settings in the order of the file; raises Malformed."""
    return tuple(_Scanner(text.replace("\r\n", "\n")).settings())


class _Scanner:
    """One pass over the characters; the end of the text ends the line, as in git."""

    def __init__(self, text: str) -> None:
        self._text = text if text.endswith("\n") else f"{text}\n"
        self._at = 0

    def settings(self) -> Iterator[GitSetting]:
        section: tuple[str, str | None] | None = None
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in _BLANKS or char == "\n":
                self._at += 1
            elif char in _COMMENTS:
                self._at = self._text.index("\n", self._at)
            elif char == "[":
                self._at += 1
                section = self._section()
            elif section is None or not (char.isascii() and char.isalpha()):
                raise Malformed(_REJECTED)
            else:
                name = self._word(_KEY).lower()
                yield GitSetting(*section, name, self._value())

    def _section(self) -> tuple[str, str | None]:
        name = self._word(_KEY | {"."}).lower()
        char = self._take()
        if not name:
            raise Malformed(_REJECTED)
        if char == "]":
            # `[branch.main]`, from before there were quotes.
            outer, dot, inner = name.partition(".")
            return outer, inner if dot else None
        if char not in _BLANKS:
            raise Malformed(_REJECTED)
        self._word(frozenset(_BLANKS))
        if self._take() != '"':
            raise Malformed(_REJECTED)
        inner = ""
        while (char := self._take()) != '"':
            if char == "\\":
                char = self._take()
            if char == "\n":
                raise Malformed(_REJECTED)
            inner += char
        if self._take() != "]":
            raise Malformed(_REJECTED)
        return name, inner

    def _value(self) -> str | None:
        self._word(frozenset(" \t"))
        char = self._take()
        if char == "\n":
            return None
        if char != "=":
            raise Malformed(_REJECTED)
        found, blanks, quoted = "", "", False
        while (char := self._take()) != "\n":
            if not quoted and char in _BLANKS:
                # Spaces within the value count; those before and after it do not.
                blanks += char if found else ""
                continue
            if not quoted and char in _COMMENTS:
                self._at = self._text.index("\n", self._at)
                continue
            found, blanks = found + blanks, ""
            if char == '"':
                quoted = not quoted
            elif char == "\\":
                escaped = self._take()
                if escaped != "\n":
                    found += self._escape(escaped)
            else:
                found += char
        if quoted:
            raise Malformed(_REJECTED)
        return found

    def _escape(self, char: str) -> str:
        if char not in _ESCAPES:
            raise Malformed(_REJECTED)
        return _ESCAPES[char]

    def _word(self, alphabet: frozenset[str]) -> str:
        start = self._at
        while self._text[self._at] in alphabet:
            self._at += 1
        return self._text[start : self._at]

    def _take(self) -> str:
        """The next character; after the last one a line's end, as in git."""
        self._at += 1
        return self._text[self._at - 1] if self._at <= len(self._text) else "\n"
