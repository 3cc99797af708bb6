"""What a run can begin before its policy is read: the helper and the data plane, on other cores.

Called by the parser once the verb is known to be `run`, before the verb's own module is imported.
It must import little, and start nothing that could be the policy's business.
"""

from __future__ import annotations

import os

from keyhole.app.lodging import SOCKET
from keyhole.app.plane import DataPlane
from keyhole.sandbox.helper import FAULT, Helper, SetupFailed


def begin_helper() -> Helper:
    """A helper that makes its empty network and waits to be told."""
    return Helper(os.environ.get(FAULT, ""))


def begin_plane(*, alone: bool) -> DataPlane | None:
    """A data plane that waits for its session; None where a gateway is likely to have it."""
    from keyhole.cli.setting import find_places

    if not alone and os.path.lexists(find_places().runtime / SOCKET):
        return None
    try:
        return DataPlane(os.environ)
    except SetupFailed:
        return None  # it is tried again when the policy is read, and told of
