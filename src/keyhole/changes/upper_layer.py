"""The upper directory of an overlay: what it says, and how an entry is taken out or put in.

It is changed only while nothing is mounted on it. A device 0/0 is a whiteout: the entry below is
removed. A directory with the attribute `opaque` hides everything below it. Redirects and metacopies
are off in a mount with `userxattr`, and code inside cannot make any of these marks itself:
overlayfs refuses such a device and renames such an attribute (Documentation/filesystems/overlayfs).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from keyhole.changes.entry import EntryKind
from keyhole.changes.trash import permit_owner
from keyhole.changes.tree_directory import MAX_DEPTH, TreeDirectory, copy_content, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from keyhole.changes.trash import Trash

OPAQUE = "user.overlay.opaque"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_whiteout(found: os.stat_result | None) -> bool:
    """Whether an entry of the upper directory removes the one below."""
    return found is not None and stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def may_read(found: os.stat_result, uid: int, gid: int) -> bool:
    """Whether this user, who is in this group alone, may read an entry by its mode."""
    bits = 5 if stat.S_ISDIR(found.st_mode) else 4
    if found.st_uid == uid:
        bits <<= 6
    elif found.st_gid == gid:
        bits <<= 3
    return found.st_mode & bits == bits


class UpperLayer(TreeDirectory):
    """The upper directory. `lower` is the person's tree."""

    def __init__(self, path: str, lower: TreeDirectory, trash: Trash) -> None:
        super().__init__(path)
        self._lower = lower
        self._trash = trash
        own = os.fstat(self.descriptor)
        self.owner = (own.st_uid, own.st_gid)
        """The sandbox's user, which root chose."""
        self._plain: set[str] = set()
        """Directories that are known to hide nothing."""

    def changed(self) -> None:
        """Directories were removed or renamed."""
        super().changed()
        self._plain.clear()

    def _enter(self, where: int, own: str) -> int:
        """Open a directory. Attack: code inside closes it to its owner (`chmod 0`), so that it
        cannot be read, nor emptied when its changes were applied."""
        found = os.stat(own, dir_fd=where, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            permit_owner(where, own)
        return super()._enter(where, own)

    def is_opaque(self, name: str) -> bool:
        """Whether a directory hides what lies below it."""
        try:
            return os.getxattr(self.directory(name), OPAQUE) in (b"y", b"x")
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return False
            raise

    def shows_lower(self, name: str) -> bool:
        """Whether the view shows the person's own entry at this path, or one of the same kind in
        its place."""
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            found = self.look(path)
            if found is None:
                return True
            kind = kind_of(found)
            if count == len(parts):
                return kind is kind_of(self._lower.look(path))
            if kind is not EntryKind.DIRECTORY or self.is_opaque(path):
                return False
        return True

    # ── changing it, while nothing is mounted on it ───────────────────────────────────────────────

    def forget(self, name: str) -> None:
        """Let the view show the person's own entry at this path again."""
        parts = name.split("/")
        for count in range(1, len(parts)):
            path = "/".join(parts[:count])
            if path in self._plain:
                continue
            found = self.look(path)
            if found is None:
                return
            if is_whiteout(found):
                where, own = self.place(path)
                os.unlink(own, dir_fd=where)
                if kind_of(self._lower.look(path)) is not EntryKind.DIRECTORY:
                    return
                self._mkdir(where, own)
                self.whiten(path)
            elif kind_of(found) is not EntryKind.DIRECTORY:
                return
            elif self.is_opaque(path):
                self.whiten(path)
                os.removexattr(self.directory(path), OPAQUE)
            self._plain.add(path)
        found = self.look(name)
        if found is None:
            return
        where, own = self.place(name)
        if is_whiteout(found):
            os.unlink(own, dir_fd=where)
            return
        directory = kind_of(found) is EntryKind.DIRECTORY
        self._trash.take(where, own, directory=directory)
        if directory:
            self.changed()

    def prune(self, names: Iterable[str]) -> None:
        """Remove directories above these paths that say nothing any more."""
        above = {
            "/".join(parts[:count])
            for parts in (name.split("/") for name in names)
            for count in range(1, len(parts) + 1)
        }
        self._plain.clear()
        for path in sorted(above, key=lambda path: -path.count("/")):
            found = self.look(path)
            if kind_of(found) is not EntryKind.DIRECTORY or self.is_opaque(path):
                continue
            if kind_of(self._lower.look(path)) is not EntryKind.DIRECTORY:
                continue
            where, own = self.place(path)
            with contextlib.suppress(OSError):
                os.rmdir(own, dir_fd=where)
                self.changed()

    def put_file(self, name: str, source: int, mode: int) -> None:
        """Make the view show this file."""
        where, own = self._ready(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(own, flags, 0o600, dir_fd=where)
        try:
            copy_content(source, file)
            os.fchmod(file, mode & 0o777)
            self._give(file)
        finally:
            os.close(file)

    def put_entry(self, name: str, directory: int, own: str) -> None:
        """Make the view show this entry of a copy, whatever it is: a second name of it where the
        file system can, or a copy of a file or link."""
        where, to = self._ready(name)
        try:
            os.link(own, to, src_dir_fd=directory, dst_dir_fd=where, follow_symlinks=False)
        except OSError:
            found = os.stat(own, dir_fd=directory, follow_symlinks=False)
            if kind_of(found) is EntryKind.LINK:
                self.put_link(name, os.readlink(own, dir_fd=directory))
            elif kind_of(found) is EntryKind.FILE:
                source = os.open(own, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                try:
                    self.put_file(name, source, found.st_mode)
                finally:
                    os.close(source)
            return
        if os.geteuid() == 0:
            os.chown(to, *self.owner, dir_fd=where, follow_symlinks=False)

    def take_directory(self, name: str, directory: int, own: str) -> None:
        """Move a directory of a copy here, with all that it holds. Nothing has its name."""
        where, to = self._ready(name)
        os.rename(own, to, src_dir_fd=directory, dst_dir_fd=where)
        if os.geteuid() == 0:
            self._give_all(where, to)

    def _give_all(self, where: int, name: str) -> None:
        """Without recursion: code inside made the levels."""
        levels = [(os.dup(where), [name])]
        try:
            while levels:
                at, names = levels[-1]
                if not names:
                    os.close(levels.pop()[0])
                    continue
                inner = names.pop()
                os.chown(inner, *self.owner, dir_fd=at, follow_symlinks=False)
                # What is deeper is never read.
                if len(levels) <= MAX_DEPTH and _is_directory(at, inner):
                    below = os.open(inner, _DIRECTORY, dir_fd=at)
                    levels.append((below, os.listdir(below)))
        finally:
            for at, _ in levels:
                os.close(at)

    def put_link(self, name: str, target: str) -> None:
        """Make the view show this link."""
        where, own = self._ready(name)
        os.symlink(target, own, dir_fd=where)
        if os.geteuid() == 0:
            os.chown(own, *self.owner, dir_fd=where, follow_symlinks=False)

    def put_directory(self, name: str) -> None:
        """Make the view show this directory."""
        self.directory(name, self._make)

    def put_whiteout(self, name: str) -> None:
        """Make the view show nothing at this path."""
        where, own = self._ready(name)
        os.mknod(own, stat.S_IFCHR, os.makedev(0, 0), dir_fd=where)

    def says(self, name: str) -> bool:
        """Whether it has an entry at this path, or hides the one below."""
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            found = self.look("/".join(parts[:count]))
            if found is None:
                return False
            if kind_of(found) is not EntryKind.DIRECTORY:
                return True
        return False

    def _ready(self, name: str) -> tuple[int, str]:
        above, _, own = name.rpartition("/")
        return self.directory(above, self._make), own

    def _make(self, where: int, own: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._mkdir(where, own)

    def _mkdir(self, where: int, own: str) -> None:
        os.mkdir(own, 0o755, dir_fd=where)
        if os.geteuid() == 0:
            os.chown(own, *self.owner, dir_fd=where, follow_symlinks=False)

    def _give(self, file: int) -> None:
        if os.geteuid() == 0:
            os.fchown(file, *self.owner)

    def whiten(self, path: str, base: Collection[str] | None = None) -> None:
        """Say for each entry below that it is removed, instead of hiding all of them at once. With
        `base`, these alone: those that the sandbox could see and remove."""
        if base is not None and not self._showed(self._lower.look(path)):
            return
        known = self.listing(path)
        for name, below in self._lower.listing(path).items():
            inner = f"{path}/{name}"
            if name in known:
                if kind_of(known[name]) is kind_of(below) is EntryKind.DIRECTORY:
                    self.whiten(inner, base)
            elif base is None or (inner in base and self._showed(below)):
                self.put_whiteout(inner)

    def _showed(self, below: os.stat_result | None) -> bool:
        return below is not None and (os.geteuid() != 0 or may_read(below, *self.owner))


def _is_directory(where: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=where, follow_symlinks=False).st_mode)
