"""Opening a path without following a link anywhere on the way (I11)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.system.walk import LinkInPath, open_beneath_no_links, read_no_links


def opened(path: object, dir_fd: int | None = None) -> tuple[int, int]:
    descriptor = open_beneath_no_links(str(path), dir_fd=dir_fd)
    try:
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    finally:
        os.close(descriptor)


def identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_plain_path_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    assert opened(tmp_path / "a/b") == identity(tmp_path / "a/b")


def test_the_root_itself_is_opened() -> None:
    assert opened("/") == identity(Path("/"))


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
def test_a_link_at_any_component_is_refused_by_name(tmp_path: Path, link: str) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert opened(tmp_path / "a/b/c") == identity(tmp_path / "a/b/c")
    (tmp_path / link).rename(tmp_path / "moved")
    (tmp_path / link).symlink_to(tmp_path / "moved")
    with pytest.raises(LinkInPath) as caught:
        open_beneath_no_links(str(tmp_path / "a/b/c"))
    assert caught.value.filename == str(tmp_path / link)


def test_a_link_put_where_a_hooks_directory_was_is_refused(tmp_path: Path) -> None:
    hooks = tmp_path / ".git/hooks"
    hooks.mkdir(parents=True)
    judged = str(hooks)
    hooks.rmdir()
    hooks.symlink_to("/etc")
    with pytest.raises(LinkInPath):
        open_beneath_no_links(judged)


def test_a_magic_link_is_a_link() -> None:
    with pytest.raises(LinkInPath):
        open_beneath_no_links(os.path.join("/proc", str(os.getpid()), "root", "etc"))


@pytest.mark.parametrize("path", ["", "a", "/a/../b", "/a//b", "/a/.", "/a/", "/a\0b"])
def test_a_path_that_is_not_canonical_is_not_walked(path: str) -> None:
    with pytest.raises(ValueError, match="canonical"):
        open_beneath_no_links(path)


def test_what_is_missing_is_said_with_the_path_up_to_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open_beneath_no_links(str(tmp_path / "gone/deeper"))
    assert caught.value.filename == str(tmp_path / "gone")


def test_a_walk_can_start_at_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    start = os.open(tmp_path, os.O_PATH)
    try:
        assert opened("/a", start) == identity(tmp_path / "a")
        with pytest.raises(LinkInPath):
            open_beneath_no_links("/out/passwd", dir_fd=start)
    finally:
        os.close(start)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    before = open_descriptors()
    for path in (tmp_path / "link/x", tmp_path / "gone", tmp_path):
        try:
            os.close(open_beneath_no_links(str(path)))
        except OSError:
            continue
    assert open_descriptors() == before


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abcdef")
    assert read_no_links(str(tmp_path / "f"), 4) == b"abcd"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(OSError, match="regular"):
        read_no_links(str(tmp_path / "f"), 4)


def test_the_walk_imports_next_to_nothing() -> None:
    code = "import sys, keyhole.system.walk as _; print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-S", "-c", code], text=True, env=_path())
    assert {"ctypes", "dataclasses", "re", "subprocess"}.isdisjoint(names.split())


def _path() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
