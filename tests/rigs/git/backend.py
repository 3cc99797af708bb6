"""`git http-backend` behind the origin of tests, as RFC 3875 has it: a small git server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rigs.gateway.talk import ok
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.rigs.gateway.talk import Message

GIT_BACKEND = Path("/usr/lib/git-core/git-http-backend")


def answer_git(message: Message, root: Path) -> bytes:
    """What git says to a request for a repository under this directory."""
    path, _, query = message.target.partition("?")
    given = message.headers
    done = subprocess.run(
        [GIT_BACKEND],
        input=message.body,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
        env={
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": message.method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": given.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": given.get("content-encoding", ""),
            "GIT_PROTOCOL": given.get("git-protocol", ""),
        },
    )
    head, _, answer = done.stdout.partition(b"\r\n\r\n")
    (kind,) = (line for line in head.split(b"\r\n") if line.startswith(b"Content-Type:"))
    return ok(answer, kind)
