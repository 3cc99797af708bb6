"""What mitmproxy is asked to do: pass bodies as they come, remove headers, write one credential.

Run in the peers' environment, so it imports nothing of this repository; what it has to know comes
in one variable. Started by itself, it is mitmdump with this file as its addon, but for one thing:
it accepts on a listener that it was handed, which TPROXY feeds as it feeds a door.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any

_TOLD = json.loads(os.environ["BENCH_MITMPROXY"])
_REMOVED: list[str] = _TOLD["removed"]
_NAME, _VALUE = _TOLD["added"]


def requestheaders(flow: Any) -> None:  # noqa: ANN401 - of an environment that has types
    """Surgery, and no waiting for the body."""
    flow.request.stream = True
    headers = flow.request.headers
    for name in _REMOVED:
        headers.pop(name, None)
    headers[_NAME] = _VALUE


def responseheaders(flow: Any) -> None:  # noqa: ANN401 - as above
    """No waiting for the body on the way back either."""
    flow.response.stream = True


def main() -> None:
    """Be mitmdump, on the listener."""
    from mitmproxy.tools.main import mitmdump  # type: ignore[import-not-found]

    start_server = asyncio.start_server

    async def start_on_the_door(connected: Any, *_: object) -> asyncio.Server:  # noqa: ANN401 - theirs
        return await start_server(connected, sock=socket.socket(fileno=_TOLD["listener"]))

    asyncio.start_server = start_on_the_door  # type: ignore[assignment]
    mitmdump()


if __name__ == "__main__":
    main()
