"""Tries whether this system lets a sandbox's helper mount an overlay over a tree.

Asked before a run whose changes are reviewed; where it is refused, the view is a copy. The trial is
a process of our own interpreter that enters namespaces as the helper does, mounts, and ends.
"""

from __future__ import annotations

import os
import sys

import keyhole
from keyhole.sandbox.launch import REFUSED

NO_OVERLAY = f"{REFUSED}overlay"
"""A fault, for tests: overlayfs is refused."""

_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from keyhole.sandbox.bwrap.overlay_trial_main import main
sys.exit(main())
"""


def can_mount_overlay(tree: str, layer: str, bwrap: str) -> bool:
    """Whether an overlay of the tree with this layer, a directory with `upper` and `work`, can be
    mounted."""
    root = os.path.dirname(os.path.abspath(keyhole.__path__[0]))
    words = [sys.executable, "-I", "-c", _PROGRAM, root, tree, layer, bwrap]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        child = os.posix_spawn(sys.executable, words, {}, file_actions=actions, setsid=True)
    finally:
        os.close(null)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
