"""The mounts on top of the bound trees: masks, read-only binds, texts; and the mount order.

Code that may rename a directory can put another in its place, and with it another `.git/config`. A
mount point cannot be renamed, so every directory between a writable tree and something protected or
masked in it becomes a mount of itself (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind, TextFile
from keyhole.sandbox.files.paths import depth, parents

if TYPE_CHECKING:
    from keyhole.sandbox.files.trees import Tree

MAX_MOUNTS = 4096
"""Mounts on top of the trees. The kernel allows 100,000 in all; no project needs as many as this,
but an attack could make the next start slow."""

Covering = Bind | Mask | TextFile


class Overlay:
    """Collects the cover of each path; the strongest wins: mask, then text, then read-only bind."""

    def __init__(self, trees: tuple[Tree, ...]) -> None:
        self._trees = {tree.path: tree for tree in trees}
        self._masks: dict[str, Covering] = {}
        self._covers: dict[str, Covering] = {}

    def mask(self, path: str, kind: MountKind) -> None:
        """Hide the path."""
        self._masks[path] = Mask(path, kind)

    def text(self, path: str, content: str) -> None:
        """Show this text instead."""
        self._covers[path] = TextFile(path, content)

    def protect(self, path: str, kind: MountKind) -> None:
        """Show it read-only."""
        self._covers.setdefault(path, Bind(path, path, kind))

    def is_masked(self, path: str) -> bool:
        """Whether it, or a directory that it lies in, is masked."""
        return path in self._masks or any(parent in self._masks for parent in parents(path))

    def is_tree(self, path: str) -> bool:
        """Whether the policy names exactly this path."""
        return path in self._trees

    def holds(self, path: str) -> bool:
        """Whether a tree contains it."""
        return any(p in self._trees for p in (path, *parents(path)))

    def is_writable(self, path: str) -> bool:
        """Whether the innermost tree that contains the path is writable."""
        return self._trees[self._home_of(path)].writable

    def refuse_uncovering(self, unsafe: frozenset[str]) -> None:
        """Refuse a tree that the policy names on top of what must stay masked or read-only."""
        for tree in self._trees.values():
            if self.is_masked(tree.path):
                raise Refused(
                    f"{visible(tree.path)} lies in a directory that is masked; "
                    "list that directory in sandbox.unsafe_paths or bind it by itself"
                )
            over = [path for path in (tree.path, *parents(tree.path)) if path in self._covers]
            if tree.writable and over and tree.path not in unsafe:
                raise Refused(
                    f"{visible(tree.path)} cannot be writable: the host executes what "
                    f"{visible(over[0])} says. Remove it from sandbox.writable, or list it in "
                    "sandbox.unsafe_paths if you accept that"
                )

    def mounts(self) -> tuple[Covering, ...]:
        """The trees and their covers, each after the directory that contains it."""
        covers: dict[str, Covering] = {
            path: cover
            for path, cover in (self._covers | self._masks).items()
            # A tree that the policy shows by `unsafe_paths` is not made read-only again.
            if not (path in self._trees and isinstance(cover, Bind))
            and not any(parent in self._masks for parent in parents(path))
        }
        found: dict[str, Covering] = {
            tree.path: Bind(tree.path, tree.path, tree.kind, tree.writable)
            for tree in self._trees.values()
        }
        for path in covers:
            for between in self._between(path):
                found.setdefault(between, Bind(between, between, MountKind.DIR, writable=True))
        found |= covers
        if len(found) > MAX_MOUNTS:
            raise Refused(
                f"the project holds more than {MAX_MOUNTS} files to mask or protect; remove "
                "what does not belong there, or name narrower directories in sandbox.writable"
            )
        return tuple(sorted(found.values(), key=lambda entry: (depth(entry.target), entry.target)))

    def _between(self, path: str) -> list[str]:
        """The directories that could be renamed to move the path away."""
        home = self._home_of(path)
        if not self._trees[home].writable or path == home:
            return []
        found = []
        for parent in parents(path):
            if parent == home:
                break
            # Below a read-only mount nothing can be renamed; the mount itself has its own chain.
            if parent in self._covers:
                return []
            found.append(parent)
        return found

    def _home_of(self, path: str) -> str:
        return next(p for p in (path, *parents(path)) if p in self._trees)
