"""Kept homes: one for each project and policy, in use or removed, never both."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.homes.home_store import HomeKey, HomeOwner, HomeStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> HomeStore:
    return HomeStore(tmp_path / "homes")


def test_a_home_is_found_again_by_the_paths_of_project_and_policy(
    store: HomeStore, tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "p")
    key = HomeKey.of(tmp_path / "p", tmp_path / "p/keyhole.toml")
    assert key == HomeKey.of(tmp_path / "link", tmp_path / "link/keyhole.toml")
    others = [
        HomeKey.of(tmp_path / "p", tmp_path / "p/other.toml"),
        HomeKey.of(tmp_path, tmp_path / "p/keyhole.toml"),
        HomeKey.of(tmp_path / "p", tmp_path / "p/keyhole.toml", "named"),
    ]
    first = store.open(key)
    (first.home / "history").write_text("mine")
    first.close()
    again = store.open(key)
    assert (again.home / "history").read_text() == "mine"
    for other in others:
        assert os.listdir(store.open(other).home) == []
    assert {home.key for home in store.list()} == {key, *others}


def test_its_directories_are_closed_to_other_users(store: HomeStore, tmp_path: Path) -> None:
    opened = store.open(HomeKey("p", "q"), HomeOwner(os.getuid(), os.getgid()))
    assert stat.S_IMODE(opened.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(opened.home.parent.stat().st_mode) == 0o700
    assert opened.cache("npm").parent.parent == opened.home.parent
    assert stat.S_IMODE((tmp_path / "homes").stat().st_mode) == 0o700


def test_a_home_in_use_is_not_removed(store: HomeStore) -> None:
    key = HomeKey("/p", "/p/keyhole.toml")
    opened, second = store.open(key), store.open(key)
    (opened.home / "closed").mkdir(mode=0)
    assert [home.in_use for home in store.list()] == [True]
    for each in (opened, second):
        with pytest.raises(Refused, match="in use"):
            store.remove(key.id)
        each.close()
        each.close()
    (home,) = store.list(measured=False)
    assert (home.in_use, home.size.bytes > 0) == (False, True)
    assert store.find(key.id) is not None
    store.remove(key.id)
    assert store.list() == []
    assert store.find(key.id) is None


def test_a_removal_that_was_killed_is_finished_by_the_next(
    store: HomeStore, tmp_path: Path
) -> None:
    left = tmp_path / "homes/.removed-x"
    (left / "home/a").mkdir(parents=True)
    assert store.list() == []
    store.remove_leftovers()
    assert not left.exists()


@pytest.mark.parametrize("id_", ["missing", "../p", ""])
def test_only_a_home_can_be_removed(store: HomeStore, tmp_path: Path, id_: str) -> None:
    (tmp_path / "p").mkdir()
    store.open(HomeKey("p", "q")).close()
    with pytest.raises(Refused, match="no kept home"):
        store.remove(id_)
    assert (tmp_path / "p").is_dir()
    assert len(store.list()) == 1


def test_a_file_is_read_only_if_it_is_one_and_not_too_long(
    store: HomeStore, tmp_path: Path
) -> None:
    opened = store.open(HomeKey("p", "q"))
    home = opened.home
    (tmp_path / "secret").write_text("of the host")
    (home / "plain").write_text("x" * 10)
    (home / "link").symlink_to(tmp_path / "secret")
    (home / "directory").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    assert opened.read("plain", 10) == b"x" * 10
    for path in ("plain", "link", "directory/secret", "pipe", "missing", "a//b"):
        assert opened.read(path, 9) is None


def test_a_record_that_cannot_be_read_loses_no_home(store: HomeStore) -> None:
    key = HomeKey("/p", "/q")
    opened = store.open(key)
    opened.close()
    (opened.home.parent / "record.json").write_text("[]")
    (home,) = store.list()
    assert (home.id, home.key.project) == (key.id, "")
    (opened.home.parent / "record.json").write_text('{"used": "x", "bytes": -1}')
    assert store.open(key).known_size == 0
