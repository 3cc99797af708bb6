"""The LFS server of the tests is one that git-lfs itself takes for real.

Without this, a rig that serves nothing could make a refusal look like one of Keyhole's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.git.lfsserver import LfsServer, Seen, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")

REPO = "acme/widgets"
CONTENT = bytes(range(256)) * 4096
TIMEOUT = 60
"""Seconds for one command: all of it is on this host."""


class Desk:
    """A user's home, a remote for commits, and an LFS server for large files."""

    def __init__(self, home: Path, server: LfsServer) -> None:
        self.home = home
        self.server = server
        self.remote = home / "remote.git"
        self.git("init", "-q", "--bare", "-b", "main", str(self.remote))
        self.git("config", "--global", "user.name", "T")
        self.git("config", "--global", "user.email", "t@example.org")
        self.git("config", "--global", "lfs.url", f"{server.forge}/{REPO}.git/info/lfs")
        self.git("config", "--global", "lfs.transfer.maxretries", "1")
        self.git("lfs", "install", "--skip-repo")

    def git(self, *words: str, at: Path | None = None, fails: bool = False) -> str:
        """Run git; what it said."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_TERMINAL_PROMPT": "0"}
        ran = subprocess.run(
            ["git", *words],  # noqa: S607 - the system's git
            cwd=at or self.home,
            env=env | {"GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        said = ran.stdout + ran.stderr
        assert (ran.returncode != 0) is fails, said
        return said

    def clone(self, name: str) -> Path:
        self.git("clone", "-q", f"file://{self.remote}", name)
        return self.home / name

    def push(self, content: bytes = CONTENT, *, fails: bool = False) -> str:
        """Commit a large file in a new work tree and push it."""
        tree = self.clone(f"work{len(list(self.home.iterdir()))}")
        self.git("lfs", "track", "*.bin", at=tree)
        (tree / "large.bin").write_bytes(content)
        self.git("add", ".", at=tree)
        self.git("commit", "-q", "-m", "large", at=tree)
        return self.git("push", "-q", "origin", "HEAD:main", at=tree, fails=fails)

    def seen(self, where: str) -> list[tuple[str, str]]:
        """Methods and last words of the paths that one of the two saw."""
        asked = [each for each in self.server.seen if each.where == where]
        return [(each.method, each.path.rpartition("/")[2]) for each in asked]


@pytest.fixture
def server() -> LfsServer:
    return LfsServer()


@pytest.fixture
def desk(server: LfsServer, tmp_path: Path) -> Iterator[Desk]:
    with serving(server):
        yield Desk(tmp_path, server)


def of(server: LfsServer, where: str, method: str) -> Seen:
    """The one request of this kind."""
    (found,) = [each for each in server.seen if (each.where, each.method) == (where, method)]
    return found


def test_git_lfs_pushes_and_fetches_through_the_two(desk: Desk) -> None:
    desk.push()
    ((repo, oid),) = desk.server.objects
    assert repo == REPO
    assert desk.seen("storage") == [("PUT", oid), ("POST", "verify")]
    assert desk.server.verified == {(REPO, oid)}
    assert (desk.clone("other") / "large.bin").read_bytes() == CONTENT
    assert desk.seen("storage")[2:] == [("GET", oid)]


def test_git_lfs_sends_what_the_gateway_expects_of_it(desk: Desk) -> None:
    desk.push()
    batch = next(each for each in desk.server.seen if each.path.endswith("/objects/batch"))
    assert batch.headers["content-type"] == "application/vnd.git-lfs+json; charset=utf-8"
    assert b'"operation":"upload"' in batch.body
    put = of(desk.server, "storage", "PUT")
    assert put.headers["content-length"] == str(len(CONTENT))
    assert "transfer-encoding" not in put.headers
    assert "expect" not in put.headers


@pytest.mark.parametrize("server", [LfsServer(chunked=True)])
def test_git_lfs_sends_chunks_where_it_is_told_to(desk: Desk) -> None:
    desk.push()
    assert of(desk.server, "storage", "PUT").headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("server", [LfsServer(redirects=True)])
def test_git_lfs_follows_a_storage_host_that_redirects(desk: Desk) -> None:
    """To another name it takes no Authorization along, and the signed place wants none."""
    desk.push()
    assert (desk.clone("other") / "large.bin").read_bytes() == CONTENT
    first, second = [each for each in desk.server.seen if each.method == "GET"][-2:]
    assert "authorization" in first.headers
    assert second.path.startswith("/elsewhere/")


def test_locks_are_taken_listed_and_given_back(desk: Desk) -> None:
    desk.push()
    tree = desk.clone("locking")
    desk.git("lfs", "lock", "large.bin", at=tree)
    assert "large.bin" in desk.git("lfs", "locks", at=tree)
    desk.git("lfs", "unlock", "large.bin", at=tree)
    assert desk.server.locks == {REPO: []}
    rests = [each.path.partition("/info/lfs/")[2] for each in desk.server.seen]
    assert "locks/lock-1/unlock" in rests


@pytest.mark.parametrize("server", [LfsServer(authorization="Basic never")])
def test_a_forge_that_wants_a_credential_gives_nothing_without(desk: Desk) -> None:
    """The control of end-to-end tests: what they transfer was injected for."""
    desk.push(fails=True)
    assert not desk.server.objects


def test_the_storage_host_takes_only_what_was_lent(desk: Desk) -> None:
    desk.push()
    put = of(desk.server, "storage", "PUT")
    assert put.headers["authorization"].startswith("RemoteAuth ")
    for changed in ({"authorization": "RemoteAuth x"}, {}):
        headers = {n: v for n, v in put.headers.items() if n != "authorization"} | changed
        assert desk.server.answer(put._replace(headers=headers)).status == 403
    assert desk.server.answer(put._replace(query="X-Amz-Signature=0")).status == 403
    assert desk.server.answer(put).status == 200
