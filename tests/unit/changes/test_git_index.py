"""Git writes its index again and again; only its entries are the person's."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.changes.git_index import entries_digest, is_index
from tests.rigs.changes.reviews import Review

if TYPE_CHECKING:
    from pathlib import Path

GIT = shutil.which("git") or "git"
WORDS = ("-c", "user.name=A", "-c", "user.email=a@corp.example", "-c", "gc.auto=0")


def git(where: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [GIT, *WORDS, *words], cwd=where, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def digest(where: Path) -> str:
    return entries_digest(where.joinpath(".git/index").read_bytes())


_times = itertools.count(1_000_000_000)


def touch(where: Path) -> None:
    """Have git write the index again: the time of a file no longer fits."""
    before = where.joinpath(".git/index").read_bytes()
    moment = next(_times)
    os.utime(where / "file-xx", (moment, moment))
    git(where, "status")
    assert where.joinpath(".git/index").read_bytes() != before


def repository(where: Path, *words: str) -> Path:
    where.mkdir(exist_ok=True)
    for number in range(12):
        where.joinpath(f"file-{'x' * number}").write_text(f"{number}\n")
    git(where, "init", "-q", *words)
    git(where, "add", ".")
    git(where, "commit", "-qm", "first")
    return where


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_the_entries_are_those_that_a_person_staged(
    tmp_path: Path, version: str, kind: str
) -> None:
    where = repository(tmp_path / "a", f"--object-format={kind}")
    git(where, "update-index", "--index-version", version)
    first = digest(where)
    assert first
    touch(where)
    assert digest(where) == first
    where.joinpath("file-x").write_text("other\n")
    git(where, "add", "file-x")
    second = digest(where)
    assert second not in ("", first)
    # Bits of version 3, which is chosen where they are needed.
    where.joinpath("later").write_text("")
    git(where, "add", "-N", "later")
    assert digest(where) not in ("", first, second)


def test_an_index_that_is_not_understood_has_no_digest(tmp_path: Path) -> None:
    where = repository(tmp_path / "a")
    data = where.joinpath(".git/index").read_bytes()
    assert entries_digest(data)
    for broken in (b"", data[:-1], data[:20], b"x" + data[1:], bytes(len(data))):
        assert entries_digest(broken) == ""
    git(where, "update-index", "--split-index")
    assert digest(where) == ""  # its entries are in another file


def test_an_index_that_ends_early_has_no_digest(tmp_path: Path) -> None:
    """With a right checksum: a sandbox can write that. Control: whole, it has one."""

    def sealed(body: bytes) -> bytes:
        return body + hashlib.sha1(body, usedforsecurity=False).digest()

    where = repository(tmp_path / "a")
    for version in ("2", "4"):
        git(where, "update-index", "--index-version", version)
        body = where.joinpath(".git/index").read_bytes()[:-20]
        assert entries_digest(sealed(body)) == digest(where) != ""
        entries = body.index(b"TREE")
        assert not any(entries_digest(sealed(body[:cut])) for cut in range(entries - 8))


def test_only_an_index_of_a_repository_is_one() -> None:
    named = (".git/index", "a/.git/index", ".git/worktrees/x/index", ".git/modules/a/b/index")
    assert all(map(is_index, named))
    others = ("index", "a/index", ".git/objects/index", ".git/refs/heads/index", ".git/index/x")
    assert not any(map(is_index, others))


def agent_commits(review: Review, scratch: Path) -> None:
    """The sandbox changes a file and commits it."""
    shutil.copytree(review.tree, scratch, symlinks=True)
    scratch.joinpath("file-x").write_text("agent's\n")
    git(scratch, "commit", "-qam", "second")
    for path in sorted(scratch.rglob("*")):
        name = path.relative_to(scratch)
        old = review.tree / name
        if path.is_file() and not (old.is_file() and old.read_bytes() == path.read_bytes()):
            target = review.upper / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def test_a_status_of_the_persons_is_no_conflict_and_an_undo_survives_one(tmp_path: Path) -> None:
    """Attack by accident: without the index, the commit is applied and its changes seem staged the
    other way round. Control: an index in which the person staged something is a conflict."""
    repository(tmp_path / "project")
    review = Review.of(tmp_path, {})
    agent_commits(review, tmp_path / "scratch")
    touch(review.tree)
    assert not review.changes()[".git/index"].conflict
    review.apply()
    assert git(review.tree, "log", "--format=%s").split() == ["second", "first"]
    assert git(review.tree, "status", "--short") == ""
    touch(review.tree)
    assert review.undo().left == ()
    assert git(review.tree, "log", "--format=%s").split() == ["first"]
    assert git(review.tree, "status", "--short") == ""
    touch(review.tree)
    assert not review.changes()[".git/index"].conflict
    assert review.begin_again() > 0
    assert not review.changes()[".git/index"].conflict
    review.tree.joinpath("own").write_text("")
    git(review.tree, "add", "own")
    assert review.changes()[".git/index"].conflict
    assert review.held()[".git/index"] == "conflict"
    review.apply()
    assert review.tree.joinpath("file-x").read_text() == "agent's\n"
    assert git(review.tree, "log", "--format=%s").split() == ["first"]
    assert git(review.tree, "status", "--short") == " M file-x\nA  own\n"
    review.apply(".git", replaces=True)
    assert git(review.tree, "log", "--format=%s").split() == ["second", "first"]
    assert git(review.tree, "status", "--short") == "?? own\n"
