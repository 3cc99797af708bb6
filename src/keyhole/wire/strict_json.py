"""JSON of a client, read strictly: one encoding, one meaning, every number bounded (I9).

A body is judged here and read again by an origin, so it must not mean two things: no name stands
twice in an object, there is no byte order mark, no UTF-16, no NaN, no half of a surrogate pair, and
nothing behind the value. `read_json` uses parsers in C, which hold the interpreter lock; so a text
that would take them long is read by `read_json_in_slices`, which returns to the caller every
millisecond or so. Both accept the same texts.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from mmap import mmap
    from typing import NoReturn

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 128
"""Objects and arrays within one another: tools' schemas have some thirty."""

MAX_NUMBER = 64
"""Characters of a number; a double has at most 25 that matter."""

MAX_VALUES = 100_000
"""Values of one text, of which each costs memory: a conversation of a million tokens has a fifth
of that."""

MAX_AT_ONCE = 512 << 10
"""Bytes that are read at once, in 2 ms at most where they are one long text."""

MAX_MARKS_AT_ONCE = 16 << 10
"""Commas and opening brackets of a text that is read at once: each may be a value, and they take
5 ms."""

TOKENS_OF_A_SLICE = 512
"""Tokens that are read before the caller has its turn: half a millisecond."""

SAMPLE = 256
"""Bytes at the beginning of a text that show whether it is written without spaces."""

RUN = 64 << 10
"""Bytes of one long text that are read before the caller has its turn."""

KEPT_TEXT = 4096
"""Bytes of a text that are kept where `read_json_in_slices` may cut: no name that a rule compares
is as long."""

JsonSlices: TypeAlias = Generator[None, None, JsonValue]
"""Yields between two slices, and returns the value."""


def is_quick(data: bytes | bytearray) -> bool:
    """Whether `read_json` takes a few milliseconds at most."""
    if len(data) > MAX_AT_ONCE:
        return False
    return len(data) - len(data.translate(None, b",[{")) <= MAX_MARKS_AT_ONCE


# ── at once ───────────────────────────────────────────────────────────────────────────────────────


def read_json(data: bytes) -> JsonValue:
    """The value of a text. Raises Malformed."""
    # Most agents write no spaces. A text that begins with some is not tried in the quick way, which
    # would fail at the end of its work.
    if b'": ' not in data[:SAMPLE] and not _may_have_long_number(data):
        try:
            return _read_plain(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # it is written in another way, or is not JSON
    return _read_any(data)


def _read_plain(data: bytes) -> JsonValue:
    """The value of a text that is written as `JSON.stringify` writes. Raises ValueError,
    RecursionError or an error of msgspec's if it is not.

    msgspec takes half the time of `json`, but drops the first of two members with one name. So the
    value is written again: if that gives the same bytes, nothing was dropped.
    """
    value: JsonValue = msgspec.json.decode(data)
    if msgspec.json.encode(value) != data:
        raise ValueError
    _check_depth(value)
    return value


def _may_have_long_number(data: bytes) -> bool:
    """Whether there may be `MAX_NUMBER` digits in a row: then every eighth byte has eight digits in
    a row. Attack: msgspec would take 50 ms for 512 KiB of numbers with 4,000 digits each."""
    return b"0" * (MAX_NUMBER // 8) in data[::8].translate(_DIGITS_AS_ZERO)


_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)


def _read_any(data: bytes) -> JsonValue:
    try:
        # `json.loads` would guess UTF-16 from bytes.
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8") from None
    try:
        value: JsonValue = _decoder.decode(text)
    except RecursionError:
        _refuse_depth()
    except ValueError:
        raise Malformed("it is not JSON") from None
    _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    if len(made) != len(pairs):
        _refuse_twice()
    return made


def _integer(text: str) -> int:
    return int(text) if len(text) <= MAX_NUMBER else _refuse_number()


def _float(text: str) -> float:
    number = float(text) if len(text) <= MAX_NUMBER else math.inf
    return number if math.isfinite(number) else _refuse_number()


def _constant(_: str) -> float:
    return _refuse_number()


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


_CONTAINERS = frozenset({dict, list})


def _check_depth(value: JsonValue) -> None:
    # Level by level, each gathered at once: it costs half of what a walk from value to value does.
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            each
            for outer in level
            for each in (outer.values() if type(outer) is dict else outer)
            if type(each) in _CONTAINERS
        ]
        if not level:
            return
    _refuse_depth()


def _check_surrogates(value: JsonValue) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str) and not _encodes(one):
            _refuse_text()


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ── in slices ─────────────────────────────────────────────────────────────────────────────────────

