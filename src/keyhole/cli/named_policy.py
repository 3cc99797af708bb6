"""The policy that a verb names with `--policy`, or finds in its directory or above it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.host_paths import find_policy
from keyhole.app.setup.policy_file import PolicyFile, open_policy

if TYPE_CHECKING:
    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths


def read_policy(path: Path | None, places: HostPaths, catalogue: FileCatalogue) -> PolicyFile:
    """Read the policy that a verb names. Raises PolicyFaults, or Refused if it cannot be read."""
    return open_policy(path or find_policy(Path.cwd(), places.home), places, catalogue)
