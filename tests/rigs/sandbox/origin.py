"""An origin on loopback for sandboxed clients: a web server and a git repository, over TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.talk import ok
from tests.rigs.git.backend import GIT_BACKEND, answer_git
from tests.rigs.git.repositories import Bare
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rigs.gateway.talk import Message

REPOSITORY = "/widgets.git"


class GitAndWeb:
    """Answers `GET /x` with `hello /x`, endlessly under /endless, and git under /widgets.git."""

    def __init__(self, directory: Path, context: ssl.SSLContext) -> None:
        self.directory = directory
        self.has_git = GIT_BACKEND.exists() and shutil.which("git") is not None
        directory.mkdir()
        if self.has_git:
            made = Bare.make(directory / REPOSITORY.lstrip("/"))
            made.commit("main", {"readme": b"from the origin\n"})
        self._origin = Origin(Service(self._answer), context)
        self.close = self._origin.close

    @property
    def connections(self) -> int:
        """How many have come so far."""
        return self._origin.connections

    def until_idle(self) -> None:
        """Wait until nobody is connected."""
        until(lambda: not self._origin.open)

    def policy(self, *names: str, more: str = "") -> str:
        """A policy that allows the names and leads them here."""
        allow = ", ".join(f'"{name}"' for name in names)
        exact = [name for name in names if not name.startswith("*")]
        connect = "".join(f'"{name}:443" = "{self._origin.address}"\n' for name in exact)
        return f"{more}\n[egress]\nallow = [{allow}]\n[upstream.connect]\n{connect}"

    def _answer(self, message: Message) -> bytes | Iterator[bytes]:
        if message.target.startswith(REPOSITORY):
            return answer_git(message, self.directory)
        if message.target == "/endless":
            return _endless()
        return ok(f"hello {message.target}".encode())


def _endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    while True:  # until the other side is gone, which raises
        yield bytes(65536)


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
