"""The words that bubblewrap is started with. Pure: a Launch and staged sources in, words out."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from keyhole.sandbox.bwrap.gathered_entries import TREE, gathered_entries
from keyhole.sandbox.bwrap.kept_entries import kept_entries
from keyhole.sandbox.bwrap.staging import GATHERED
from keyhole.sandbox.files.mount_plan import Bind, KeptTree, SeedFile, Symlink, Tmpfs
from keyhole.sandbox.launch import (
    FILTER_DESCRIPTOR,
    FIRST_SEED_DESCRIPTOR,
    MEMORY_TREES,
    RECORD_DESCRIPTOR,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.sandbox.launch import Launch

WALLS = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup",
    "--disable-userns",
    "--die-with-parent",
    "--as-pid-1",
    "--clearenv",
)
"""Not `--unshare-net`: the helper's network namespace, which holds the door, is kept."""


def bwrap_arguments(launch: Launch, staged: Mapping[int, str]) -> list[str]:
    """Arguments for `--args`: walls, files in order, environment. `staged` is by step number."""
    found = [*WALLS, "--cap-drop", "ALL", "--hostname", launch.hostname]
    found += ["--seccomp", str(FILTER_DESCRIPTOR)]
    if launch.record:
        found += ["--info-fd", str(RECORD_DESCRIPTOR)]
    found += ["--proc", "/proc", "--dev", "/dev"]
    for target, size in MEMORY_TREES:
        found += ["--perms", "1777", "--size", str(size), "--tmpfs", target]
    together = gathered_entries(launch.files)
    kept = kept_entries(launch.files)
    seeds = itertools.count(FIRST_SEED_DESCRIPTOR)
    for index, entry in enumerate(launch.files):
        if index in together:
            if index == min(together):
                found += ["--ro-bind", f"{GATHERED}{TREE}", TREE]
            continue
        if index in kept:
            continue  # mounted already
        if isinstance(entry, Tmpfs):
            found += ["--perms", f"{entry.mode:o}", "--size", str(entry.size)]
            found += ["--tmpfs", entry.target]
        elif isinstance(entry, Symlink):
            found += ["--symlink", entry.to, entry.target]
        elif isinstance(entry, SeedFile):
            found += ["--perms", f"{entry.mode:o}", "--file", str(next(seeds)), entry.target]
        else:
            writable = isinstance(entry, KeptTree) or (isinstance(entry, Bind) and entry.writable)
            found += ["--bind" if writable else "--ro-bind", staged[index], entry.target]
    # Trees that bubblewrap keeps in memory are read-only, so that they cannot be filled (I9).
    found += ["--remount-ro", "/dev", "--remount-ro", "/"]
    found += ["--chdir", launch.directory]
    return found
