"""Namespaces of the kernel, by their names below /proc. Standard library only, quick to import.

Used by the helper and the holder, which make a sandbox's network, and for idmapped mounts.
"""

from __future__ import annotations

import os


def own_network() -> str:
    """The network namespace that this thread is in, as the kernel names it: `net:[4026531840]`."""
    return os.readlink("/proc/thread-self/ns/net")


def show_root_as(uid: int, process: int) -> int:
    """Make the new user namespace of a process show the host's root as `uid`. Returns its
    descriptor.

    The namespace lasts for as long as the descriptor. Raises OSError.
    """
    for kind in ("uid_map", "gid_map"):
        with open(f"/proc/{process}/{kind}", "w", encoding="ascii") as file:
            file.write(f"0 {uid} 1")
    return os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
