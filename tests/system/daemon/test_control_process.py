"""The control process of a gateway: what is in it, and what is not."""

from __future__ import annotations

import subprocess
import sys

FOREIGN = (
    "keyhole.gateway",
    "keyhole.certs",
    "keyhole.inject.scrub",
    "cryptography",
    "uvloop",
    "dns",
)
"""What reads bytes of a sandbox or an origin, and the libraries for it."""

IMPORTED = """
import sys
import {module}
print(" ".join(sys.modules))
"""


def imported(module: str) -> set[str]:
    words = [sys.executable, "-c", IMPORTED.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    return {name for name in FOREIGN if name in done.stdout.split()}


def test_the_control_process_has_nothing_that_reads_hostile_bytes() -> None:
    """I12: nothing of it can be stuck in the control process. Control: the data plane has it."""
    assert imported("keyhole.app.daemon.daemon, keyhole.cli.up") == set()
    assert imported("keyhole.app.daemon.data_plane") >= {
        "keyhole.gateway",
        "cryptography",
        "uvloop",
    }
