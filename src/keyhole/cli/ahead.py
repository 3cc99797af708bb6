"""What a run can begin before its policy is read: the helper, on another core.

Called by the parser once the verb is known to be `run`, before the verb's own module is imported.
It must import little, and start nothing that could be the policy's business.
"""

from __future__ import annotations

import os

from keyhole.sandbox.helper import FAULT, Helper


def begin() -> Helper:
    """A helper that makes its empty network and waits to be told."""
    return Helper(os.environ.get(FAULT, ""))
