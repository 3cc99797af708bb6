"""Compressed field sections of HTTP/2 (RFC 7541): read with a table, written without.

Called by `http2.py`. Written sections never refer to a dynamic table: a line becomes the same bytes
each time and can be cached, and no credential enters a compression context. The peer's table is
kept as the peer fills it, within `TABLE_SIZE`. The Huffman code and static table are hpack's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpack.table import HeaderTable

from keyhole.http.field import MAX_HEAD, MAX_LINE
from keyhole.http.huffman import decode_huffman
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLE_SIZE = 4096
"""Bytes of the peer's dynamic table, which is the protocol's default."""

MAX_INTEGER_BYTES = 4
"""Bytes of a number behind its first: more than any length or index here needs."""

MAX_REPEATED = 8
"""Field sections that are remembered: a busy client repeats few."""

MAX_REPEATED_SECTION = 1024
"""Bytes of such a section: most name entries of the table, and are far shorter."""

MAX_KNOWN_TEXTS = 32
"""Texts of a peer whose Huffman code is remembered: those of a few heads."""

MAX_KNOWN_TEXT = 64
"""Bytes of such a code."""

ENTRY_OVERHEAD = 32
"""Bytes that each field counts for beside its name and value (RFC 7541 §4.1)."""

Pair = tuple[bytes, bytes]

_STATIC: tuple[Pair, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC = len(_STATIC)
_STATIC_PAIRS = {pair: index for index, pair in reversed(list(enumerate(_STATIC))) if index}
_STATIC_NAMES = {pair[0]: index for index, pair in reversed(list(enumerate(_STATIC))) if index}

_INDEXED = 0x80
_INSERTED = 0x40
_RESIZED = 0x20
_NEVER_INDEXED = 0x10
_HUFFMAN = 0x80

EMPTY_TABLE = bytes((_RESIZED,))
"""At the start of the first section that is written: no table is used (RFC 7541 §6.3)."""


_ANY = -1
"""The version of a table for a section that names no entry of it: it always means the same."""


class FieldSection(list[Pair]):
    """The fields of a section. One that comes again is the same object, while it means the same."""

    __slots__ = ("inserted", "meaning", "version")

    def __init__(self) -> None:
        super().__init__()
        self.inserted: list[Pair] = []
        """Those that enter the table, each time."""
        self.version = _ANY
        """The state of the table that it names entries of."""
        self.meaning: tuple[object, object] = (None, None)
        """As what these fields were read last, and the result, for when they come again."""


class FieldDecoder:
    """The fields that one peer sends."""

    __slots__ = ("_limit", "_named", "_repeated", "_size", "_table", "_texts", "_version")

    def __init__(self) -> None:
        self._table: list[Pair] = []
        """The newest is the last."""
        self._size = 0
        self._limit = TABLE_SIZE
        self._repeated: dict[bytes, FieldSection] = {}
        """Sections that were read before."""
        self._version = 0
        """How often the table has changed."""
        self._named = False
        """Whether the section that is read names an entry of the table."""
        self._texts: dict[bytes, bytes] = {}
        """Texts by their Huffman code: servers repeat theirs without naming the table."""

    def decode(self, section: bytes) -> FieldSection:
        """Read a section. Raises Malformed, after which the table is of no use any more."""
        known = self._repeated.get(section)
        if known is not None and known.version in (_ANY, self._version):
            if known.inserted:
                # nginx has each of its fields enter the table, and never names one.
                self._insert(known.inserted)
            return known
        fields, self._named = FieldSection(), False
        at, end, size, resized = 0, len(section), 0, False
        while at < end:
            byte = section[at]
            at += 1
            if byte & _INDEXED:
                index = byte & 0x7F
                if index == 0x7F:
                    index, at = _read_integer(section, at, index)
                pair = _STATIC[index] if 0 < index < _FIRST_DYNAMIC else self._find(index)
            elif byte & _INSERTED:
                pair, at = self._literal(section, at, byte, 0x3F)
                self._insert((pair,))
                fields.inserted.append(pair)
            elif byte & _RESIZED:
                if fields:
                    raise Malformed("a table is resized in the midst of a field section")
                at = self._resize(section, at, byte)
                resized = True
                continue
            else:
                pair, at = self._literal(section, at, byte, 0x0F)
            # Attack: an entry of 4 KiB that is named ten thousand times in 10 KiB.
            size += len(pair[0]) + len(pair[1]) + ENTRY_OVERHEAD
            if size > MAX_HEAD:
                raise Malformed(f"a field section has at most {MAX_HEAD} bytes")
            fields.append(pair)
        if not resized and not (self._named and fields.inserted):
            self._remember(section, fields)
        return fields

    def _remember(self, section: bytes, fields: FieldSection) -> None:
        if self._named:
            fields.version = self._version
        if len(section) <= MAX_REPEATED_SECTION:
            if len(self._repeated) >= MAX_REPEATED:
                self._repeated.clear()
            self._repeated[section] = fields

    def _find(self, index: int) -> Pair:
        if 0 < index < _FIRST_DYNAMIC:
            return _STATIC[index]
        back = index - _FIRST_DYNAMIC + 1
        if index == 0 or back > len(self._table):
            raise Malformed("a field section names an entry that the table does not have")
        self._named = True
        return self._table[-back]

    def _literal(self, section: bytes, at: int, byte: int, prefix: int) -> tuple[Pair, int]:
        index = byte & prefix
        if index == prefix:
            index, at = _read_integer(section, at, index)
        if index:
            name = self._find(index)[0]
        else:
            name, at = self._read_string(section, at)
        value, at = self._read_string(section, at)
        return (name, value), at

    def _read_string(self, section: bytes, at: int) -> tuple[bytes, int]:
        if at >= len(section):
            raise Malformed("a field section is cut off")
        byte = section[at]
        length = byte & 0x7F
        at += 1
        if length == 0x7F:
            length, at = _read_integer(section, at, length)
        end = at + length
        if end > len(section):
            raise Malformed("a field section is cut off")
        text = section[at:end]
        if byte & _HUFFMAN:
            text = self._texts.get(text) or self._decode_huffman(text)
        return text, end

    def _decode_huffman(self, code: bytes) -> bytes:
        if len(code) > MAX_LINE:
            # Attack: code that takes long to read, for a line that is refused afterwards.
            raise Malformed(f"a text in a field section has at most {MAX_LINE} bytes of code")
        text = decode_huffman(code)
        if len(code) <= MAX_KNOWN_TEXT:
            if len(self._texts) >= MAX_KNOWN_TEXTS:
                self._texts.clear()
            self._texts[code] = text
        return text

    def _insert(self, pairs: Iterable[Pair]) -> None:
        self._version += 1
        for pair in pairs:
            self._table.append(pair)
            self._size += len(pair[0]) + len(pair[1]) + ENTRY_OVERHEAD
        self._evict()

    def _resize(self, section: bytes, at: int, byte: int) -> int:
        size = byte & 0x1F
        if size == 0x1F:
            size, at = _read_integer(section, at, size)
        if size > TABLE_SIZE:
            raise Malformed(f"the table of field sections has at most {TABLE_SIZE} bytes")
        self._limit = size
        self._version += 1
        self._evict()
        return at

    def _evict(self) -> None:
        # Entries are at least 32 bytes, so that the table has at most 128.
        while self._size > self._limit:
            name, value = self._table.pop(0)
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD


def _read_integer(section: bytes, at: int, first: int) -> tuple[int, int]:
    """The rest of a number that did not fit its first byte (RFC 7541 §5.1)."""
    value, shift = first, 0
    for byte in section[at : at + MAX_INTEGER_BYTES]:
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("a number in a field section does not end")


def encode_field(name: bytes, value: bytes) -> bytes:
    """Write a field of this lower-case name."""
    pair = _STATIC_PAIRS.get((name, value))
    if pair is not None:
        return bytes((_INDEXED | pair,))
    index = _STATIC_NAMES.get(name)
    if index is None:
        return b"\x10%b%b" % (_write_string(name), _write_string(value))
    return _write_integer(_NEVER_INDEXED, 0x0F, index) + _write_string(value)


def encode_length(length: int) -> bytes:
    """Write a Content-Length, which has fewer digits than a text has bytes in its first byte."""
    digits = b"%d" % length
    return b"%b%c%b" % (_LENGTH_NAME, len(digits), digits)


def encode_line(line: bytes) -> bytes:
    """Write a field that is a line of HTTP/1.1, `Name: value` and CRLF."""
    name, _, value = line[:-2].partition(b": ")
    return encode_field(name.lower(), value)


def _write_string(text: bytes) -> bytes:
    return _write_integer(0, 0x7F, len(text)) + text


def _write_integer(flags: int, prefix: int, value: int) -> bytes:
    if value < prefix:
        return bytes((flags | value,))
    out = [flags | prefix]
    value -= prefix
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_LENGTH_NAME = _write_integer(_NEVER_INDEXED, 0x0F, _STATIC_NAMES[b"content-length"])
