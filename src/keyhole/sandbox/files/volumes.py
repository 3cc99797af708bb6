"""The volumes that the policy wants, judged like the trees of the host before anything is made.

Called by `mount_planning.py`, and once more when all mounts are known. Nothing is mounted in a
volume that several sandboxes may share: another sandbox could put a link there at the moment of the
mount, and the engine would follow it (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files.mount_plan import SeedFile, Symlink, Volume
from keyhole.sandbox.files.paths import absolute, canonical, is_below, is_within
from keyhole.sandbox.files.trees import Tree, TreeRules, judge_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyhole.sandbox.files.mount_plan import Entry

_OURS = ("/etc", "/.keyhole", "/proc", "/sys", "/dev")
"""Trees in which the policy may mount nothing: the walls and their description are there."""


def plan_volumes(
    wanted: Iterable[tuple[str, str]],
    rules: TreeRules,
    trees: Sequence[Tree],
    entries: Sequence[Entry],
    uid: int,
) -> tuple[Volume, ...]:
    """The volumes of a sandbox of this user, shared with no other user. Raises Refused for the
    first that cannot be mounted at the policy's path."""
    found: list[Volume] = []
    for text, name in wanted:
        place = canonical(absolute(text, rules.project, rules.home))
        what = f"sandbox.volumes: {visible(text)}"
        judge_tree(Tree(place, writable=True), what, rules)
        if any(is_within(place, tree) or is_within(tree, place) for tree in _OURS):
            raise Refused(f"{what} cannot be a volume: Keyhole's own files are there")
        if any(is_within(place, tree.path) for tree in trees):
            raise Refused(f"{what} lies in a tree of this host that the policy shows")
        if any(is_within(entry.target, place) for entry in (*entries, *found)):
            raise Refused(f"{what} would cover something that is in the sandbox")
        found.append(Volume(place, f"keyhole-{uid}-{name}", shared=True))
    refuse_below_shared(found)
    return tuple(found)


def refuse_below_shared(entries: Sequence[Entry]) -> None:
    """Raise Refused if something would be mounted in a volume that others may share."""
    for volume in entries:
        if not isinstance(volume, Volume) or not volume.shared:
            continue
        for entry in entries:
            if is_below(entry.target, volume.target) and not isinstance(entry, SeedFile | Symlink):
                raise Refused(
                    f"sandbox.volumes: {visible(entry.target)} would be mounted in the volume at "
                    f"{visible(volume.target)}; choose a place below which nothing is"
                )
