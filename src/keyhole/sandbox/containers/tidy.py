"""Makes a volume fit to be mounted in: what would lead a mount elsewhere is moved aside.

The first process of a container of our own image, as the sandbox's user, while no sandbox has the
volume. Engines follow links when they mount; code that is not trusted may have put one where the
next start mounts the project, and so had it mounted over our own programs (I11).
"""

import os
import stat
import sys

from keyhole.sandbox.containers.guarded import Guarded


@Guarded
def main() -> int:
    """Run it: `tidy VOLUME PLACE…`; a place below it that is a directory ends with a slash."""
    volume, *places = sys.argv[1:]
    root = os.open(volume, os.O_PATH | os.O_DIRECTORY)
    for place in places:
        clear(root, place.rstrip("/").split("/"), directory=place.endswith("/"))
    return 0


def clear(root: int, names: list[str], *, directory: bool) -> None:
    """Have every name on the way be a directory, and the last what it should be, or not there."""
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
