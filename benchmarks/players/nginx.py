"""nginx as the origin of HTTP/2: cheap, and of other hands than the gateway.

It listens twice, with HTTP/2 and without. Bodies of requests are read to their end before it
answers, which it does only for what it passes on: so it passes those on to itself, without them.
"""

from __future__ import annotations

import shutil
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.players import duties
from benchmarks.players.httporigin import BLOCK, BULK, REPLY
from benchmarks.players.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MISSING = "nginx is not installed: apt-get install nginx-light"

UNARY = "/v1/threads/7"
"""Answers as a gRPC server does: a message, and a status behind it."""

MESSAGE = b"\x00\x00\x00\x00\x40" + b"\x0a\x3e" + b"a text, " * 7 + b"ended\n"
"""A gRPC message: not compressed, its length, and 64 bytes (gRPC over HTTP/2, "Requests")."""

SEEN = "seen"
"""The file with the credential and the protocol of each request that asked for an echo: an answer
would have the credential replaced."""

_PLACES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

_CONFIG = """\
daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {{ worker_connections 8192; }}
http {{
  {temporary}
  access_log off;
  log_format seen '$http_authorization $server_protocol';
  server_tokens off;
  sendfile on;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_max_body_size 0;
  client_body_buffer_size 1m;
  http2_max_concurrent_streams 256;
  ssl_certificate origin.pem;
  ssl_certificate_key origin.pem;
  upstream inner {{ server unix:{directory}/inner; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{http2} ssl http2 backlog=1024;
    listen 127.0.0.1:{http1} ssl backlog=1024;
    default_type application/json;
    location / {{ return 200 '{reply}'; }}
    location = {down} {{ default_type application/octet-stream; alias {directory}/bulk; }}
    location = {echo} {{ access_log {directory}/{seen} seen; return 200; }}
    location = {up} {{ {to_inner} }}
    location = {unary} {{ {to_inner} add_trailer grpc-status 0; }}
  }}
  server {{
    listen unix:{directory}/inner;
    location = {up} {{ return 200; }}
    location = {unary} {{ default_type application/grpc; alias {directory}/message; }}
  }}
}}
"""
_TO_INNER = (
    "proxy_pass http://inner; proxy_http_version 1.1; proxy_method GET; "
    "proxy_pass_request_headers off; proxy_pass_request_body off; "
    'proxy_set_header Connection ""; proxy_set_header Content-Length "";'
)


def missing() -> str | None:
    """Why it cannot be measured with, if so."""
    return None if _program() else MISSING


def _program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")


@contextmanager
def running(directory: Path, core: int) -> Iterator[tuple[int, int]]:
    """The ports with HTTP/2 and without; `directory` has its leaf, as origin.pem."""
    http2, http1 = _free_ports()
    (directory / "bulk").write_bytes(BLOCK * (BULK // len(BLOCK)))
    (directory / "message").write_bytes(MESSAGE)
    config = directory / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            temporary=" ".join(f"{name}_temp_path {directory}/{name};" for name in _PLACES),
            directory=directory,
            http2=http2,
            http1=http1,
            reply=REPLY.decode().strip(),
            down=duties.DOWN,
            up=duties.UP,
            echo=duties.ECHO,
            seen=SEEN,
            unary=UNARY,
            to_inner=_TO_INNER,
        )
    )
    command = [str(_program()), "-p", str(directory), "-c", str(config), "-e", "stderr"]
    with Program(command, core, str(directory)) as server:
        server.wait_until_it_says('using the "epoll" event method')
        yield http2, http1


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
