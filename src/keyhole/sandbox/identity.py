"""The user that the untrusted code runs as on the host. Never root.

If an ordinary user runs Keyhole, it is that user. If root does, it is the project's owner; and if
that is root too, an unprivileged user, to whom an idmapped mount shows the project as their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

UNPRIVILEGED = 60777
"""A uid and gid that no distribution assigns: above users, below reserved and subordinate ids."""


class Identity(Struct, frozen=True):
    """The uid and gid behind the sandbox, and whether root's files are shown as theirs."""

    uid: int
    gid: int
    maps_root: bool = False


def choose_identity(project: Path) -> Identity:
    """The identity for a run of this project by this process."""
    if os.getuid() != 0:
        return Identity(os.getuid(), os.getgid())
    owner = project.stat()
    if owner.st_uid != 0:
        return Identity(owner.st_uid, owner.st_gid)
    return Identity(UNPRIVILEGED, UNPRIVILEGED, maps_root=True)
