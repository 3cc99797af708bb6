"""Opens a file that holds a secret, and judges every step of the way to it.

Called by the `file:` source. Links are followed, since Kubernetes provides secrets by links, but
none that another user made, and none in a tree which the sandbox can write: a leftover of an
earlier run could lead to any file of the user's, whose content would go to a service (I11).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible
from keyhole.system.symlinks import resolve
from keyhole.system.walk import LinkInPath, open_component, open_start

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class OpenedFile(Struct, frozen=True):
    """An open file, its real path, and whether the sandbox can write there."""

    descriptor: int
    path: str
    exposed: bool


class _Step(Struct, frozen=True):
    descriptor: int
    name: str
    exposed: bool


def open_regular(path: Path, writable: Iterable[Path | str] = ()) -> OpenedFile:
    """Open a regular file for reading; the caller closes the descriptor."""
    trees = {found for tree in writable if (found := _identity(tree))}
    with ExitStack() as held:
        walk = _Walk(held, trees)
        try:
            resolve(str(path), walk)
        except LinkInPath:
            raise ResourceUnusable("leads through too many links") from None
        last = walk.last
        # The kind is checked before opening: opening a pipe or a device has effects.
        if not stat.S_ISREG(os.fstat(last.descriptor).st_mode):
            raise ResourceUnusable("not a regular file")
        try:
            # Through /proc, so that the file that was judged is the file that is read.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(f"/proc/self/fd/{last.descriptor}", flags)
        except OSError as error:
            raise ResourceUnusable(_words(error)) from None
        return OpenedFile(descriptor, walk.where(), last.exposed)


class _Walk:
    """The directories from `/` to here, each held open; `..` goes back by one."""

    def __init__(self, held: ExitStack, trees: set[tuple[int, int]]) -> None:
        self._held = held
        self._trees = trees
        self._steps = [self._root()]

    @property
    def last(self) -> _Step:
        """The directory that was reached."""
        return self._steps[-1]

    def enter(self, name: str) -> str | None:
        """Open one name. Returns the target of a link that may be followed."""
        step = self._open(name)
        found = os.fstat(step.descriptor)
        if stat.S_ISLNK(found.st_mode):
            return self._target(step, found.st_uid)
        self._steps.append(step)
        return None

    def leave(self) -> None:
        """Go back to the parent."""
        self._steps = self._steps[:-1] or self._steps

    def restart(self) -> None:
        """Go to `/`, opened again."""
        self._steps = [self._root()]

    def where(self) -> str:
        """The path without a link in it."""
        return "/" + "/".join(step.name for step in self._steps[1:])

    def _root(self) -> _Step:
        return self._hold(open_start(), "", exposed=False)

    def _open(self, name: str) -> _Step:
        here = self.last
        try:
            descriptor = open_component(here.descriptor, name, os.O_PATH, name)
        except OSError as error:
            raise ResourceUnusable(_words(error)) from None
        return self._hold(descriptor, name, exposed=here.exposed)

    def _hold(self, descriptor: int, name: str, *, exposed: bool) -> _Step:
        self._held.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        # By identity, so that a bind mount of the tree elsewhere counts as the tree.
        return _Step(descriptor, name, exposed or (found.st_dev, found.st_ino) in self._trees)

    def _target(self, link: _Step, owner: int) -> str:
        name = visible(f"{self.where().rstrip('/')}/{link.name}")
        if link.exposed:
            raise ResourceUnusable(f"{name} is a link in a tree that the sandbox can write")
        # The rule of fs.protected_symlinks, which opening component by component bypasses.
        if owner not in (0, os.geteuid()):
            raise ResourceUnusable(f"{name} is a link that belongs to uid {owner}")
        return os.readlink("", dir_fd=link.descriptor)


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
