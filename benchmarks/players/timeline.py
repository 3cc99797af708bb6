"""`keyhole run -- true`, with the times of its parts written to standard output as JSON.

The parts are told by wrapping the one call that starts a sandbox; nothing else is changed. The
clock is the host's monotonic one, so that the parent's time of starting this process counts too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from keyhole.sandbox.launch import Launch
    from keyhole.sandbox.start import Running, Streams


def main() -> int:
    """Run, and tell when what was reached."""
    import keyhole.app.run as composed
    import keyhole.cli.run
    from keyhole.cli.main import main as keyhole

    reached = {"imported": time.monotonic()}
    started = composed.start

    async def start(
        launch: Launch,
        streams: Streams,
        admit: Callable[[list[socket.socket]], None],
        build_filter: Awaitable[bytes],
        meanwhile: Callable[[], None] | None = None,
    ) -> Running:
        def admitted(sockets: list[socket.socket]) -> None:
            reached["door"] = time.monotonic()
            admit(sockets)

        reached["planned"] = time.monotonic()
        running = await started(launch, streams, admitted, build_filter, meanwhile)
        reached["walls"] = time.monotonic()
        return running

    composed.start = start
    sys.argv = ["keyhole", "run", "-q", "--trust", "--", "true"]
    code = keyhole()
    reached["ended"] = time.monotonic()
    os.write(1, json.dumps(reached).encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
