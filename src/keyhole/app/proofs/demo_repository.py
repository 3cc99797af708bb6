"""The demo's repository: a temporary bare one, served by git's own `http-backend`.

Made by `demo.py`, served by `demo_service.py`, and inspected outside the sandbox afterwards, which
proves what a push changed. Git is the system's, and no user settings reach it.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.system.programs import SEARCH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message
    from pathlib import Path

HOST = "git.keyhole.example"
NAME = "acme/widgets"
USER = "git"
"""The Basic user that a policy writes for a forge that demands no particular one."""
MAIN = "refs/heads/main"

PATIENCE = 30.0
"""Seconds for one call of git, each of which takes some milliseconds."""

_BEGINNING = b"""\
commit refs/heads/main
committer Somebody <somebody@keyhole.example> 1 +0000
data 10
Beginning
M 100644 inline README
data 8
widgets
"""
"""Input of `git fast-import`; the times do not matter here."""


class GitHttpResponse(Struct, frozen=True):
    """Git's response to a request."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class RepositoryState(Struct, frozen=True):
    """The content of the repository: its refs, and every object by its id."""

    refs: Mapping[str, str]
    objects: frozenset[str]


class DemoRepository(Struct, frozen=True):
    """A repository that can be served."""

    git: Path
    root: Path
    """The directory that is `/` of the address."""

    def state(self) -> RepositoryState:
        """The present content."""
        refs = self._ask("for-each-ref", "--format=%(refname) %(objectname)")
        objects = self._ask("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
        return RepositoryState(
            dict(line.split(" ") for line in refs.splitlines()), frozenset(objects.split())
        )

    def answer(self, method: str, target: str, fields: Message, body: bytes) -> GitHttpResponse:
        """Have git answer an authenticated request (RFC 3875)."""
        path, _, query = target.partition("?")
        variables = {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": fields.get("Git-Protocol", ""),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": method,
            "CONTENT_TYPE": fields.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": fields.get("Content-Encoding", ""),
            "REMOTE_USER": USER,
        }
        said = _run(self.git, self.root, "http-backend", given=body, more=variables)
        head, _, content = said.partition(b"\r\n\r\n")
        headers = [line.split(": ", 1) for line in head.decode("latin-1").splitlines()]
        status = next((value for name, value in headers if name == "Status"), "200")
        kept = tuple((name, value) for name, value in headers if name != "Status")
        return GitHttpResponse(int(status[:3]), kept, content)

    def _ask(self, *words: str) -> str:
        return _run(self.git, self.root, f"--git-dir={NAME}.git", *words).decode("ascii")


def make_repository(git: Path | None, root: Path) -> DemoRepository | None:
    """A repository with a branch `main` of one commit; None if this host has no git that serves
    one."""
    if git is None:
        return None
    root.mkdir()
    try:
        programs = _run(git, root, "--exec-path").decode().rstrip("\n")
        # Some distributions keep it in a package of its own.
        if not os.access(f"{programs}/git-http-backend", os.X_OK):
            return None
        _run(git, root, "init", "--quiet", "--bare", "--initial-branch=main", f"{NAME}.git")
        _run(git, root, f"--git-dir={NAME}.git", "fast-import", "--quiet", given=_BEGINNING)
    except subprocess.SubprocessError:  # a git from before 2.28 knows no --initial-branch
        return None
    return DemoRepository(git, root)


def _run(
    git: Path,
    directory: Path,
    *words: str,
    given: bytes = b"",
    more: Mapping[str, str] | None = None,
) -> bytes:
    own = {"PATH": ":".join(SEARCH), "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(  # noqa: S603 - found where the system keeps programs
        [str(git), *words],
        cwd=directory,
        env=own | dict(more or {}),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=True,
    ).stdout
