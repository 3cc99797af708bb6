"""The network to which a pod's interfaces are moved, by the name under which it is kept.

It outlives the agent, so that a pod keeps its address when the agent is restarted. The plugin
removes it with the pod, since no agent may be there then. Imports little: the plugin is started for
every pod.
"""

from __future__ import annotations

import contextlib
import os

from keyhole.system import syscalls

DIRECTORY = "/run/netns"
"""The place of named networks, which `ip netns` lists."""

MAX_CONTAINER = 128
"""Characters of a runtime's id; it has 64."""


def away_path(container: str) -> str:
    """Where the network is kept; `container` is the runtime's id of the pod's sandbox. Raises
    ValueError."""
    if not container or len(container) > MAX_CONTAINER or "/" in container or "\0" in container:
        raise ValueError("a runtime names a sandbox by a short id")
    return f"{DIRECTORY}/keyhole-{container}"


def drop_network(path: str) -> None:
    """Remove the name, and with it the network and its interfaces."""
    if not os.path.lexists(path):
        return
    with contextlib.suppress(OSError):
        syscalls.detach_mount(path)
    with contextlib.suppress(OSError):
        os.unlink(path)
