"""A gRPC server: `grpc_server.py CHAIN KEY`. Prints its port, and serves until its input ends."""

from __future__ import annotations

import concurrent.futures
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

ended: list[str] = []
"""Calls that are over."""


def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
    seen = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-seen", seen.get("x-mine", "")),))
    context.set_trailing_metadata((("x-after", "trailer"), ("x-raw-bin", b"\x00\x01\xff")))
    return request


def key(request: bytes, context: grpc.ServicerContext) -> bytes:
    """What it was sent as its key, as it is and in a compressed message."""
    given: bytes = dict(context.invocation_metadata()).get("authorization", "").encode()
    context.set_trailing_metadata((("x-given", given.decode()),))
    if request == b"packed":
        context.set_compression(grpc.Compression.Gzip)
        return given + b" " * 2000
    return b"\x0a" + bytes([len(given)]) + given


def packed(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    return request


def fail(request: bytes, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100 % é")


def slow(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.add_callback(lambda: ended.append("slow"))
    time.sleep(float(request))
    return b"too late"


def many(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    for number in range(int(request)):
        yield b"%d" % number


def total(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    return b"%d" % sum(int(each) for each in requests)


def chat(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    context.add_callback(lambda: ended.append("chat"))
    for each in requests:
        yield each.upper()


def log(request: bytes, context: grpc.ServicerContext) -> bytes:
    return ",".join(ended).encode()


KINDS: dict[Any, Any] = {
    unary: grpc.unary_unary_rpc_method_handler,
    key: grpc.unary_unary_rpc_method_handler,
    packed: grpc.unary_unary_rpc_method_handler,
    fail: grpc.unary_unary_rpc_method_handler,
    slow: grpc.unary_unary_rpc_method_handler,
    log: grpc.unary_unary_rpc_method_handler,
    many: grpc.unary_stream_rpc_method_handler,
    total: grpc.stream_unary_rpc_method_handler,
    chat: grpc.stream_stream_rpc_method_handler,
}


def main() -> None:
    with open(sys.argv[1], "rb") as chain, open(sys.argv[2], "rb") as private:
        credentials = grpc.ssl_server_credentials([(private.read(), chain.read())])
    options = [("grpc.max_receive_message_length", 64 << 20)]
    pool = concurrent.futures.ThreadPoolExecutor(16)
    server = grpc.server(pool, options=options)
    methods = {method.__name__.title(): kind(method) for method, kind in KINDS.items()}
    methods["Drop"] = methods["Unary"]
    handler = grpc.method_handlers_generic_handler("acme.v1.Echo", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0).wait()


main()
