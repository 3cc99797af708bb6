"""A home that is kept, and what hostile code may have left in it: without an engine."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from keyhole.sandbox.containers.entrypoint import _plant
from keyhole.sandbox.containers.tidy_volume import clear

if TYPE_CHECKING:
    from pathlib import Path


def test_what_would_lead_a_mount_elsewhere_is_moved_aside(tmp_path: Path) -> None:
    """I11: links, and files in the place of directories. Control: what is right stays."""
    (tmp_path / "right/way").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "right/pipe").symlink_to("nowhere")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    for names, directory in (
        (["right", "way"], True), (["file"], False), (["not", "there"], True),
        (["link", "x"], True), (["right", "pipe"], False),
    ):  # fmt: skip
        clear(root, names, directory=directory)
    assert (tmp_path / "right/way").is_dir()
    assert (tmp_path / "file").read_text() == "x"
    clear(root, ["file", "below"], directory=True)
    os.close(root)
    left = {path.name.partition(".aside-")[0] for path in tmp_path.iterdir()}
    assert left == {"right", "file", "link"}
    assert not (tmp_path / "link").is_symlink()
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "right/pipe").is_symlink()


def test_a_clients_settings_are_ours_where_they_must_be_and_its_own_else(tmp_path: Path) -> None:
    """No link is followed, no pipe waited at, and what is no table of JSON is replaced."""
    kept, linked, odd = (tmp_path / name for name in ("kept", "linked", "odd"))
    kept.write_text('{"key": "old", "theme": "dark"}')
    (tmp_path / "victim").write_text('{"key": "old"}')
    linked.symlink_to("victim")
    os.mkfifo(odd)
    seed = '{"key": "new"}'
    _plant(tuple((str(path), seed, 0o600) for path in (kept, linked, odd, tmp_path / "a/new")))
    assert json.loads(kept.read_text()) == {"key": "new", "theme": "dark"}
    assert [linked.is_symlink(), linked.read_text()] == [False, seed]
    assert odd.read_text() == seed
    assert (tmp_path / "a/new").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "victim").read_text() == '{"key": "old"}'
    kept.write_text("[" * 100_000)
    _plant(((str(kept), seed, 0o600),))
    assert kept.read_text() == seed


def test_what_is_in_the_way_of_settings_does_not_keep_a_sandbox_from_starting(
    tmp_path: Path,
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    _plant(((str(tmp_path / "taken"), "{}", 0o600), (str(tmp_path / "file/x"), "{}", 0o600)))
    assert (tmp_path / "taken").is_dir()
