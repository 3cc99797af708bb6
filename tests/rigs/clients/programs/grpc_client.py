"""Inside: a gRPC client, unmodified: `grpc_client.py CA HOST KEY`. Prints the results as JSON."""

from __future__ import annotations

import json
import queue
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICE = "/acme.v1.Echo/"
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


def trial(call: Callable[[], object]) -> object:
    try:
        return call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    key = ("authorization", f"Bearer {sys.argv[3]}")
    with grpc.secure_channel(f"{sys.argv[2]}:443", credentials, OPTIONS) as channel:
        sys.stdout.write(json.dumps(calls(channel, key)))


def calls(channel: grpc.Channel, key: tuple[str, str]) -> dict[str, Any]:
    def unary(method: str, body: bytes = b"hi", timeout: float = 20.0, **more: object) -> str:
        call = channel.unary_unary(SERVICE + method)
        found: bytes = call(body, timeout=timeout, metadata=(key,), **more)
        return found.decode("latin-1")

    def metadata() -> list[str]:
        call = channel.unary_unary(SERVICE + "Unary")
        _, done = call.with_call(b"hi", timeout=20, metadata=(key, ("x-mine", "yes")))
        after = {name: str(value) for name, value in done.trailing_metadata()}
        return [dict(done.initial_metadata())["x-seen"], after["x-after"], after["x-raw-bin"]]

    def given() -> list[str]:
        call = channel.unary_unary(SERVICE + "Key")
        body, done = call.with_call(b"plain", timeout=20, metadata=(key,))
        return [body.decode("latin-1"), dict(done.trailing_metadata())["x-given"]]

    def large() -> bool:
        body = bytes(range(256)) * 4096 * 8
        found = channel.unary_unary(SERVICE + "Unary")(body, timeout=30, metadata=(key,))
        return bool(found == body)

    def many() -> bool:
        found = channel.unary_stream(SERVICE + "Many")(b"1000", timeout=20, metadata=(key,))
        return [int(each) for each in found] == list(range(1000))

    def total() -> int:
        numbers = (b"%d" % number for number in range(1000))
        call = channel.stream_unary(SERVICE + "Total")
        return int(call(numbers, timeout=20, metadata=(key,)))

    def chat() -> list[str]:
        """Each message waits for the response to the one before it."""
        waiting: queue.Queue[bytes | None] = queue.Queue()
        calling = channel.stream_stream(SERVICE + "Chat")
        call = calling(iter(waiting.get, None), timeout=20, metadata=(key,))
        heard = []
        for word in (b"one", b"two", b"three"):
            waiting.put(word)
            heard.append(next(call).decode())
        waiting.put(None)
        return [*heard, *call]

    def deadline() -> list[object]:
        began = time.monotonic()
        said = trial(lambda: unary("Slow", b"10", timeout=0.5))
        return [said, time.monotonic() - began < 5]

    def cancelled() -> int:
        waiting: queue.Queue[bytes | None] = queue.Queue()
        calling = channel.stream_stream(SERVICE + "Chat")
        call = calling(iter(waiting.get, None), timeout=20, metadata=(key,))
        waiting.put(b"one")
        next(call)
        before = unary("Log").count("chat")
        call.cancel()
        waiting.put(None)
        until = time.monotonic() + 10
        while unary("Log").count("chat") <= before and time.monotonic() < until:
            time.sleep(0.05)
        return unary("Log").count("chat") - before

    gzip = grpc.Compression.Gzip
    return {
        "unary": trial(lambda: unary("Unary")),
        "packed": trial(lambda: unary("Packed", b"pack " * 400, compression=gzip)),
        "metadata": trial(metadata),
        "given": trial(given),
        "given packed": trial(lambda: unary("Key", b"packed")),
        "fail": trial(lambda: unary("Fail")),
        "unknown": trial(lambda: unary("Unknown")),
        "drop": trial(lambda: unary("Drop")),
        "elsewhere": trial(lambda: unary("../../acme.v1.Other/Unary")),
        "large": trial(large),
        "many": trial(many),
        "total": trial(total),
        "chat": trial(chat),
        "deadline": deadline(),
        "cancelled": cancelled(),
    }


main()
