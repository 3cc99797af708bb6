"""The objects that a trial has: those of the pushed pack and of the packs that upstream sent.

Used by `policy/push_trial.py`. Every object is named by its content, so its sender does not matter.
The sender matters when an object cannot be read: a pushed pack is refused for it, while an
unreadable old object of upstream counts as not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from keyhole.model.errors import Malformed
from keyhole.wire.git_object import (
    OID_BYTES,
    ObjectKind,
    kind_of_mode,
    object_id,
    parse_commit,
    parse_tag,
    parse_tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.wire.git_object import Commit, Tag, TreeEntry
    from keyhole.wire.pack import Pack

T = TypeVar("T")

_NOT_ITS_KIND = "a tree has an entry whose mode is not that of its object"


class PushedObjects:
    """Objects by oid. Each reader returns None for an object that was not seen, or is of another
    kind."""

    def __init__(self, object_format: str, pushed: Pack | None) -> None:
        self._oid_bytes = OID_BYTES[object_format]
        self._pushed = pushed
        self._answers: list[Pack] = []
        self._commits: dict[bytes, Commit] = {}
        # Git knows the empty tree without having it, so packs do not contain it.
        self._empty_tree = object_id(ObjectKind.TREE, b"", object_format)

    def add(self, answer: Pack) -> None:
        """Add a pack that upstream has sent."""
        self._answers.append(answer)

    def has(self, oid: bytes) -> bool:
        """Whether upstream has sent this, readable or not."""
        return any(answer.kind(oid) is not None for answer in self._answers)

    def is_file(self, oid: bytes) -> bool:
        """Whether this is shown to be a blob. Raises Malformed if it is shown to be something else.

        A tree may call a directory a file. Git itself does not look into it, but another reader
        may, and then finds files there that were never judged.
        """
        packs = [pack for pack in (self._pushed, *self._answers) if pack is not None]
        if any(pack.kind(oid) is not None for pack in packs):
            raise Malformed(_NOT_ITS_KIND)
        return any(pack.is_blob(oid) for pack in packs)

    def shows(self, oid: bytes) -> bool:
        """Whether the push contains this, or upstream has sent it."""
        return self.has(oid) or self._pushed_kind(oid) is not None

    def is_other(self, oid: bytes) -> bool:
        """Whether the push itself contains this, and not as a commit."""
        return self._pushed_kind(oid) not in (None, ObjectKind.COMMIT)

    def _pushed_kind(self, oid: bytes) -> ObjectKind | None:
        return self._pushed.kind(oid) if self._pushed is not None else None

    def commit(self, oid: bytes) -> Commit | None:
        """A commit's tree and parents; cached, since walks visit it again and again."""
        known = self._commits.get(oid)
        if known is None:
            known = self._read(oid, ObjectKind.COMMIT, parse_commit)
            if known is not None:
                self._commits[oid] = known
        return known

    def tree(self, oid: bytes) -> list[TreeEntry] | None:
        """A tree's entries."""
        return [] if oid == self._empty_tree else self._read(oid, ObjectKind.TREE, self._parse_tree)

    def _parse_tree(self, content: bytes, oid_bytes: int) -> list[TreeEntry]:
        """Parse a tree, and compare its modes with the objects of the push."""
        entries = parse_tree(content, oid_bytes)
        kind_of = self._pushed_kind if self._pushed is None else self._pushed.kind
        for mode, _, oid in entries:
            kind = kind_of(oid)
            if kind is not None and kind is not kind_of_mode(mode):
                raise Malformed(_NOT_ITS_KIND)
        return entries

    def tag(self, oid: bytes) -> Tag | None:
        """An annotated tag."""
        return self._read(oid, ObjectKind.TAG, parse_tag)

    def _read(self, oid: bytes, kind: ObjectKind, parse: Callable[[bytes, int], T]) -> T | None:
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