_ESCAPE = (
    rb"\\(?:[\"\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
_space = re.compile(rb"[ \t\n\r]{1,65536}").match
_short = re.compile(rb'"([^"\\\x00-\x1f]{0,1024})"').match
_run = re.compile(rb'[^"\\\x00-\x1f]{1,65536}').match
_escapes = re.compile(rb"(?:%b[^\"\\\x00-\x1f]{0,64}){1,1024}" % _ESCAPE).match
_number = re.compile(rb"-?(?:0|[1-9][0-9]{0,63})(\.[0-9]{1,64})?([eE][+-]?[0-9]{1,64})?").match
_word = re.compile(rb"true|false|null").match
_WORDS: dict[bytes, JsonValue] = {b"true": True, b"false": False, b"null": None}

_QUOTE, _COMMA, _COLON, _OBJECT = b'",:{'
_ENDS = dict(zip(b"[{", b"]}", strict=True))


class _Slices:
    """Reads one text. `data` may be a file in memory; texts longer than `kept` are cut to it."""

    __slots__ = ("_at", "_data", "_kept", "_size", "_tokens")

    def __init__(self, data: bytes | mmap, kept: int) -> None:
        self._data = data
        self._size = len(data)
        self._kept = kept
        self._at = 0
        self._tokens = 0

    def read(self) -> JsonSlices:
        value = yield from self._document()
        yield from self._skip()
        if self._at != self._size:
            _refuse()
        return value

    def _document(self) -> JsonSlices:
        """A value and all within it, without recursion."""
        stack: list[tuple[int, list[JsonValue] | dict[str, JsonValue], str]] = []
        values = 0
        while True:
            code = yield from self._next()
            values += 1
            if values > MAX_VALUES:
                raise Malformed(f"it has more than {MAX_VALUES} values")
            value: JsonValue
            if code in _ENDS:
                self._at += 1
                if len(stack) >= MAX_DEPTH:
                    _refuse_depth()
                value = {} if code == _OBJECT else []
                if (yield from self._next()) != _ENDS[code]:
                    name = (yield from self._name()) if isinstance(value, dict) else ""
                    stack.append((_ENDS[code], value, name))
                    continue
                self._at += 1
            elif code == _QUOTE:
                value = yield from self._text()
            else:
                value = self._scalar()
            while stack:
                ends, outer, name = stack.pop()
                if isinstance(outer, list):
                    outer.append(value)
                else:
                    if name in outer:
                        _refuse_twice()
                    outer[name] = value
                code = yield from self._next()
                self._at += 1
                if code == _COMMA:
                    name = (yield from self._name()) if isinstance(outer, dict) else ""
                    stack.append((ends, outer, name))
                    break
                if code != ends:
                    _refuse()
                value = outer
            else:
                return value

    def _next(self) -> Generator[None, None, int]:
        """The byte that the next token begins with."""
        self._tokens += 1
        if self._tokens % TOKENS_OF_A_SLICE == 0:
            yield
        at = self._at
        if at < self._size and self._data[at] > 0x20:
            return self._data[at]
        yield from self._skip()
        if self._at == self._size:
            _refuse()
        return self._data[self._at]

    def _skip(self) -> Generator[None, None, None]:
        while (found := _space(self._data, self._at)) is not None:
            self._at = found.end()
            if found.end() - found.start() == RUN:
                yield

    def _scalar(self) -> JsonValue:
        found = _number(self._data, self._at)
        if found is not None:
            text = found.group().decode("ascii")
            self._at = found.end()
            return _float(text) if found[1] or found[2] else _integer(text)
        found = _word(self._data, self._at)
        if found is None:
            _refuse()
        self._at = found.end()
        return _WORDS[found.group()]

    def _name(self) -> Generator[None, None, str]:
        if (yield from self._next()) != _QUOTE:
            _refuse()
        name = yield from self._text()
        if (yield from self._next()) != _COLON:
            _refuse()
        self._at += 1
        return name

    def _text(self) -> Generator[None, None, str]:
        found = _short(self._data, self._at)
        if found is not None:
            self._at = found.end()
            return _utf8(found[1])
        return (yield from self._long_text())

    def _long_text(self) -> Generator[None, None, str]:
        """A text with escapes, or a long one: all of it is checked, its beginning is kept."""
        data, at, kept = self._data, self._at + 1, bytearray()
        check = codecs.getincrementaldecoder("utf-8")()
        while True:
            found = _run(data, at) or _escapes(data, at)
            if found is None:
                break
            piece = found.group()
            try:
                check.decode(piece)
            except UnicodeDecodeError:
                raise Malformed("it is not UTF-8") from None
            if len(kept) <= self._kept:
                kept += piece
            at = found.end()
            self._tokens += 1 + len(piece) // 128
            if self._tokens % TOKENS_OF_A_SLICE < 1 + len(piece) // 128:
                yield
        if at >= self._size or data[at] != _QUOTE:
            _refuse_text()
        try:
            check.decode(b"", final=True)
        except UnicodeDecodeError:
            raise Malformed("it is not UTF-8") from None
        self._at = at + 1
        text: str = json.loads(b'"%b"' % _whole_part(kept, self._kept))
        return text


def _whole_part(kept: bytearray, most: int) -> bytes:
    """The text up to `most` bytes, without half a character or escape at its end."""
    if len(kept) <= most:
        return bytes(kept)
    found = _beginning(kept, 0, most)
    end = found.end() if found is not None else 0
    return bytes(kept[:end]).decode("utf-8", "ignore").encode()


_beginning = re.compile(rb"(?:%b|[^\"\\\x00-\x1f]){1,65536}" % _ESCAPE).match


def read_json_in_slices(data: bytes | mmap, kept: int = KEPT_TEXT) -> JsonSlices:
    """The same as `read_json`, as a generator. Longer texts are cut to about `kept` bytes."""
    return _Slices(data, kept).read()


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8") from None


def _refuse() -> NoReturn:
    raise Malformed("it is not JSON")


def _refuse_depth() -> NoReturn:
    raise Malformed(f"it is nested deeper than {MAX_DEPTH}")


def _refuse_twice() -> NoReturn:
    raise Malformed("an object has a name twice")


def _refuse_number() -> NoReturn:
    raise Malformed(f"a number is not finite, or has more than {MAX_NUMBER} characters")


def _refuse_text() -> NoReturn:
    raise Malformed("a text has an invalid escape, or does not end")
