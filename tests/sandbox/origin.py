"""An origin on loopback for sandboxed clients: a web server and a git repository, over TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gateway.origins import Origin
from tests.sandbox.people import PATIENCE

if TYPE_CHECKING:
    import socket
    import ssl

GIT_BACKEND = Path("/usr/lib/git-core/git-http-backend")
REPOSITORY = "/widgets.git"


class GitAndWeb:
    """Answers `GET /x` with `hello /x`, endlessly under /endless, and git under /widgets.git."""

    def __init__(self, directory: Path, context: ssl.SSLContext) -> None:
        self.directory = directory
        self.has_git = GIT_BACKEND.exists() and shutil.which("git") is not None
        directory.mkdir()
        if self.has_git:
            _make_repository(directory)
        self._origin = Origin(self._serve, context)
        self.close = self._origin.close

    @property
    def connections(self) -> int:
        """How many have come so far."""
        return self._origin.connections

    def until_idle(self) -> None:
        """Wait until nobody is connected."""
        deadline = time.monotonic() + PATIENCE
        while self._origin.open:
            assert time.monotonic() < deadline, "a connection stays open"
            time.sleep(0.01)

    def policy(self, *names: str, more: str = "") -> str:
        """A policy that allows the names and leads them here."""
        allow = ", ".join(f'"{name}"' for name in names)
        exact = [name for name in names if not name.startswith("*")]
        connect = "".join(f'"{name}:443" = "{self._origin.address}"\n' for name in exact)
        return f"{more}\n[egress]\nallow = [{allow}]\n[upstream.connect]\n{connect}"

    def _serve(self, sock: socket.socket) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            directory = outer.directory

            def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base's own
                return

            def do_GET(self) -> None:
                if self.path.startswith(REPOSITORY):
                    _git(self, self.directory)
                elif self.path == "/endless":
                    _endless(self)
                else:
                    _answer(self, f"hello {self.path}".encode())

            def do_POST(self) -> None:
                _git(self, self.directory)

        Handler(sock, ("127.0.0.1", 0), None)  # type: ignore[arg-type]


def _answer(handler: BaseHTTPRequestHandler, body: bytes, kind: str = "text/plain") -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    block = bytes(65536)
    while True:  # until the other side is gone, which raises
        handler.wfile.write(block)


def _git(handler: BaseHTTPRequestHandler, directory: Path) -> None:
    """`git http-backend` as RFC 3875 has it."""
    path, _, query = handler.path.partition("?")
    body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
    done = subprocess.run(
        [GIT_BACKEND],
        input=body,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
        env={
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(directory),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": handler.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""),
        },
    )
    head, _, answer = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    _answer(handler, answer, fields["Content-Type"])


def _make_repository(directory: Path) -> None:
    bare = directory / REPOSITORY.lstrip("/")
    git(directory, "init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    work = directory / "work"
    git(directory, "clone", "--quiet", str(bare), str(work))
    (work / "readme").write_text("from the origin\n")
    git(work, "add", "readme")
    git(work, "commit", "--quiet", "--message=first")
    git(work, "push", "--quiet", "origin", "HEAD:main")


def git(where: Path, *words: str, **more: Any) -> str:  # noqa: ANN401 - subprocess's own
    """Run git outside, without anybody's settings."""
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = {f"GIT_{role}_{what}": f"{what.lower()}@tests.example"
           for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(
        ["/usr/bin/env", "git", *words],
        cwd=where,
        env={"PATH": os.environ["PATH"]} | settings | who,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
