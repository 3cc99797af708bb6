"""A project of root's, shown to the sandbox's user as their own: idmapped mounts for an engine.

Run by root alone. Engines mount by path, so each writable tree is mounted once more, under another
owner, in a directory of the session's; the engine mounts it from there, and when the sandbox runs
the mounts on the host are taken away again. They are made by descriptor, following no link (I11).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from keyhole.sandbox import syscalls
from keyhole.sandbox.files.fileplan import Bind, Kind
from keyhole.sandbox.files.walk import open_beneath_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from keyhole.sandbox.files.fileplan import Entry

PREFIX = "mapped-"

_IN_A_NAMESPACE = """\
import ctypes, sys
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit(1)
print(flush=True)
sys.stdin.read()
"""
"""Not by a fork: this process has threads."""


def map_trees(directory: Path, entries: Iterable[tuple[int, Entry]], uid: int) -> dict[int, str]:
    """Mount each writable tree below the directory, root's files as this user's; where, by number.

    OSError when the system does not do that.
    """
    found: dict[int, str] = {}
    with _user_namespace(uid) as namespace:
        for number, entry in entries:
            if isinstance(entry, Bind) and entry.writable:
                place = directory / f"{PREFIX}{number}"
                if entry.kind is Kind.DIR:
                    place.mkdir(0o700)
                else:
                    place.touch(0o600, exist_ok=False)
                _mount(entry.source, str(place), namespace)
                found[number] = str(place)
    return found


def unmap(directory: Path) -> None:
    """Take such mounts away; whoever has them mounted keeps them."""
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
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{child.pid}/{kind}", "w", encoding="ascii") as file:
                file.write(f"0 {uid} 1")
        descriptor = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            child.kill()
