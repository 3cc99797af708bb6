"""Covers the directory of a repository, and finds the other half of a linked worktree.

Git runs what `config` and `hooks` name, and looks for both where `.git`, `commondir` and `gitdir`
point. All of these are read-only inside, the config as a sanitised copy (I1, I11). The same holds
for `.git`, bare repositories, submodules (`.git/modules/…`) and worktrees (`.git/worktrees/…`): git
takes each of these directories for a repository's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files import git_config
from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.paths import is_within
from keyhole.sandbox.files.triggers import (
    GIT_CONFIGS,
    GIT_HOOKS_DIR,
    GIT_POINTERS,
    is_git_directory,
)
from keyhole.system.walk import read_no_links

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.files.overlay import Overlay
    from keyhole.sandbox.files.tree_walk import DirectoryListing

_MAX_POINTER = 4096
"""Bytes of a file that holds one path."""


class Repositories:
    """Covers the repositories of one plan."""

    def __init__(self, overlay: Overlay, git: Path | None, unsafe: frozenset[str]) -> None:
        self._overlay = overlay
        self._git = git
        self._unsafe = unsafe
        self.hooks: list[str] = []
        """Directories of hooks that a config names, inside a tree that can be written."""
        self.unread: list[str] = []
        """Configs that could not be read and are masked."""

    def cover(self, listing: DirectoryListing) -> None:
        """Protect the files that git acts on in this directory of a repository."""
        where = listing.path
        self._refuse_links(listing)
        for name in GIT_CONFIGS:
            if name in listing.files:
                self._cover_config(f"{where}/{name}", where)
        if not self._overlay.is_writable(where):
            return
        if GIT_HOOKS_DIR in listing.dirs:
            self._overlay.protect(f"{where}/{GIT_HOOKS_DIR}", MountKind.DIR)
        for name in GIT_POINTERS:
            if name in listing.files:
                self._overlay.protect(f"{where}/{name}", MountKind.FILE)

    def _refuse_links(self, listing: DirectoryListing) -> None:
        for name in (GIT_HOOKS_DIR, *GIT_CONFIGS, *GIT_POINTERS):
            path = f"{listing.path}/{name}"
            if name in listing.links and path not in self._unsafe:
                raise Refused(
                    f"{visible(path)} is a symbolic link, which cannot be protected. Replace it by "
                    "what it leads to (for hooks, core.hooksPath does the same), or list it in "
                    "sandbox.unsafe_paths"
                )

    def _cover_config(self, path: str, where: str) -> None:
        settings = self._settings(path)
        if settings is None:
            self._overlay.mask(path, MountKind.FILE)
            self.unread.append(path)
            return
        if path in self._unsafe:
            self._overlay.protect(path, MountKind.FILE)
        else:
            if "/.git/modules/" in path:
                # A submodule's work tree is found by the `.git` file in it. If this key were kept,
                # `git submodule update` would write it again, and the config is read-only.
                settings = tuple(s for s in settings if (s.section, s.name) != ("core", "worktree"))
            self._overlay.text(path, git_config.sanitised(settings))
        hooks = git_config.hooks_path(settings)
        if hooks:
            self._cover_hooks(hooks, where)

    def _settings(self, path: str) -> tuple[git_config.RepositorySetting, ...] | None:
        try:
            data = read_no_links(path, git_config.MAX_CONFIG + 1)
        except OSError:
            return None
        if self._git is None or len(data) > git_config.MAX_CONFIG:
            return None
        return git_config.parse(self._git, data)

    def _cover_hooks(self, hooks: str, where: str) -> None:
        # Relative to where hooks run: the top of the work tree, or the bare repository.
        start = os.path.dirname(where) if os.path.basename(where) == ".git" else where
        path = os.path.normpath(os.path.join(start, hooks))
        if not self._overlay.holds(path):
            return
        self.hooks.append(path)
        real = os.path.realpath(path)
        if os.path.isdir(real) and self._overlay.holds(real) and self._overlay.is_writable(real):
            self._overlay.protect(real, MountKind.DIR)


def pointed_to(pointer: str) -> str | None:
    """The path in a `.git` file (`gitdir: …`), made absolute; None if the file has none."""
    text = _one_line(pointer)
    if text is None or not text.startswith("gitdir: "):
        return None
    return os.path.normpath(os.path.join(os.path.dirname(pointer), text.removeprefix("gitdir: ")))


def common_directory(top: str, named: tuple[str, ...]) -> str | None:
    """The common directory of a linked worktree, which must be bound too; None if nothing is
    missing.

    An attacker may have written the `.git` file of a work tree. So it is trusted only where git
    itself made the link back: `<common>/worktrees/<name>`, whose `gitdir` names this very file.
    Attack: a checkout whose `.git` contains `gitdir: ~/.ssh`.
    """
    pointer = f"{top}/.git"
    if not os.path.isfile(pointer) or os.path.islink(pointer):
        return None
    private = pointed_to(pointer)
    if private is not None and any(is_within(private, tree) for tree in named):
        return None
    common = os.path.dirname(os.path.dirname(private)) if private is not None else None
    if private is None or common is None or not _belongs(private, common, pointer):
        raise Refused(
            f"{visible(pointer)} points to {visible(private or 'nothing')}, which is no "
            "worktree of git's that leads back to it; list the repository's directory in "
            "sandbox.writable if it is yours"
        )
    return common


def _belongs(private: str, common: str, pointer: str) -> bool:
    if (
        os.path.realpath(private) != private
        or os.path.basename(os.path.dirname(private)) != "worktrees"
    ):
        return False
    back, shared = _one_line(f"{private}/gitdir"), _one_line(f"{private}/commondir")
    if back is None or shared is None:
        return False
    try:
        names = frozenset(os.listdir(common))
    except OSError:
        return False
    return (
        os.path.normpath(os.path.join(private, back)) == pointer
        and os.path.normpath(os.path.join(private, shared)) == common
        and is_git_directory(common, names)
        and "commondir" not in names
    )


def _one_line(path: str) -> str | None:
    try:
        data = read_no_links(path, _MAX_POINTER)
    except OSError:
        return None
    text = os.fsdecode(data.rstrip(b"\r\n"))
    return text if text and "\n" not in text and "\0" not in text else None
