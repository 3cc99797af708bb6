"""The rig itself, with plain git and no Keyhole: what the other tests take for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.git.repositories import newer_git, random_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.git.repositories import Bare
    from tests.rigs.git.server import GitServer


@pytest.fixture
def bare(git_server: GitServer) -> Bare:
    """A repository with two commits and a tag."""
    made = git_server.create("acme/plain")
    made.commit("main", {"readme": b"one\n"})
    made.point("refs/tags/v1", made.commit("main", {"readme": b"two\n"}))
    git_server.asked()
    return made


@pytest.mark.parametrize("version", ["0", "1", "2"])
def test_git_clones_in_each_protocol(
    git_server: GitServer, bare: Bare, tmp_path: Path, version: str
) -> None:
    url = git_server.url("acme/plain")
    done = git_server.directly(tmp_path, "-c", f"protocol.version={version}", "clone", url, "x")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x/readme").read_text() == "two\n"
    asked = git_server.asked()
    first = asked[0]
    assert (first.method, first.status, first.user) == ("GET", 200, "x-access-token")
    assert {each.protocol for each in asked} == {"" if version == "0" else f"version={version}"}


def test_who_has_no_token_is_told_nothing(
    git_server: GitServer, bare: Bare, tmp_path: Path
) -> None:
    """And the address without `.git` is the same repository. Control: with the token."""
    url = git_server.url("acme/plain").removesuffix(".git")
    done = git_server.directly(tmp_path, "ls-remote", url, known=False)
    assert done.returncode == 128
    assert {each.status for each in git_server.asked()} == {401}
    done = git_server.directly(tmp_path, "ls-remote", url)
    assert f"{bare.branch('main')}\trefs/heads/main\n" in done.stdout


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_git_pushes_whole_and_in_chunks(
    git_server: GitServer, bare: Bare, tmp_path: Path, size: int
) -> None:
    url = git_server.url("acme/plain")
    assert git_server.directly(tmp_path, "clone", url, "x").returncode == 0
    (tmp_path / "x/big").write_bytes(random_bytes(size))
    for words in (("add", "."), ("commit", "-qm", "big"), ("push", "origin", "HEAD:agent/x")):
        done = git_server.directly(tmp_path / "x", *words)
        assert done.returncode == 0, done.stderr
    tip = git_server.directly(tmp_path / "x", "rev-parse", "HEAD").stdout.strip()
    assert bare.branch("agent/x") == tip
    assert bare.has(tip)
    pushes = [each for each in git_server.asked() if each.pushes]
    assert [each.status for each in pushes] == [200] * (1 if size < 1 << 20 else 2)
    assert pushes[-1].size > size


def test_a_renamed_repository_answers_with_a_redirect(
    git_server: GitServer, tmp_path: Path
) -> None:
    git_server.create("acme/widgets").commit("main", {"readme": b"renamed\n"})
    url = git_server.url("acme/old-widgets")
    done = git_server.directly(tmp_path, "clone", url, "x")
    assert done.returncode == 0, done.stderr
    assert "warning: redirecting to" in done.stderr
    assert git_server.asked()[0].status == 301


def test_filters_are_served_where_they_are_allowed(git_server: GitServer, tmp_path: Path) -> None:
    for filters, name in ((True, "acme/filters"), (False, "acme/unfiltered")):
        git_server.create(name, filters=filters).commit("main", {"readme": b"x"})
        words = ("clone", "--bare", "--filter=blob:none", git_server.url(name), name)
        done = git_server.directly(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert ("filtering not recognized" in done.stderr) is not filters


def test_a_newer_git_works_too(git_server: GitServer, bare: Bare, tmp_path: Path) -> None:
    newer = newer_git()
    if newer is None:
        pytest.skip("no other git under /opt")
    done = git_server.directly(tmp_path, "clone", git_server.url("acme/plain"), "x", git=str(newer))
    assert done.returncode == 0, done.stderr
