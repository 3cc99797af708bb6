"""Gives a volume that was just made to the sandbox's user: engines make them root's.

The first process of a container of our own image, with one capability, no network and nothing of
the sandbox's. It touches the volume's root alone, which is a mount point, whatever lies in it.
"""

import os
import sys

from keyhole.sandbox.containers.guarded import Guarded

MODE = 0o700


@Guarded
def main() -> int:
    """Run it: `owner PLACE UID GID`."""
    place, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # As its owner, so that no second capability is needed to say the mode.
    os.chown(place, 0, 0, follow_symlinks=False)
    os.chmod(place, MODE)
    os.chown(place, uid, gid, follow_symlinks=False)
    return 0
