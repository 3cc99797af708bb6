"""What a trial has seen: the objects of the pushed pack and of the packs that upstream answered.

Used by `policy/trial.py`. Every object was named by its content, so it does not matter who sent it;
only whose fault it is when one cannot be read: the pack that was pushed is refused for it, while
what upstream has of old, and is odd, counts as not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from keyhole.wire.gitobject import (
    OID_BYTES,
    Kind,
    kind_of_mode,
    object_id,
    parse_commit,
    parse_tag,
    parse_tree,
)
from keyhole.wire.httpfield import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.wire.gitobject import Commit, Entry, Tag
    from keyhole.wire.pack import Pack

T = TypeVar("T")

_NOT_ITS_KIND = "a tree has an entry whose mode is not that of its object"


class Objects:
    """Objects by oid. Each reader gives None for what was not seen, or is of another kind."""

    def __init__(self, object_format: str, pushed: Pack | None) -> None:
        self._oid_bytes = OID_BYTES[object_format]
        self._pushed = pushed
        self._answers: list[Pack] = []
        self._commits: dict[bytes, Commit] = {}
        # Git knows it without having it, so packs do not bring it.
        self._empty_tree = object_id(Kind.TREE, b"", object_format)

    def add(self, answer: Pack) -> None:
        """See what upstream has sent, too."""
        self._answers.append(answer)

    def has(self, oid: bytes) -> bool:
        """Whether upstream has sent this, readable or not."""
        return any(answer.kind(oid) is not None for answer in self._answers)

    def is_file(self, oid: bytes) -> bool:
        """Whether this is shown to be a blob. Raises Malformed if it is shown to be none.

        A tree may say "file" of a directory. Git itself does not look into such a one, but another
        reader may, and then finds there what no judge has seen.
        """
        packs = [pack for pack in (self._pushed, *self._answers) if pack is not None]
        if any(pack.kind(oid) is not None for pack in packs):
            raise Malformed(_NOT_ITS_KIND)
        return any(pack.is_blob(oid) for pack in packs)

    def shows(self, oid: bytes) -> bool:
        """Whether the push brings this, or upstream has sent it."""
        return self.has(oid) or self._pushed_kind(oid) is not None

    def is_other(self, oid: bytes) -> bool:
        """Whether the push itself brings this, and as something else than a commit."""
        return self._pushed_kind(oid) not in (None, Kind.COMMIT)

    def _pushed_kind(self, oid: bytes) -> Kind | None:
        return self._pushed.kind(oid) if self._pushed is not None else None

    def commit(self, oid: bytes) -> Commit | None:
        """A commit's tree and parents; remembered, since walks come by again and again."""
        known = self._commits.get(oid)
        if known is None:
            known = self._read(oid, Kind.COMMIT, parse_commit)
            if known is not None:
                self._commits[oid] = known
        return known

    def tree(self, oid: bytes) -> list[Entry] | None:
        """A tree's entries."""
        return [] if oid == self._empty_tree else self._read(oid, Kind.TREE, self._parse_tree)

    def _parse_tree(self, content: bytes, oid_bytes: int) -> list[Entry]:
        """Read a tree, and compare its modes with what the push brings."""
        entries = parse_tree(content, oid_bytes)
        kind_of = self._pushed_kind if self._pushed is None else self._pushed.kind
        for mode, _, oid in entries:
            kind = kind_of(oid)
            if kind is not None and kind is not kind_of_mode(mode):
                raise Malformed(_NOT_ITS_KIND)
        return entries

    def tag(self, oid: bytes) -> Tag | None:
        """An annotated tag."""
        return self._read(oid, Kind.TAG, parse_tag)

    def _read(self, oid: bytes, kind: Kind, parse: Callable[[bytes, int], T]) -> T | None:
        pushed = self._pushed
        if pushed is not None and pushed.kind(oid) is kind:
            return parse(pushed.read(oid), self._oid_bytes)
        for answer in reversed(self._answers):
            if answer.kind(oid) is kind:
                try:
                    return parse(answer.read(oid), self._oid_bytes)
                except Malformed:
                    return None
        return None
