"""Parsers for bytes that a client or an origin chose: TLS hellos, DNS, git, LFS, WebSocket.

Pure: bytes in, values out. Called by `gateway/`, which owns the sockets. A parser never repairs
input: it refuses everything that it does not understand.
"""
