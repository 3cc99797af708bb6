"""The view as a copy: for a system that refuses overlayfs, and for containers.

Before a run, a directory is made equal to the person's tree with the pending changes on it. The
sandbox gets that directory. After the run, what it changed there goes to the upper directory, in
the form of an overlay, so that everything else in this room is the same for both ways.

The copy is hostile once a sandbox has had it. It is read only while nothing runs in it. A record
has the stamps of the copy from before the run; it is renamed when the changes were collected, so
that a process that is killed before leaves them for the next one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.changes.base_record import read_record, write_record
from keyhole.changes.entry import ChangeKind, EntryKind
from keyhole.changes.trash import permit_owner
from keyhole.changes.tree_directory import (
    MAX_DEPTH,
    TreeDirectory,
    copy_content,
    kind_of,
    stamp_of,
)
from keyhole.changes.upper_layer import is_whiteout, may_read
from keyhole.model.errors import Refused
from keyhole.model.quantity import format_size
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from keyhole.changes.entry import FileChange
    from keyhole.changes.trash import Trash
    from keyhole.changes.upper_layer import UpperLayer

_FICLONE = 0x40049409
_HIDDEN = "hidden"
"""The stamp of an entry that is covered in the sandbox: its content is not copied."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CopyLimits(Struct, frozen=True):
    """Bounds of one copy (I9)."""

    entries: int = 300_000
    """A few minutes of copying at worst; a project with its packages has fewer."""
    size: int = 8 << 30
    """Bytes that are really copied; blocks that the file system shares are not counted."""
    found: int = 600_000
    """Entries of the copy after a run: each takes about a kilobyte of memory."""


class CopiedTree:
    """The copy of one tree, in the directory of its view."""

    def __init__(self, directory: str, lower: TreeDirectory, upper: UpperLayer) -> None:
        self.path = f"{directory}/copy"
        self._lower, self._upper = lower, upper
        self._running, self._synced = f"{directory}/copied", f"{directory}/synced"

    @property
    def uncollected(self) -> bool:
        """Whether a sandbox may have changed it since it was made."""
        return os.path.lexists(self._running)

    # ── before a run ──────────────────────────────────────────────────────────────────────────────

    def make(
        self,
        changes: Sequence[FileChange],
        hidden: Collection[str],
        trash: Trash,
        limits: CopyLimits | None = None,
    ) -> None:
        """Make it equal to the tree with these changes. Entries that did not change since the last
        run are not copied again. `hidden` are covered inside, and copied empty. If root makes it,
        what the sandbox's user may not read is left out. Raises Refused where the tree is too
        large."""
        limits = limits or CopyLimits()
        below = _visible_entries(survey(self._lower.path), hidden, self._upper.owner)
        wanted: dict[str, tuple[TreeDirectory, os.stat_result]] = {
            name: (self._lower, found) for name, found in below.items()
        }
        for change in changes:
            if change.change is ChangeKind.REMOVED:
                wanted.pop(change.name, None)
            elif (found := self._upper.look(change.name)) is not None:
                wanted[change.name] = (self._upper, found)
        wanted = {n: e for n, e in wanted.items() if kind_of(e[1]) is not EntryKind.SPECIAL}
        if len(wanted) > limits.entries:
            raise _too_large(self._lower.path, f"more than {limits.entries} files")
        before, record = read_record(self._synced), {}
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        own = os.stat(self._lower.path)
        _own_like(self.path, own)
        known = survey(self.path, opens=True)
        with _CopyWriter(self.path, own, trash, limits.size, self._lower.path) as copy:
            copy.drop([name for name in known if not _fits(known[name], wanted.get(name))])
            for name in sorted(wanted, key=lambda name: (name.count("/"), name)):
                side, found = wanted[name]
                source = _HIDDEN if name in hidden else _side_stamp(side, found, self._lower)
                was = known.get(name)
                if was is not None and before.get(name) == f"{source} {_copy_stamp(was)}":
                    record[name] = before[name]
                    continue
                written = copy.write(name, side, found, hidden=name in hidden)
                if written is not None:
                    record[name] = f"{source} {_copy_stamp(written)}"
        os.chmod(self.path, stat.S_IMODE(own.st_mode) & 0o777 | 0o700)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._synced)
        write_record(self._running, record)

    # ── after it ──────────────────────────────────────────────────────────────────────────────────

    def collect(self, trash: Trash, base: Collection[str] = ()) -> None:
        """Put what the sandbox changed into the upper directory. Can be repeated. `base` are the
        entries of the tree when the run began. Raises Refused where the copy has too many entries;
        it stays as it is."""
        if not self.uncollected:
            return
        before = {n: text.rpartition(" ")[2] for n, text in read_record(self._running).items()}
        found = survey(self.path, opens=True, most=CopyLimits().found)
        changed = [n for n, entry in found.items() if before.get(n) != _copy_stamp(entry)]
        removed = [n for n in before if n not in found]
        with TreeDirectory(self.path) as copy:
            self._put(copy, {n: found[n] for n in sorted(changed, key=_by_parts)}, trash)
        for name in _outermost(removed):
            above = found.get(name.rpartition("/")[0])
            # Where a file or link replaced the directory, that one hides it.
            if above is None or stat.S_ISDIR(above.st_mode):
                self._remove(name, trash)
        directories = [n for n in changed if stat.S_ISDIR(found[n].st_mode)]
        for name in _outermost(directories):
            # The person's directory of this name was removed before this one was made.
            if kind_of(self._lower.look(name)) is EntryKind.DIRECTORY:
                self._upper.whiten(name, base)
        os.replace(self._running, self._synced)

    def _put(self, copy: TreeDirectory, found: dict[str, os.stat_result], trash: Trash) -> None:
        upper = self._upper
        moved = ""
        for name, entry in found.items():
            if (moved and name.startswith(moved)) or name.count("/") >= MAX_DEPTH - 1:
                continue
            now = upper.look(name)
            is_directory = stat.S_ISDIR(entry.st_mode)
            if now is not None and not (is_directory and kind_of(now) is EntryKind.DIRECTORY):
                self._take_out(name, now, trash)
                now = None
            where, own = copy.place(name)
            if not is_directory:
                upper.put_entry(name, where, own)
            elif now is None and self._lower.look(name) is None:
                # Whole: it may hold thousands of entries, or levels.
                permit_owner(where, own)
                upper.take_directory(name, where, own)
                copy.changed()
                moved = f"{name}/"
            else:
                upper.put_directory(name)

    def _remove(self, name: str, trash: Trash) -> None:
        now = self._upper.look(name)
        if now is not None:
            self._take_out(name, now, trash)
        if self._lower.look(name) is not None:
            self._upper.put_whiteout(name)

    def _take_out(self, name: str, now: os.stat_result, trash: Trash) -> None:
        where, own = self._upper.place(name)
        if is_whiteout(now):
            os.unlink(own, dir_fd=where)
            return
        directory = kind_of(now) is EntryKind.DIRECTORY
        trash.take(where, own, directory=directory)
        if directory:
            self._upper.changed()


