"""Opens a file that a secret is in, judging every step of the way to it.

Called by the `file:` source. Links are followed, since Kubernetes hands secrets over by links, but
none that another user made, and none that lies in a tree which the sandbox can write: a leftover of
an earlier run could lead to any file of the user's, whose content would go to a service (I11).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LINKS = 40
"""Links followed in one path, as the kernel's own limit (path_resolution(7))."""


class Unopened(Exception):
    """The file cannot be opened; the message says why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A descriptor to read from, where it really is, and whether the sandbox can write there."""

    descriptor: int
    path: str
    exposed: bool


@dataclass(frozen=True, slots=True)
class _Step:
    descriptor: int
    name: str
    exposed: bool


def open_regular(path: Path, writable: Iterable[Path | str] = ()) -> Opened:
    """Open a regular file for reading; the caller closes the descriptor."""
    trees = {found for tree in writable if (found := _identity(tree))}
    with ExitStack() as held:
        walk = _Walk(held, trees)
        last = walk.follow(path)
        # The kind is known before the file is opened: to open a pipe or a device is an act.
        if not stat.S_ISREG(os.fstat(last.descriptor).st_mode):
            raise Unopened("not a regular file")
        try:
            # By way of /proc, so that what was looked at is what is read.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(f"/proc/self/fd/{last.descriptor}", flags)
        except OSError as error:
            raise Unopened(_words(error)) from None
        return Opened(descriptor, walk.where(), last.exposed)


class _Walk:
    """The directories from `/` to here, each held open; `..` goes back by one."""

    def __init__(self, held: ExitStack, trees: set[tuple[int, int]]) -> None:
        self._held = held
        self._trees = trees
        self._steps = [self._root()]

    def follow(self, path: Path) -> _Step:
        """Go there, link by link."""
        todo = list(reversed(path.parts[1:]))
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                self._steps = self._steps[:-1] or self._steps
                continue
            step = self._open(part)
            found = os.fstat(step.descriptor)
            if not stat.S_ISLNK(found.st_mode):
                self._steps.append(step)
                continue
            links += 1
            if links > MAX_LINKS:
                raise Unopened("leads through too many links")
            target = self._target(step, found.st_uid)
            if target.is_absolute():
                self._steps = [self._root()]
            todo.extend(reversed([p for p in target.parts if p != "/"]))
        return self._steps[-1]

    def where(self) -> str:
        """The path without a link in it."""
        return "/" + "/".join(step.name for step in self._steps[1:])

    def _root(self) -> _Step:
        return self._hold(os.open("/", os.O_PATH | os.O_CLOEXEC), "", exposed=False)

    def _open(self, part: str) -> _Step:
        here = self._steps[-1]
        try:
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(part, flags, dir_fd=here.descriptor)
        except OSError as error:
            raise Unopened(_words(error)) from None
        return self._hold(descriptor, part, exposed=here.exposed)

    def _hold(self, descriptor: int, name: str, *, exposed: bool) -> _Step:
        self._held.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        # By identity, so that a bind mount of the tree elsewhere is the tree.
        return _Step(descriptor, name, exposed or (found.st_dev, found.st_ino) in self._trees)

    def _target(self, link: _Step, owner: int) -> Path:
        name = visible(f"{self.where().rstrip('/')}/{link.name}")
        if link.exposed:
            raise Unopened(f"{name} is a link in a tree that the sandbox can write")
        # As fs.protected_symlinks has it, which opening by parts goes around.
        if owner not in (0, os.geteuid()):
            raise Unopened(f"{name} is a link that belongs to uid {owner}")
        return Path(os.readlink("", dir_fd=link.descriptor))


def _identity(path: Path | str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _words(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "there is no such file"
    return (error.strerror or "cannot be opened").lower()
