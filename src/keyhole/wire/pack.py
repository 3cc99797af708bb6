"""A pack: the positions of its objects, and its commits, trees and tags (gitformat-pack).

The judge makes one of the pushed pack and one of each pack that upstream sends. One pass finds
every object's end, as git does by inflating; commits, trees and tags are named by their content,
through deltas if need be. Blobs are inflated to find their end and dropped. They are named only on
demand (`is_blob`), since that takes a second pass.

An object that is not found here may still be in the pack for git: as a delta on an object that only
the server has. So absence proves nothing, and callers must not rely on it.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed
from keyhole.wire.git_delta import apply_delta
from keyhole.wire.git_object import OID_BYTES, ObjectKind, object_id, start_object_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Source(Protocol):
        """Bytes of known size that can be read anywhere."""

        @property
        def size(self) -> int: ...

        def read(self, at: int, size: int, /) -> bytes: ...


class PackBounds(Struct, frozen=True):
    """Limits on the work that a pack may cause (I9). A pack beyond them is refused."""

    objects: int = 1_000_000
    """Objects in all: the whole history of git itself has 400,000. Each costs 10 bytes here."""
    size: int = 16 * 1024 * 1024
    """Bytes of a commit, a tree or a tag, or of a delta on one: a directory of 400,000 files."""
    work: int = 8 * 1024 * 1024 * 1024
    """Bytes inflated or made by deltas in all, blobs too: some 20 s."""
    depth: int = 250
    """Deltas on deltas: what `git gc --aggressive` once made; by default git makes 50."""
    counted: int = 400_000
    """Commits, trees, tags, and deltas that may be one: each takes 200 bytes for the whole
    judgement."""


_HEADER_BYTES = 12
_OFS_DELTA = 6
_REF_DELTA = 7
_HIDDEN = 0
"""The kind of an object whose delta is on something that was not found."""

_KINDS = frozenset(kind.value for kind in ObjectKind)
_WINDOW = 256 * 1024
"""Bytes read at a time."""
_LEAST_READ = 4096
"""Bytes fed at least to an object that did not end where it should: it may be padded for long."""
_OUTPUT = 128 * 1024
"""Bytes of a dropped object inflated at a time; larger pieces are slower."""
_MOST_HEAD = 64
"""Bytes before an object's data: type and size in 10 at most, and an offset or an oid."""
_MAX_SIZE_SHIFT = 60
_MORE = 0x80
_SEVEN_BITS = 0x7F

HELD = 32 * 1024 * 1024
"""Bytes of objects that are kept for being read again, as the base of a delta or by the caller."""


class MemorySource:
    """A source that is in memory."""

    __slots__ = ("_data", "size")

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self.size = len(data)

    def read(self, at: int, size: int) -> bytes:
        """Some of the bytes, fewer at the end."""
        return bytes(self._data[at : at + size])


class _Head(Struct, frozen=True):
    """The header before an object's data, and where the data begins."""

    code: int
    size: int
    start: int
    base_at: int = -1
    base_oid: bytes = b""