def survey(tree: str, *, opens: bool = False, most: int | None = None) -> dict[str, os.stat_result]:
    """Every entry of a tree in which nothing runs, by its path. Follows no link. What this user may
    not read is left. `opens`: it is a copy, in which directories that were closed are opened.
    Raises Refused where it has more than `most` entries."""
    found: dict[str, os.stat_result] = {}
    todo = [""]
    while todo:
        where = todo.pop()
        # OSError: it is of another user, or deeper than a path can be.
        with contextlib.suppress(OSError):
            if opens:
                _open_for_owner(f"{tree}/{where}".rstrip("/"))
            with os.scandir(f"{tree}/{where}") as entries:
                for entry in entries:
                    name = f"{where}{entry.name}"
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(found[name].st_mode):
                            todo.append(f"{name}/")
                    if most is not None and len(found) > most:
                        raise _too_many(most)
    return found


def _open_for_owner(path: str) -> None:
    """Attack: code inside closes a directory, `chmod 0 d` or `chmod 400 d`, so that its changes are
    not seen, or cannot be read."""
    if os.lstat(path).st_mode & stat.S_IRWXU == stat.S_IRWXU:
        return
    above = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        permit_owner(above, os.path.basename(path))
    finally:
        os.close(above)


def _visible_entries(
    found: dict[str, os.stat_result], hidden: Collection[str], user: tuple[int, int]
) -> dict[str, os.stat_result]:
    """Without what lies below a directory that is covered inside. Attack: root makes the copy, and
    code inside moves a file that only root may read; its new name belongs to the sandbox's user."""
    # The place of a cover has to be there.
    kept = {name[:at] for name in hidden for at, c in enumerate(f"{name}/") if c == "/"}
    out = set(hidden)
    if os.geteuid() == 0:
        out.update(name for name in found if name not in kept and not may_read(found[name], *user))
    return {
        name: entry
        for name, entry in found.items()
        if name in kept or (name not in out and not _lies_in(name, out))
    }


def _lies_in(name: str, directories: Collection[str]) -> bool:
    return any(name[:at] in directories for at, c in enumerate(name) if c == "/")


