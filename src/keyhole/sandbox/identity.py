"""Who the untrusted code is on the host. Never root (facts: traps).

Run by an ordinary user, it is that user. Run by root, it is the project's owner; and where that is
root too, an unprivileged user who sees the project as their own through an idmapped mount.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from pathlib import Path

UNPRIVILEGED = 60777
"""A uid and gid that no distribution hands out: above users, below the reserved and subordinate."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The uid and gid behind the sandbox, and whether root's files are shown as theirs."""

    uid: int
    gid: int
    maps_root: bool = False


def choose(project: Path) -> Identity:
    """The identity for a run of this project by this process."""
    if os.getuid() != 0:
        return Identity(os.getuid(), os.getgid())
    owner = project.stat()
    if owner.st_uid != 0:
        return Identity(owner.st_uid, owner.st_gid)
    return Identity(UNPRIVILEGED, UNPRIVILEGED, maps_root=True)
