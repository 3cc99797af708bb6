"""The entries of the plan that are mounted together before bubblewrap starts. Pure.

Bubblewrap reads the whole mount table again for each path that it binds. /etc is some fifty paths,
all of them read-only, so the helper mounts them under one directory and bubblewrap binds that, with
everything on it, once. The mounts inside stay the same, and are asserted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.mount_plan import BinaryFile, Bind, Mask, Symlink, TextFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.sandbox.files.mount_plan import Entry

TREE = "/etc"


def gathered_entries(entries: Sequence[Entry]) -> frozenset[int]:
    """The numbers of the entries that are mounted with the tree.

    An entry below the directory of another entry is not among them: its mount point would have to
    be made in that directory, which is the host's.
    """
    found: set[int] = set()
    taken: set[str] = set()
    for number, entry in enumerate(entries):
        target = entry.target
        above = {target[:at] for at, letter in enumerate(target) if letter == "/"}
        if (
            isinstance(entry, Bind | Mask | TextFile | BinaryFile | Symlink)
            and not (isinstance(entry, Bind) and entry.writable)
            and TREE in above
            and target not in taken
            and taken.isdisjoint(above)
        ):
            found.add(number)
        taken.add(target)
    return frozenset(found)
