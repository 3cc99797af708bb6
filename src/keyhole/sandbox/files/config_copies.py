"""Lets git change its settings inside: a repository's config becomes a copy of the run's.

Git writes a new file beside the config and renames it over the config. A mount point cannot be
replaced like that, so `git remote add` and `git push -u` would report "Device or resource busy".
Git follows a link first: so the sanitised text lies in a tree in memory, and a link to it is
mounted over the host's config. The host's file is covered as before, and the copy ends with the run
(I11).

Only for bubblewrap: an engine mounts no links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.sandbox.files.inside_path import resolve_inside
from keyhole.sandbox.files.mount_plan import Bind, MountKind, TextFile, Tmpfs
from keyhole.sandbox.files.triggers import GIT_CONFIGS

if TYPE_CHECKING:
    from keyhole.sandbox.files.mount_plan import Entry, MountPlan

OWN = "/run/keyhole/git"
"""The directory of the copies, in a tree in memory of bounded size (I9)."""
MAX_COPIES = 32
"""Repositories with a copy, the outermost first: a project with more has them as submodules. The
configs of the others are read-only."""


def with_config_copies(plan: MountPlan) -> MountPlan:
    """The plan, in which the config of a repository that can be written is the sandbox's own."""
    place = resolve_inside(OWN, plan.entries)
    if place is None or place.path != OWN or not isinstance(place.entry, Tmpfs):
        return plan  # a policy that shows a directory of the host there
    writable = {e.target for e in plan.entries if isinstance(e, Bind) and _is_writable(e)}
    entries: list[Entry] = []
    copies = 0
    for entry in plan.entries:
        directory, _, name = entry.target.rpartition("/")
        covers = name in GIT_CONFIGS and directory in writable
        if isinstance(entry, TextFile) and covers and copies < MAX_COPIES:
            entries.append(replace(entry, own_copy=f"{OWN}/{copies}/{name}"))
            copies += 1
        else:
            entries.append(entry)
    return replace(plan, entries=tuple(entries))


def _is_writable(bind: Bind) -> bool:
    return bind.writable and bind.kind is MountKind.DIR
