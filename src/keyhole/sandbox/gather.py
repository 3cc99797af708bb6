"""Which files of the plan are put together before bubblewrap sees them. Pure.

Bubblewrap reads the whole mount table again for each path that it binds. /etc is some fifty paths,
all of them read-only, so the helper mounts them under one directory and bubblewrap binds that, with
everything on it, once. What is mounted inside, and how, stays the same, and is asserted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.fileplan import Bind, Blob, Mask, Symlink, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.sandbox.files.fileplan import Entry

TREE = "/etc"


def gathered(entries: Sequence[Entry]) -> frozenset[int]:
    """The numbers of the entries that come with the tree.

    Not what lies in the directory of another entry: its place would have to be made there, and that
    directory is the host's.
    """
    found: set[int] = set()
    taken: set[str] = set()
    for number, entry in enumerate(entries):
        target = entry.target
        above = {target[:at] for at, letter in enumerate(target) if letter == "/"}
        if (
            isinstance(entry, Bind | Mask | Text | Blob | Symlink)
            and not (isinstance(entry, Bind) and entry.writable)
            and TREE in above
            and target not in taken
            and taken.isdisjoint(above)
        ):
            found.add(number)
        taken.add(target)
    return frozenset(found)
