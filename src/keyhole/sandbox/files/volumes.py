"""Where the policy wants volumes: judged as the trees of the host are, before anything is made.

Called by `planning.py`, and once more when all is known that will be mounted. Nothing is mounted in
a volume that several sandboxes may have: another one could put a link there in the moment in which
the engine, which follows it, mounts (I11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.sandbox.files.fileplan import Refused, Seed, Symlink, Volume
from keyhole.sandbox.files.paths import absolute, canonical, is_below, is_within
from keyhole.sandbox.files.trees import Rules, Tree, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyhole.sandbox.files.fileplan import Entry

_OURS = ("/etc", "/.keyhole", "/proc", "/sys", "/dev")
"""Where nothing of the policy's is: the walls and their description are there."""


def plan_volumes(
    wanted: Iterable[tuple[str, str]],
    rules: Rules,
    trees: Sequence[Tree],
    entries: Sequence[Entry],
    uid: int,
) -> tuple[Volume, ...]:
    """The volumes of a sandbox of this user's, who shares them with nobody; Refused for the first
    that cannot be where it is wanted."""
    found: list[Volume] = []
    for text, name in wanted:
        place = canonical(absolute(text, rules.project, rules.home))
        what = f"sandbox.volumes: {visible(text)}"
        judge(Tree(place, writable=True), what, rules)
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
    """Refused when something would be mounted in a volume that others may have."""
    for volume in entries:
        if not isinstance(volume, Volume) or not volume.shared:
            continue
        for entry in entries:
            if is_below(entry.target, volume.target) and not isinstance(entry, Seed | Symlink):
                raise Refused(
                    f"sandbox.volumes: {visible(entry.target)} would be mounted in the volume at "
                    f"{visible(volume.target)}; choose a place below which nothing is"
                )
