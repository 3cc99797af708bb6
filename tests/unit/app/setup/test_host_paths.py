"""Where a policy is looked for (I11): no further up than the project goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.app.setup.host_paths import find_policy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A home with a project in it, and a directory deep in the project."""
    deep = tmp_path / "home" / "project" / "src" / "deep"
    deep.mkdir(parents=True)
    return tmp_path / "home" / "project"


def found(project: Path, below: str = "src/deep") -> Path:
    return find_policy(project / below, project.parent)


def test_the_nearest_policy_above_is_found(project: Path) -> None:
    (project / "keyhole.toml").touch()
    assert found(project) == Path("../../keyhole.toml")
    (project / "src" / "keyhole.toml").touch()
    assert found(project) == Path("../keyhole.toml")
    assert found(project, "") == Path("keyhole.toml")


def test_where_there_is_none_the_directory_itself_is_named(project: Path) -> None:
    assert found(project) == Path("keyhole.toml")
    assert find_policy(project / "gone", project.parent) == Path("keyhole.toml")


@pytest.mark.parametrize("name", [".git", ".hg", ".jj", ".svn"])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_search_ends_at_the_root_of_a_repository(project: Path, kind: str, name: str) -> None:
    """I11: the policy of a directory of projects would give a clone all of them to write."""
    (project / "keyhole.toml").touch()
    root = project / "src" / name
    assert found(project) == Path("../../keyhole.toml")
    root.mkdir() if kind == "directory" else root.touch()
    assert found(project) == Path("keyhole.toml")
    (project / "src" / "keyhole.toml").touch()
    assert found(project) == Path("../keyhole.toml")


def test_the_search_ends_at_the_home(project: Path) -> None:
    (project.parent.parent / "keyhole.toml").touch()
    assert found(project) == Path("keyhole.toml")
    (project.parent / "keyhole.toml").touch()
    assert found(project) == Path("../../../keyhole.toml")


def test_a_directory_that_everybody_can_write_is_not_searched(project: Path) -> None:
    (project / "keyhole.toml").touch()
    assert found(project) == Path("../../keyhole.toml")
    project.chmod(0o1777)
    assert found(project) == Path("keyhole.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_owner_is_not_searched(project: Path) -> None:
    (project / "keyhole.toml").touch()
    assert found(project) == Path("../../keyhole.toml")
    os.chown(project, 65534, 65534)
    assert found(project) == Path("keyhole.toml")