class Pack:
    """The objects of one pack. Making it reads all of it; raises Malformed."""

    def __init__(
        self,
        source: Source,
        object_format: str,
        wanted: frozenset[ObjectKind] = frozenset(
            (ObjectKind.COMMIT, ObjectKind.TREE, ObjectKind.TAG)
        ),
        bounds: PackBounds | None = None,
    ) -> None:
        self._source = source
        self._format = object_format
        self._oid_bytes = OID_BYTES[object_format]
        self._wanted = frozenset(kind.value for kind in wanted - {ObjectKind.BLOB})
        self._bounds = bounds or PackBounds()
        self._work = self._counted = 0
        self._window, self._window_at = b"", 0
        self._starts = array("Q")
        self._kinds = bytearray()
        self._depths = bytearray()
        self._places: dict[bytes, int] = {}
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._blobs: dict[bytes, int] | None = None
        """The position of each blob; None until one is asked for."""
        # Deltas whose base has not been seen yet, by its oid, or by its number in the pack.
        self._awaiting_oid: dict[bytes, list[int]] = {}
        self._awaiting: dict[int, list[int]] = {}
        self._scan()

    def __len__(self) -> int:
        return len(self._starts)

    def kind(self, oid: bytes) -> ObjectKind | None:
        """The kind of an object; None for blobs and for objects that are not found."""
        at = self._places.get(oid)
        return None if at is None else ObjectKind(self._kinds[self._number(at)])

    def read(self, oid: bytes) -> bytes:
        """The content of an object that has a `kind`."""
        return self._content(self._places[oid])

    def is_blob(self, oid: bytes) -> bool:
        """Whether this is a blob here. One that is too large to be made by its delta is not found.

        The first call inflates every blob again, and applies the deltas on them.
        """
        if self._blobs is None:
            self._blobs = {}
            self._name_blobs(self._blobs)
        return oid in self._blobs

    # ── one pass ──────────────────────────────────────────────────────────────────────────────

    def _scan(self) -> None:
        header = self._source.read(0, _HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:4] != b"PACK" or header[4:8] != b"\0\0\0\2":
            raise Malformed("a pack does not begin with `PACK` and version 2")
        count = int.from_bytes(header[8:], "big")
        if count > self._bounds.objects:
            raise Malformed(f"a pack has more than {self._bounds.objects} objects")
        at = _HEADER_BYTES
        for _ in range(count):
            at = self._object(at)
        # The server checks the checksum at the end; its position is checked here.
        if at + self._oid_bytes != self._source.size:
            raise Malformed("a pack does not end behind its last object")
        self._window, self._window_at = b"", self._source.size
        for oid in [oid for oid in self._awaiting_oid if oid in self._places]:
            self._release(self._awaiting_oid.pop(oid))

    def _object(self, at: int) -> int:
        """Read the object at `at`, and return the position of the next one."""
        head = self._head(at)
        number, kind, depth, base = len(self._starts), head.code, 0, -1
        if head.code == _OFS_DELTA:
            base = self._number(head.base_at)
        elif head.code == _REF_DELTA:
            found = self._places.get(head.base_oid)
            if found is not None:
                base = self._number(found)
        elif head.code not in _KINDS:
            raise Malformed("a pack has an object of a kind that does not exist")
        if head.code in (_OFS_DELTA, _REF_DELTA):
            kind, depth = (self._kinds[base], self._depths[base] + 1) if base >= 0 else (_HIDDEN, 0)
        self._starts.append(at)
        self._kinds.append(kind)
        self._depths.append(0)
        if kind not in self._wanted:
            if kind == _HIDDEN:
                self._count()
                if head.code == _REF_DELTA:
                    self._awaiting_oid.setdefault(head.base_oid, []).append(number)
                else:
                    self._awaiting.setdefault(base, []).append(number)
            return self._inflate(head)[1]
        data, end = self._inflate(head, keep=True)
        if depth:
            data = self._apply(self._content(self._starts[base]), data)
        self._name(number, kind, depth, data)
        return end

    def _release(self, numbers: list[int]) -> None:
        """Apply the deltas whose base is known by now, and those on them, without recursion."""
        while numbers:
            number = numbers.pop()
            at = self._starts[number]
            head = self._head(at)
            base = head.base_at if head.code == _OFS_DELTA else self._places[head.base_oid]
            parent = self._number(base)
            kind = self._kinds[number] = self._kinds[parent]
            data = self._apply(self._content(base), self._inflate(head, keep=True)[0])
            oid = self._name(number, kind, self._depths[parent] + 1, data)
            numbers += self._awaiting.pop(number, ())
            numbers += self._awaiting_oid.pop(oid, ())

    def _name(self, number: int, kind: int, depth: int, data: bytes) -> bytes:
        """Record an object by its oid."""
        if depth > self._bounds.depth:
            raise Malformed(f"a pack has more than {self._bounds.depth} deltas on one another")
        self._depths[number] = depth
        oid = object_id(ObjectKind(kind), data, self._format)
        if oid in self._places:
            # Git makes no such pack, and it is open which of two contents a server would take.
            raise Malformed("a pack has one object twice")
        self._count()
        at = self._places[oid] = self._starts[number]
        self._hold(at, data)
        return oid

    def _name_blobs(self, found: dict[bytes, int]) -> None:
        """Name all blobs, and those whose delta is on one of them by its name."""
        numbers = [number for number, kind in enumerate(self._kinds) if kind == ObjectKind.BLOB]
        for number in numbers:  # it grows meanwhile
            at = self._starts[number]
            head = self._head(at)
            try:
                if head.code == ObjectKind.BLOB:
                    oid = self._hash_blob(head)
                else:
                    oid = object_id(ObjectKind.BLOB, self._content(at), self._format)
            except Malformed:
                continue  # beyond a bound: it counts as not found
            found[oid] = at
            numbers += self._awaiting_oid.pop(oid, ())
            numbers += self._awaiting.pop(number, ())

    def _hash_blob(self, head: _Head) -> bytes:
        """The name of a blob of any size, which is not kept."""
        digest = start_object_id(ObjectKind.BLOB, head.size, self._format)
        self._inflate(head, each=digest.update)
        return digest.digest()

    # ── objects ───────────────────────────────────────────────────────────────────────────────

    def _number(self, at: int) -> int:
        number = bisect_left(self._starts, at)
        if number == len(self._starts) or self._starts[number] != at:
            raise Malformed("a delta is on something that is no object")
        return number

    def _place(self, oid: bytes) -> int:
        place = self._places.get(oid)
        return place if place is not None else (self._blobs or {})[oid]

    def _content(self, at: int) -> bytes:
        """An object by its place: the nearest that is held, and the deltas from there."""
        deltas: list[tuple[int, _Head]] = []
        while (content := self._held.get(at)) is None:
            head = self._head(at)
            if head.code in _KINDS:
                content = self._inflate(head, keep=True)[0]
                break
            deltas.append((at, head))
            if len(deltas) > self._bounds.depth:  # of blobs; of all else it is known to be less
                raise Malformed(f"a pack has more than {self._bounds.depth} deltas on one another")
            at = head.base_at if head.code == _OFS_DELTA else self._place(head.base_oid)
        self._hold(at, content)
        for place, head in reversed(deltas):
            content = self._apply(content, self._inflate(head, keep=True)[0])
            self._hold(place, content)
        return content

    def _hold(self, at: int, content: bytes) -> None:
        """Keep it, and drop the least recently used ones."""
        old = self._held.pop(at, None)
        self._held[at] = content
        self._held_bytes += len(content) - (len(old) if old is not None else 0)
        while self._held_bytes > HELD:
            self._held_bytes -= len(self._held.pop(next(iter(self._held))))

    def _apply(self, base: bytes, delta: bytes) -> bytes:
        made = apply_delta(base, delta, self._bounds.size)
        self._spend(len(made))
        return made

    def _count(self) -> None:
        self._counted += 1
        if self._counted > self._bounds.counted:
            raise Malformed(f"a pack has more than {self._bounds.counted} commits and trees")

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > self._bounds.work:
            raise Malformed(f"a pack holds more than {self._bounds.work} bytes")

    def _head(self, at: int) -> _Head:
        data = self._read(at, _MOST_HEAD)
        try:
            octet = data[0]
            code, size, shift, place = octet >> 4 & 7, octet & 15, 4, 1
            while octet & _MORE:
                octet = data[place]
                size |= (octet & _SEVEN_BITS) << shift
                shift, place = shift + 7, place + 1
                if shift > _MAX_SIZE_SHIFT:
                    raise Malformed("an object of a pack is too large")
            if code == _REF_DELTA:
                end = place + self._oid_bytes
                return _Head(code, size, at + end, base_oid=data[place:end])
            if code != _OFS_DELTA:
                return _Head(code, size, at + place)
            octet = data[place]
            back, place = octet & _SEVEN_BITS, place + 1
            while octet & _MORE:
                octet = data[place]
                back, place = (back + 1 << 7) | octet & _SEVEN_BITS, place + 1
        except IndexError:
            raise Malformed("a pack ends within an object") from None
        if not 0 < back < at:
            raise Malformed("a delta is on something that is no object")
        return _Head(code, size, at + place, base_at=at - back)

    def _read(self, at: int, size: int) -> bytes:
        """Some bytes, out of the window that moves along with the scan where they are in it."""
        start = at - self._window_at
        if start < 0:
            return self._source.read(at, size)
        if start + size > len(self._window):
            self._window, self._window_at = self._source.read(at, max(size, _WINDOW)), at
            start = 0
        return self._window[start : start + size]

    def _inflate(
        self,
        head: _Head,
        *,
        keep: bool = False,
        each: Callable[[bytes], object] | None = None,
    ) -> tuple[bytes, int]:
        """An object's own data (if it is to be kept), and its end; `each` is called with every
        piece."""
        size, at = head.size, head.start
        if keep and size > self._bounds.size:
            raise Malformed(f"a commit, tree or tag has more than {self._bounds.size} bytes")
        self._spend(size)
        inflate = zlib.decompressobj()
        # Deflate makes data that it cannot shrink about a thousandth larger.
        piece = self._read(at, min(size + (size >> 8) + 32, _WINDOW))
        # One byte more than is said, so that one too many shows.
        left = size + 1
        kept: list[bytes] = []
        try:
            while piece:
                at += len(piece)
                data = inflate.decompress(piece, left if keep else min(left, _OUTPUT))
                left -= len(data)
                if left <= 0:
                    raise Malformed("an object of a pack is larger than it says")
                if keep:
                    kept.append(data)
                elif each is not None:
                    each(data)
                if inflate.eof:
                    break
                piece = inflate.unconsumed_tail
                at -= len(piece)
                if not piece:
                    piece = self._read(at, min(max(left, _LEAST_READ), _WINDOW))
        except zlib.error:
            raise Malformed("an object of a pack cannot be inflated") from None
        if not inflate.eof:
            raise Malformed("a pack ends within an object")
        if left != 1:
            raise Malformed("an object of a pack is smaller than it says")
        return b"".join(kept), at - len(inflate.unused_data)
