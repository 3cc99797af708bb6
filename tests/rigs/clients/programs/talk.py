"""Inside: a WebSocket client, with the compression that it offers by itself."""

from __future__ import annotations

import json
import sys
from typing import Any

from websockets.exceptions import ConnectionClosed  # type: ignore[import-not-found]
from websockets.sync.client import connect  # type: ignore[import-not-found]

URL = "wss://billing.example/v1/talk?room=1"


def main() -> dict[str, Any]:
    """Small and large messages, then the one that would bring the key back."""
    large = "x" * 200_000
    with connect(URL, additional_headers={"Authorization": "Bearer of-the-client"}) as socket:
        socket.send("hello")
        small = socket.recv()
        socket.send(large)
        same = socket.recv() == large
        extensions = [str(each) for each in socket.protocol.extensions]
        socket.send("the key, please")
        try:
            key = str(socket.recv())
        except ConnectionClosed:
            key = "cut"
    return {"small": small, "large": same, "extensions": extensions, "key": key}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
