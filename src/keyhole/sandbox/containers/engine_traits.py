"""Properties in which engines differ: the ids of containers, the limits that they support.

A value that `engine.py` makes from the engine's own description, for `container_spec.py`. Pure.
"""

from __future__ import annotations

from msgspec import Struct

WORDS = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
"""Controllers, and the fields by which an engine reports them."""


class EngineTraits(Struct, frozen=True):
    """The properties of an engine."""

    build: str = ""
    """The versions of the engine and of the programs by which it starts containers."""
    rootless: bool = False
    """Whether it runs as an ordinary user, and everything in it as that user or their subordinate
    ids."""
    remaps: bool = False
    """Whether it runs as root and maps containers to unused ids."""
    keeps_ids: bool = False
    """Whether it can give the owner the same number inside a container, as Podman does."""
    bounds: frozenset[str] = frozenset(WORDS)
    """The kernel's controllers that it can use."""
    cpus: int = 0
    """The number of processors; 0 when it does not report them."""
    owner: tuple[int, int] = (-1, -1)
    """The uid and gid of the user of an engine that keeps ids."""
    trees: tuple[str, ...] = ()
    """Directories in which a rootless engine keeps images, containers and volumes. They belong to
    the user, so code that can write there decides the content of the next container."""

    @property
    def counts_by_user(self) -> bool:
        """Whether a limit on processes counts those of one sandbox alone. The kernel counts by user
        and user namespace; a sandbox has both to itself only where ids are kept."""
        return self.keeps_ids and "pids" not in self.bounds


AS_ROOT = EngineTraits()
"""An engine that runs as root without mapping ids."""