class _CopyWriter(TreeDirectory):
    """Writes the copy. Nothing runs in it."""

    def __init__(
        self, path: str, owner: os.stat_result, trash: Trash, left: int, shown: str
    ) -> None:
        super().__init__(path)
        self._trash = trash
        self._owner = owner
        self._left = left
        self._shown = shown
        self._clones = True

    def __enter__(self) -> _CopyWriter:
        return self

    def drop(self, names: Iterable[str]) -> None:
        """Remove these entries, with all below them."""
        for name in _outermost(names):
            where, own = self.place(name)
            found = os.stat(own, dir_fd=where, follow_symlinks=False)
            self._trash.take(where, own, directory=stat.S_ISDIR(found.st_mode))
        self.changed()

    def write(
        self, name: str, side: TreeDirectory, found: os.stat_result, *, hidden: bool
    ) -> os.stat_result | None:
        """Write one entry, in place of the one that is there; None if it cannot be read, or is gone
        meanwhile."""
        try:
            where, own = self.place(name)
        except (FileNotFoundError, NotADirectoryError):
            return None  # its directory is of another user
        if stat.S_ISDIR(found.st_mode):
            with contextlib.suppress(FileExistsError):
                os.mkdir(own, 0o700, dir_fd=where)
            os.chmod(own, stat.S_IMODE(found.st_mode) & 0o777 | 0o700, dir_fd=where)
            self._give(where, own, found, side)
            return os.stat(own, dir_fd=where, follow_symlinks=False)
        with contextlib.suppress(FileNotFoundError):
            self._trash.take(where, own)
        try:
            if stat.S_ISLNK(found.st_mode):
                os.symlink(side.target(name), own, dir_fd=where)
                self._give(where, own, found, side)
            else:
                self._write_file(name, side, found, where, own, hidden=hidden)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            return None
        return os.stat(own, dir_fd=where, follow_symlinks=False)

    def _write_file(
        self, name: str, side: TreeDirectory, found: os.stat_result, where: int, own: str,
        *, hidden: bool,
    ) -> None:  # fmt: skip
        source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if hidden else side.open(name)
        try:
            file = os.open(own, _NEW_FILE, 0o600, dir_fd=where)
            try:
                if not hidden:
                    self._copy(source, file, found)
                self._give(where, own, found, side)
                os.fchmod(file, stat.S_IMODE(found.st_mode) & 0o777)
                os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(file)
        finally:
            os.close(source)

    def _copy(self, source: int, file: int, found: os.stat_result) -> None:
        if self._clones and found.st_size:
            try:
                fcntl.ioctl(file, _FICLONE, source)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    raise
                self._clones = False  # this file system cannot
            else:
                return
        self._left -= found.st_blocks * 512
        if self._left < 0:
            raise _too_large(self._shown, "more than its copy may have")
        copy_content(source, file)

    def _give(self, where: int, own: str, found: os.stat_result, side: TreeDirectory) -> None:
        """As root, keep the owner; an entry of the upper directory belongs to the tree's."""
        if os.geteuid() == 0:
            like = found if side.path == self._shown else self._owner
            os.chown(own, like.st_uid, like.st_gid, dir_fd=where, follow_symlinks=False)


def _own_like(path: str, owner: os.stat_result) -> None:
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o700 != 0o700:
        os.chmod(path, mode | 0o700)
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _fits(known: os.stat_result, wanted: tuple[TreeDirectory, os.stat_result] | None) -> bool:
    return wanted is not None and kind_of(known) is kind_of(wanted[1])


def _side_stamp(side: TreeDirectory, found: os.stat_result, lower: TreeDirectory) -> str:
    return f"{'l' if side is lower else 'u'}{stamp_of(found)}.{stat.S_IMODE(found.st_mode):o}"


def _copy_stamp(found: os.stat_result) -> str:
    """The change time is in it: code inside can set every other time."""
    stamp = stamp_of(found)
    return stamp if stamp == "d" else f"{stamp}.{found.st_ctime_ns}"


def _by_parts(name: str) -> list[str]:
    """Everything in a directory directly after it."""
    return name.split("/")


def _outer_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name.count("/"), name))


def _outermost(names: Iterable[str]) -> list[str]:
    """Those names that lie in none of the others."""
    every = set(names)
    return [name for name in _outer_first(every) if not _lies_in(name, every)]


def _too_large(tree: str, much: str) -> Refused:
    limit = CopyLimits()
    return Refused(
        f"the view of {visible(tree)} would be a copy, because this system or runtime has no "
        f"overlay for it, and the tree has {much} ({limit.entries} files and "
        f"{format_size(limit.size)} are the most)",
        'name narrower directories in sandbox.writable, or set sandbox.changes = "direct"',
    )


def _too_many(most: int) -> Refused:
    return Refused(
        f"the sandbox left more than {most} files in the copy that it worked on",
        "`keyhole discard` drops them, with all other changes that are held",
    )
