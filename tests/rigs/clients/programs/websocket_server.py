"""A WebSocket server: `websocket_server.py CHAIN KEY`. Prints its port, and serves until its input
ends. Then it prints the frames that each path got, and the extensions that were agreed on."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from typing import Any

from websockets.exceptions import ConnectionClosed  # type: ignore[import-not-found]
from websockets.sync.server import ServerConnection, serve  # type: ignore[import-not-found]

seen: dict[str, dict[str, Any]] = {}


def talk(connection: ServerConnection) -> None:
    """Write down each frame as it comes, and answer each whole message."""
    extensions = [each.name for each in connection.protocol.extensions]
    found = seen.setdefault(
        connection.request.path,
        {
            "frames": [],
            "extensions": extensions,
            "key": connection.request.headers["Authorization"],
        },
    )
    try:
        while True:
            for piece in connection.recv_streaming():
                found["frames"].append(piece if isinstance(piece, str) else f"bytes {piece!r}")
            connection.send("heard")
    except ConnectionClosed:
        pass


def main() -> None:
    """Serve until the input ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:3])
    with serve(talk, "127.0.0.1", 0, ssl=context, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        sys.stdout.write(f"{server.socket.getsockname()[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown()
        thread.join()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
