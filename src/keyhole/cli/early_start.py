"""The processes that a run starts before it reads the policy: the helper and the data plane.

Called by `run.py` before it imports most of Keyhole, so that both start on other cores meanwhile.
This module imports little, and starts nothing that a policy could decide about; a look at the file
only says which modules of the data plane to import first.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from keyhole.app.run.data_plane_process import RunDataPlaneProcess
from keyhole.app.setup.host_paths import find_policy
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.helper import FAULT, Helper

MAX_LOOKED_AT = 64 * 1024
"""Bytes of a policy that are looked at for a hint: most have a few hundred."""

_INSPECTING = (b"services", b"presets")
"""Words of a policy whose session inspects a host."""


def start_helper() -> Helper:
    """Start a helper, which makes an empty network and waits for its launch."""
    return Helper(os.environ.get(FAULT, ""))


def start_data_plane(policy: Path | None, *, alone: bool) -> RunDataPlaneProcess | None:
    """Start a data plane, which waits for its session; None where a gateway probably serves it.

    `policy` is the one that was named, if any was.
    """
    places = find_host_paths()
    if not alone and os.path.lexists(places.control_socket):
        return None
    try:
        plane = RunDataPlaneProcess(os.environ)
    except SetupFailed:
        return None  # the run tries it again once the policy is read, and reports the error
    if _mentions_inspection(policy or find_policy(Path(os.curdir), places.home)):
        plane.warm_up()
    return plane


def _mentions_inspection(policy: Path) -> bool:
    """Whether the session will probably inspect a host. Nobody has accepted these bytes yet: they
    decide only which of Keyhole's own modules are imported early."""
    try:
        # Opening a FIFO in its place would block for ever.
        descriptor = os.open(policy, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        text = os.read(descriptor, MAX_LOOKED_AT) if is_file else b""
        return any(word in text for word in _INSPECTING)
    except OSError:
        return False
    finally:
        os.close(descriptor)
