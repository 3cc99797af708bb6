"""Changes the owner of a new volume to the sandbox's user, because engines create volumes as
root's.

The first process of a container of our own image, with one capability, no network and no file of
the sandbox. It touches only the volume's root, which is a mount point.
"""

import os
import sys

from keyhole.sandbox.containers.guarded_main import GuardedMain

MODE = 0o700


@GuardedMain
def main() -> int:
    """Run it: `owner PLACE UID GID`."""
    place, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # As its owner, so that changing the mode needs no second capability.
    os.chown(place, 0, 0, follow_symlinks=False)
    os.chmod(place, MODE)
    os.chown(place, uid, gid, follow_symlinks=False)
    return 0
