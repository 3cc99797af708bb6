"""The entries of the plan that lie in a kept tree, and the tree that each is mounted in. Pure.

Code of an earlier run may have left links where the plan mounts something, and code of another run
may put them there at any moment. Bubblewrap would follow them, out of the new root too. So the
helper mounts these entries by descriptor, and bubblewrap binds the kept tree with all of them on
it (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.mount_plan import KeptTree
from keyhole.sandbox.files.paths import is_below, is_within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.sandbox.files.mount_plan import Entry


def kept_entries(entries: Sequence[Entry]) -> Mapping[int, int]:
    """The numbers of the entries below a kept tree, each with the number of the outermost one."""
    trees: dict[int, str] = {}
    found: dict[int, int] = {}
    for number, entry in enumerate(entries):
        outer = next((n for n, tree in trees.items() if is_below(entry.target, tree)), None)
        if outer is not None:
            found[number] = outer
        elif isinstance(entry, KeptTree):
            trees[number] = entry.target
    return found


def holding_tree(number: int, entries: Sequence[Entry]) -> int | None:
    """The number of the kept tree in which an entry's mount point lies; None if another entry
    covers that place, and so has it."""
    target = entries[number].target
    for above in range(number - 1, -1, -1):
        if is_within(target, entries[above].target):
            return above if isinstance(entries[above], KeptTree) else None
    return None
