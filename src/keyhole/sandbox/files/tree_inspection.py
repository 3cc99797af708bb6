"""Searches the bound trees and covers files that must not be seen or written.

Called by `mount_planning.py`, once for each tree that lies in no other. A file that cannot be
judged is masked.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files.credential_files import DEPENDENCIES, holds_credential
from keyhole.sandbox.files.executable_finder import ExecutableFinder
from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.paths import is_below, is_within
from keyhole.sandbox.files.settings_files import SettingsFiles, is_reflog, is_settings
from keyhole.sandbox.files.tree_walk import DirectoryListing, TreeTooLarge, WalkBudget, walk_tree
from keyhole.sandbox.files.triggers import TriggerGuard, is_git_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.sandbox.files.executable_finder import ExecutableEntry
    from keyhole.sandbox.files.overlay import Overlay
    from keyhole.sandbox.files.repositories import Repositories
    from keyhole.sandbox.files.trees import Tree, TreeRules

_CREDENTIALS = "masked, credentials (what sandbox.unsafe_paths lists is shown)"
_FOREIGN = "masked, another file system is mounted there (name it in the policy to see it)"
_SPECIAL = "masked, a socket, device or pipe of the host"
_SHOWN = 8
"""Paths named in one notice; the rest is counted."""


class TreeInspection:
    """The findings of one plan."""

    def __init__(
        self,
        overlay: Overlay,
        repositories: Repositories,
        rules: TreeRules,
        trees: tuple[Tree, ...],
        mounts: tuple[str, ...],
    ) -> None:
        self._overlay = overlay
        self._repositories = repositories
        self._rules = rules
        self._named = frozenset(tree.path for tree in trees)
        self._all_mounts = mounts
        self._mounts: frozenset[str] = frozenset()
        self._root = ""
        self._finder = ExecutableFinder(tree.path for tree in trees if tree.writable)
        self._found: dict[str, list[str]] = {}
        self._settings = SettingsFiles()

    def look(self, tree: Tree, budget: WalkBudget) -> None:
        """Go through a tree; Refused when it is too large to be known."""
        self._root = tree.path
        self._mounts = (
            frozenset(m for m in self._all_mounts if is_below(m, tree.path)) - self._named
        )
        self._mask_dangers(tree)
        if tree.kind is MountKind.FILE:
            where, name = os.path.split(tree.path)
            self._judge_file(where, name)
            for found in self._finder.look(DirectoryListing(where, files=[name]), where):
                self._guard(found)
            return
        try:
            for listing in walk_tree(tree.path, budget):
                self._look_at(listing)
        except TreeTooLarge:
            if tree.path not in self._rules.unsafe:
                raise Refused(
                    f"{visible(tree.path)} is too large to look through for sockets and "
                    "credentials of the host; name narrower directories, or list it in "
                    "sandbox.unsafe_paths to give it unseen"
                ) from None
            self._note("given without having been looked through, as it is too large", tree.path)

    def notices(self) -> tuple[str, ...]:
        """A line for each sort of finding."""
        found = tuple(f"{what}: {_several(paths)}" for what, paths in self._found.items())
        unseen = self._settings.passed_over
        if unseen:
            found += (
                f"not looked into for tokens, as there are too many settings files: {unseen}",
            )
        return found

    def _mask_dangers(self, tree: Tree) -> None:
        for danger in (*self._rules.own, *self._rules.secret):
            path = danger.path
            if not is_below(path, tree.path) or path in self._rules.unsafe or path in self._named:
                continue
            kind = _kind(path)
            if kind is not None:
                self._mask(path, kind, f"masked, {danger.reason}")

    def _look_at(self, listing: DirectoryListing) -> None:
        where = listing.path
        if self._overlay.is_masked(where):
            listing.dirs.clear()
            return
        if listing.closed and where == self._root:
            raise Refused(f"{visible(where)} cannot be read")
        if listing.closed:
            self._mask(where, MountKind.DIR, "masked, it could not be looked into")
            listing.dirs.clear()
            return
        self._look_for_mounts(listing)
        for name in listing.specials:
            self._mask(_join(where, name), MountKind.FILE, _SPECIAL)
        if is_git_directory(where, {*listing.files, *listing.dirs, *listing.links}):
            self._repositories.cover(listing)
        self._look_for_pointers(listing)
        for found in self._finder.look(listing, self._root):
            self._guard(found)
        if not DEPENDENCIES.isdisjoint(where.removeprefix(self._root).split("/")):
            return
        for name in listing.files:
            self._judge_file(where, name)
        for name in listing.links:
            self._judge_link(where, name)

    def _look_for_mounts(self, listing: DirectoryListing) -> None:
        for names, kind in ((listing.dirs, MountKind.DIR), (listing.files, MountKind.FILE)):
            for name in list(names) if self._mounts else ():
                path = _join(listing.path, name)
                if path not in self._mounts:
                    continue
                if any(is_below(tree, path) for tree in self._named) or path in self._rules.unsafe:
                    self._note("another file system comes along", path)
                    continue
                self._mask(path, kind, _FOREIGN)
                names.remove(name)

    def _look_for_pointers(self, listing: DirectoryListing) -> None:
        pointer = _join(listing.path, ".git")
        if not self._overlay.is_writable(listing.path):
            return
        if ".git" in listing.files:
            self._overlay.protect(pointer, MountKind.FILE)
        if ".git" in listing.links and pointer not in self._rules.unsafe:
            raise Refused(
                f"{visible(pointer)} is a symbolic link, which cannot be protected: replace it by "
                "the repository's directory, or list it in sandbox.unsafe_paths"
            )

    def _judge_file(self, where: str, name: str) -> None:
        path = _join(where, name)
        what = _CREDENTIALS if holds_credential(where, name) else self._known_by_shape(where, name)
        if what is not None:
            if path not in self._rules.unsafe:
                self._mask(path, MountKind.FILE, what)
                return
            self._note("shown although it holds credentials, as sandbox.unsafe_paths says", path)

    def _known_by_shape(self, where: str, name: str, real: str | None = None) -> str | None:
        path = real or _join(where, name)
        found = self._settings.credential_in(self._root, where, name, path)
        if found is None:
            return None
        shown = path in self._rules.unsafe
        if is_reflog(where) and not shown and self._overlay.is_writable(path):
            # If it were masked, git could not append to it, and no commit would succeed inside.
            raise Refused(
                f"{visible(path)} holds {found}, which git wrote there with an address. "
                "`git reflog expire --expire=now --all` in that repository removes it; or list the "
                "file in sandbox.unsafe_paths to show it"
            )
        return f"masked, {found} is in it (what sandbox.unsafe_paths lists is shown)"

    def _judge_link(self, where: str, name: str) -> None:
        """Judge a credential under a plain name, reached through a link with a telling name."""
        path = _join(where, name)
        tells = holds_credential(where, name)
        if not tells and not is_settings(where.removeprefix(self._root), name):
            return
        real = os.path.realpath(path)
        if (
            not self._overlay.holds(real)
            or {real, path} & self._rules.unsafe
            or _kind(real) is not MountKind.FILE
            or self._overlay.is_masked(real)
        ):
            return
        what = self._known_by_shape(where, name, real)
        if tells and holds_credential(where, name, real):
            what = _CREDENTIALS
        if what is not None:
            self._mask(real, MountKind.FILE, what)

    def _guard(self, found: ExecutableEntry) -> None:
        """Make a file that the host executes read-only, or the target of a link of such a name."""
        if found.guard is TriggerGuard.REPORTED or (
            found.guard is TriggerGuard.ENTRIES and found.trail is None
        ):
            return
        path = found.trail.end if found.trail else found.path
        if not self._overlay.holds(path) or not self._overlay.is_writable(path):
            return
        group = found.group.path if found.group else path
        if {path, found.path, group} & self._rules.unsafe:
            self._note("writable although the host executes it, as unsafe_paths says", found.path)
            return
        if found.guard is TriggerGuard.ENTRIES or self._overlay.is_masked(path):
            return
        if found.trail is not None and is_within(found.path, path):
            return  # it leads to a directory that it lies in: `look_behind_links` refuses it
        kind = _kind(path)
        if kind is found.kind:
            self._overlay.protect(path, kind)

    def look_behind_links(self, hooks: Iterable[str], budget: WalkBudget) -> None:
        """Search directories that links give another name, after all trees were searched."""
        for found in self._finder.looping:
            if found.guard is not TriggerGuard.REPORTED and found.path not in self._rules.unsafe:
                raise Refused(
                    f"{visible(found.path)} is a symbolic link to a directory that it lies in, so "
                    "that what the host executes cannot be protected: remove it, or list it in "
                    "sandbox.unsafe_paths"
                )
        for path in map(os.path.realpath, hooks):
            if self._overlay.holds(path) and _kind(path) is MountKind.DIR:
                self._finder.visit_hooks(path)
        while self._finder.pending:
            detour = self._finder.pending.popleft()
            if not self._overlay.holds(detour.path) or detour.link in self._rules.unsafe:
                continue
            self._finder.enter(detour)
            called = detour.name
            try:
                for listing in walk_tree(detour.path, budget):
                    if listing.closed or self._overlay.is_masked(listing.path):
                        listing.dirs.clear()
                        continue
                    for found in self._finder.look(listing, detour.path, called):
                        self._guard(found)
                    called = ""
            except TreeTooLarge:
                raise Refused(
                    f"{visible(detour.link)} leads to a directory that is too large to look "
                    "through; remove it, or list it in sandbox.unsafe_paths"
                ) from None
        if self._finder.crowded:
            raise Refused(
                f"{visible(self._root)} holds more symbolic links than can be followed to see what "
                "the host executes; remove what does not belong there"
            )

    def _mask(self, path: str, kind: MountKind, what: str) -> None:
        if path in self._named:
            if path in self._rules.unsafe:
                return
            raise Refused(
                f"{visible(path)} is named by the policy but would be {what}; "
                "remove it, or list it in sandbox.unsafe_paths if you accept that"
            )
        self._overlay.mask(path, kind)
        self._note(what, path)

    def _note(self, what: str, path: str) -> None:
        self._found.setdefault(what, []).append(path)


def _join(where: str, name: str) -> str:
    return f"{where.rstrip('/')}/{name}"


def _kind(path: str) -> MountKind | None:
    """The kind of a mask over the path; None if nothing is there, or a link that leads
    elsewhere."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return None
    return MountKind.DIR if stat.S_ISDIR(mode) else MountKind.FILE


def _several(paths: list[str]) -> str:
    shown = ", ".join(visible(path) for path in paths[:_SHOWN])
    more = len(paths) - _SHOWN
    return shown + (f" and {more} more" if more > 0 else "")
