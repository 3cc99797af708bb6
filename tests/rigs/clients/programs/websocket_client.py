"""Inside: a WebSocket client, `websocket_client.py CA HOST`. Reads messages from its input by the
names of cases, and prints how each was answered, or how its connection was closed."""

from __future__ import annotations

import json
import ssl
import sys
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed  # type: ignore[import-not-found]
from websockets.sync.client import ClientConnection, connect  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES = 5
"""Fragments of a message."""


def fragments(connection: ClientConnection, text: str, *, pings: bool) -> Iterator[str]:
    size = len(text) // PIECES + 1
    for at in range(0, len(text), size):
        if pings and at:
            connection.ping()
        yield text[at : at + size]


def send(connection: ClientConnection, how: str, text: str) -> None:
    """Send a message in one frame, in fragments, with pings between them, or as bytes."""
    match how:
        case "whole":
            connection.send(text)
        case "bytes":
            connection.send(text.encode())
        case _:
            connection.send(fragments(connection, text, pings=how == "pings"))


def converse(url: str, context: ssl.SSLContext, messages: list[list[str]]) -> list[Any]:
    """The answer to each message, up to the close."""
    answers: list[Any] = []
    with connect(url, ssl=context, max_size=None) as connection:
        for how, text in messages:
            try:
                send(connection, how, text)
                answers.append(connection.recv())
            except ConnectionClosed as error:
                closed = error.rcvd
                answers.append([closed.code, closed.reason] if closed else None)
                break
    return answers


def main() -> None:
    """Make all conversations."""
    context = ssl.create_default_context(cafile=sys.argv[1])
    cases = json.load(sys.stdin)
    found = {
        name: converse(f"wss://{sys.argv[2]}/v1/responses?case={name}", context, messages)
        for name, messages in cases.items()
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
