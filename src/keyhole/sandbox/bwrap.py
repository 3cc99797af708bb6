"""The words that bubblewrap is started with. Pure: a Launch and staged sources in, words out."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from keyhole.sandbox.files.fileplan import Bind, Seed, Symlink, Tmpfs
from keyhole.sandbox.gather import TREE, gathered
from keyhole.sandbox.launch import FILTER_DESCRIPTOR, FIRST_SEED_DESCRIPTOR
from keyhole.sandbox.staging import GATHERED

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

MEMORY_TREES = (("/tmp", 4 << 30), ("/dev/shm", 1 << 30))  # noqa: S108 - inside
"""Writable trees in memory that every sandbox has, and how many bytes each may hold."""


def words(launch: Launch, staged: Mapping[int, str]) -> list[str]:
    """Arguments for `--args`: walls, files in order, environment. `staged` is by step number."""
    found = [*WALLS, "--cap-drop", "ALL", "--hostname", launch.hostname]
    found += ["--seccomp", str(FILTER_DESCRIPTOR)]
    found += ["--proc", "/proc", "--dev", "/dev"]
    for target, size in MEMORY_TREES:
        found += ["--perms", "1777", "--size", str(size), "--tmpfs", target]
    together = gathered(launch.files)
    seeds = itertools.count(FIRST_SEED_DESCRIPTOR)
    for index, entry in enumerate(launch.files):
        if index in together:
            if index == min(together):
                found += ["--ro-bind", f"{GATHERED}{TREE}", TREE]
            continue
        if isinstance(entry, Tmpfs):
            found += ["--perms", f"{entry.mode:o}", "--size", str(entry.size)]
            found += ["--tmpfs", entry.target]
        elif isinstance(entry, Symlink):
            found += ["--symlink", entry.to, entry.target]
        elif isinstance(entry, Seed):
            found += ["--perms", f"{entry.mode:o}", "--file", str(next(seeds)), entry.target]
        else:
            writable = isinstance(entry, Bind) and entry.writable
            found += ["--bind" if writable else "--ro-bind", staged[index], entry.target]
    # What bubblewrap itself keeps in memory is no place to write, nor to fill up (I9).
    found += ["--remount-ro", "/dev", "--remount-ro", "/"]
    found += ["--chdir", launch.directory]
    return found
