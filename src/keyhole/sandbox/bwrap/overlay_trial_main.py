"""The process that tries to mount an overlay, as the helper would; see `overlay_trial.py`."""

from __future__ import annotations

import os
import signal
import sys

from keyhole.sandbox.bwrap import namespaces
from keyhole.sandbox.bwrap.staging import STAGE
from keyhole.system import syscalls
from keyhole.system.walk import open_beneath_no_links

TRIAL_SECONDS = 10
"""How long the trial may take; it takes some 60 ms."""


def main() -> int:
    """Mount it in namespaces of this process alone: `TREE LAYER BWRAP`."""
    signal.alarm(TRIAL_SECONDS)
    tree, layer, bwrap = sys.argv[1:]
    try:
        if refusal := namespaces.make_namespaces(frozenset()):
            namespaces.borrow_namespaces(bwrap, refusal)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        # Opened in the new mount namespace: only its own mounts can be cloned.
        sides = [open_beneath_no_links(path) for path in (tree, layer)]
        clones = [syscalls.clone_tree(each) for each in sides]
        syscalls.make_mounts_private()
        syscalls.mount_tmpfs(STAGE)
        places = [f"{STAGE}/{name}" for name in ("lower", "layer", "merged")]
        for place in places:
            os.mkdir(place)
        for clone, place in zip(clones, places, strict=False):
            syscalls.attach_tree(clone, place)
        syscalls.mount_overlay(places[2], places[0], places[1])
        # Some file systems let it be mounted, and then refuse to write.
        file = f"{places[2]}/.keyhole-trial"
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(file)
    except (OSError, RuntimeError):
        return 1
    return 0
