"""Reads an upper directory into changes, compared with the person's tree and with the record of it.

The directory is hostile data. It may even change while it is read: then what was read is shown, and
an apply, which needs the sandbox to have ended, reads again.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.changes.base_record import is_as_recorded
from keyhole.changes.entry import ChangeKind, EntryKind, FileChange
from keyhole.changes.tree_directory import (
    MAX_DEPTH,
    TreeDirectory,
    kind_of,
    same_content,
    stamp_of,
)
from keyhole.changes.upper_layer import UpperLayer, is_whiteout
from keyhole.model.errors import Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CHANGES = 500_000
"""Entries of a layer that are read; a view of a large project with its packages has fewer."""
MAX_COMPARED = 64 << 20
"""Bytes of a file that is compared by content; a larger one that the sandbox opened for writing
counts as changed."""
MAX_NAME = 3000
"""Bytes of a path in the tree (PATH_MAX is 4096)."""


class LayerReading:
    """One reading of one tree."""

    def __init__(self, upper: UpperLayer, lower: TreeDirectory, base: Mapping[str, str]) -> None:
        self._upper = upper
        self._lower = lower
        self._base = base
        self._left = MAX_CHANGES
        self.same: list[str] = []
        """Files of the layer that are equal to the person's."""

    def changes(self) -> list[FileChange]:
        """Every change, parents before their entries."""
        found: list[FileChange] = []
        todo = [("", False)]
        while todo:
            where, hidden = todo.pop()
            try:
                found += self._directory(where, hidden, todo)
            except (FileNotFoundError, NotADirectoryError):
                continue  # the sandbox runs, and has just removed it
            except PermissionError:
                found.append(self._change(where, self._upper.look(where), unreadable=True))
        return sorted(found, key=lambda change: change.name)

    def _directory(
        self, where: str, hidden: bool, todo: list[tuple[str, bool]]
    ) -> Iterator[FileChange]:
        above, below = self._upper.listing(where), self._lower.listing(where)
        hidden = hidden or (bool(where) and self._upper.is_opaque(where))
        for name, found in above.items():
            path = f"{where}/{name}" if where else name
            lower = below.get(name)
            self._count()
            if is_whiteout(found):
                yield from self._removed(path, lower)
            elif kind_of(found) is EntryKind.DIRECTORY:
                yield from self._inner(path, found, lower)
                if path.count("/") < MAX_DEPTH - 1 and len(os.fsencode(path)) < MAX_NAME:
                    todo.append((path, hidden))
            else:
                yield from self._entry(path, found, lower)
        for name, lower in below.items() if hidden else ():
            if name not in above:
                yield from self._removed(f"{where}/{name}" if where else name, lower)

    def _inner(
        self, path: str, found: os.stat_result, lower: os.stat_result | None
    ) -> Iterator[FileChange]:
        if path.count("/") >= MAX_DEPTH - 1 or len(os.fsencode(path)) >= MAX_NAME:
            yield replace(self._change(path, found, lower), kind=EntryKind.SPECIAL)
        elif kind_of(lower) is not EntryKind.DIRECTORY:
            yield self._change(path, found, lower)

    def _entry(
        self, path: str, found: os.stat_result, lower: os.stat_result | None
    ) -> Iterator[FileChange]:
        change = self._change(path, found, lower)
        if kind_of(lower) is EntryKind.DIRECTORY:
            inside = list(self._removed_below(path))
            yield from inside
            yield replace(change, conflict=change.conflict or any(c.conflict for c in inside))
        elif change.unreadable or not self._is_same(path, found, lower):
            yield change
        else:
            self.same.append(path)

    def _change(
        self,
        path: str,
        found: os.stat_result | None,
        lower: os.stat_result | None = None,
        *,
        unreadable: bool = False,
    ) -> FileChange:
        kind, was, stamp = kind_of(found), kind_of(lower), stamp_of(lower)
        target = ""
        if kind is EntryKind.LINK:
            try:
                target = self._upper.target(path)
            except OSError:
                unreadable = True
        elif kind is EntryKind.FILE and found is not None:
            unreadable |= not found.st_mode & stat.S_IRUSR and os.geteuid() != 0
        return FileChange(
            self._lower.path,
            path,
            ChangeKind.NEW if lower is None else ChangeKind.CHANGED,
            kind,
            was,
            found.st_size if found is not None and kind is EntryKind.FILE else 0,
            found.st_mode if found is not None else 0,
            target,
            stamp,
            conflict=not is_as_recorded(self._base, self._lower, path, stamp),
            unreadable=unreadable,
        )

    def _is_same(self, path: str, found: os.stat_result, lower: os.stat_result | None) -> bool:
        kind = kind_of(found)
        if lower is None or kind is not kind_of(lower):
            return False
        try:
            if kind is EntryKind.LINK:
                return self._upper.target(path) == self._lower.target(path)
            if kind is not EntryKind.FILE or found.st_size != lower.st_size:
                return False
            if (found.st_mode ^ lower.st_mode) & 0o100 or found.st_size > MAX_COMPARED:
                return False
            one = self._upper.open(path)
            try:
                other = self._lower.open(path)
                try:
                    return same_content(one, other)
                finally:
                    os.close(other)
            finally:
                os.close(one)
        except OSError:
            return False

    def _removed(self, path: str, lower: os.stat_result | None) -> Iterator[FileChange]:
        if lower is None:
            return  # the person removed it, too
        if kind_of(lower) is EntryKind.DIRECTORY:
            yield from self._removed_below(path)
        yield self._removal(path, lower)

    def _removed_below(self, top: str) -> Iterator[FileChange]:
        todo = [top]
        while todo:
            where = todo.pop()
            for name, lower in self._lower.listing(where).items():
                self._count()
                path = f"{where}/{name}"
                yield self._removal(path, lower)
                # Of a deeper one nothing is removed, so that the directories above it stay.
                if kind_of(lower) is EntryKind.DIRECTORY and path.count("/") < MAX_DEPTH - 1:
                    todo.append(path)

    def _removal(self, path: str, lower: os.stat_result) -> FileChange:
        kind, stamp = kind_of(lower), stamp_of(lower)
        # A directory is removed only if nothing is left in it, so it is never in conflict itself.
        same = kind is EntryKind.DIRECTORY or is_as_recorded(self._base, self._lower, path, stamp)
        return FileChange(
            self._lower.path, path, ChangeKind.REMOVED, kind, kind, stamp=stamp, conflict=not same
        )

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Refused(
                f"the view of {visible(self._lower.path)} has more than {MAX_CHANGES} changes; "
                "`keyhole discard` drops them"
            )
