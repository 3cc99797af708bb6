"""What an engine is like, where engines differ: whose ids its containers have, what it can bound.

A value that `engine.py` makes from what the engine says and `spec.py` heeds. Pure.
"""

from __future__ import annotations

from keyhole.model.value import dataclass

WORDS = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
"""Controllers, and the words by which an engine says that it has them."""


@dataclass(frozen=True, slots=True)
class Nature:
    """What an engine says of itself."""

    build: str = ""
    """Which version it is, and of what programs it starts containers by."""
    rootless: bool = False
    """Whether it runs as an ordinary user, and everything in it as that user or their subordinate
    ids."""
    remaps: bool = False
    """Whether it runs as root and gives containers ids that are nobody's."""
    keeps_ids: bool = False
    """Whether it can show a container its owner by their own number, as Podman can."""
    bounds: frozenset[str] = frozenset(WORDS)
    """What it can bound, as the kernel names the controllers."""
    cpus: int = 0
    """How many processors it has; 0: it does not say."""
    owner: tuple[int, int] = (-1, -1)
    """The uid and gid of whoever runs one that keeps ids."""
    trees: tuple[str, ...] = ()
    """Where one that an ordinary user runs keeps images, containers and volumes: files of that
    user's, so that whoever writes there as they do decides what the next container is."""

    @property
    def counts_by_user(self) -> bool:
        """Whether a limit of each process counts a sandbox's alone: the kernel counts by user and
        user namespace, and only where ids are kept is that of one sandbox."""
        return self.keeps_ids and "pids" not in self.bounds


AS_ROOT = Nature()
"""One that runs as root and maps nobody."""
