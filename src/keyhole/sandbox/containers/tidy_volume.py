"""Prepares a volume for mounts inside it: moves links aside that would redirect a mount.

The first process of a container of our own image, as the sandbox's user, while no sandbox uses the
volume. Engines follow links when they mount; untrusted code may have put a link where the next
start mounts the project, to have it mounted over our own programs (I11).
"""

import os
import stat
import sys

from keyhole.sandbox.containers.guarded_main import GuardedMain


@GuardedMain
def main() -> int:
    """Run as `tidy VOLUME PLACE…`; a place that is a directory ends with a slash."""
    volume, *places = sys.argv[1:]
    root = os.open(volume, os.O_PATH | os.O_DIRECTORY)
    for place in places:
        clear(root, place.rstrip("/").split("/"), directory=place.endswith("/"))
    return 0


def clear(root: int, names: list[str], *, directory: bool) -> None:
    """Move aside the first name on the way that is not a directory, or a last one of the wrong
    kind."""
    here = root
    for at, name in enumerate(names):
        try:
            mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        last = at == len(names) - 1
        right = stat.S_ISREG if last and not directory else stat.S_ISDIR
        if not right(mode):
            aside = f"{name}.aside-{os.urandom(4).hex()}"
            os.rename(name, aside, src_dir_fd=here, dst_dir_fd=here)
            return
        if not last:
            here = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
