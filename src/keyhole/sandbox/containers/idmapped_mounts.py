"""Shows a project of root's to the sandbox's user as their own: idmapped mounts for an engine.

Only root uses it. Engines mount by path, so each writable tree is mounted once more, under another
owner, in a directory of the session; the engine mounts it from there. When the sandbox runs, the
mounts on the host are removed again. They are made by descriptor, following no link (I11).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from keyhole.sandbox.files.mount_plan import Bind, MountKind
from keyhole.system import syscalls
from keyhole.system.namespaces import show_root_as
from keyhole.system.walk import open_beneath_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from keyhole.sandbox.files.mount_plan import Entry

PREFIX = "mapped-"

_IN_A_NAMESPACE = """\
import ctypes, sys
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit(1)
print(flush=True)
sys.stdin.read()
"""
"""A program rather than a fork: this process has threads."""


def mount_idmapped(
    directory: Path, entries: Iterable[tuple[int, Entry]], uid: int
) -> dict[int, str]:
    """Mount each writable tree below the directory, with root's files as this user's. Returns the
    mount points by the entry's number.

    Raises OSError when the system cannot do that.
    """
    found: dict[int, str] = {}
    with _user_namespace(uid) as namespace:
        for number, entry in entries:
            if isinstance(entry, Bind) and entry.writable:
                place = directory / f"{PREFIX}{number}"
                if entry.kind is MountKind.DIR:
                    place.mkdir(0o700)
                else:
                    place.touch(0o600, exist_ok=False)
                _mount(entry.source, str(place), namespace)
                found[number] = str(place)
    return found


def unmount_idmapped(directory: Path) -> None:
    """Remove such mounts here; copies in other namespaces stay."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    syscalls.detach_mount(str(directory / name))


def _mount(source: str, place: str, namespace: int) -> None:
    descriptor = open_beneath_no_links(source)
    try:
        tree = syscalls.clone_tree(descriptor)
    finally:
        os.close(descriptor)
    try:
        syscalls.map_owner(tree, namespace)
        syscalls.attach_tree(tree, place)
    finally:
        os.close(tree)


@contextlib.contextmanager
def _user_namespace(uid: int) -> Iterator[int]:
    """A user namespace that shows the host's root as this user, as a descriptor."""
    words = [sys.executable, "-I", "-S", "-c", _IN_A_NAMESPACE]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env={}, stdin=pipe, stdout=pipe) as child:  # noqa: S603 - ours
        if child.stdout is None or not child.stdout.readline():
            raise OSError(f"no user namespace can be made for a project of root's ({uid})")
        descriptor = show_root_as(uid, child.pid)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            child.kill()
