"""The processes that a run starts before it reads the policy: the helper and the data plane.

Called by `run.py` before it imports most of Keyhole, so that both start on other cores meanwhile.
This module imports little, and starts nothing that a policy could decide about.
"""

from __future__ import annotations

import os

from keyhole.app.run.data_plane_process import RunDataPlaneProcess
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.helper import FAULT, Helper


def start_helper() -> Helper:
    """Start a helper, which makes an empty network and waits for its launch."""
    return Helper(os.environ.get(FAULT, ""))


def start_data_plane(*, alone: bool) -> RunDataPlaneProcess | None:
    """Start a data plane, which waits for its session; None where a gateway probably serves it."""
    if not alone and os.path.lexists(find_host_paths().control_socket):
        return None
    try:
        return RunDataPlaneProcess(os.environ)
    except SetupFailed:
        return None  # the run tries it again once the policy is read, and reports the error
