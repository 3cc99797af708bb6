"""The files of an agent that come along: chosen, judged by place and content, bounded (I1, I9)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.host import agent_files
from keyhole.host.agent_files import CopiedFiles, copy_files, settings_text
from tests.rigs.host.building import PASSWORD, host, program, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def copied(tmp_path: Path, *paths: str, writable: tuple[Path, ...] = ()) -> CopiedFiles:
    def refuses(real: str, data: bytes) -> bool:
        return PASSWORD.encode() in data or "/.ssh/" in real

    return copy_files(paths, host(tmp_path, writable=writable), refuses)


def names(files: CopiedFiles) -> list[str]:
    return [each.path for each in files.files]


def test_files_and_directories_are_copied_with_what_is_executable(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / ".a/CLAUDE.md", "be kind")
    write(home / ".a/skills/x/SKILL.md", "x")
    program(home / ".a/skills/x/run.sh", "true")
    write(home / ".a/skills/.git/config", "x")
    write(home / ".a/skills/node_modules/y", "x")
    files = copied(tmp_path, ".a/CLAUDE.md", ".a/skills", ".a/gone")
    assert names(files) == [".a/CLAUDE.md", ".a/skills/x/SKILL.md", ".a/skills/x/run.sh"]
    assert [each.executable for each in files.files] == [False, False, True]
    assert (files.refused, files.crowded) == ((), False)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / ".ssh/id", "x")
    (home / ".a").mkdir()
    (home / ".a/key.md").symlink_to(home / ".ssh/id")
    (home / ".a/ok.md").symlink_to(write(home / "dotfiles/ok.md", "fine"))
    (home / ".a/loop.md").symlink_to(home / ".a/loop.md")
    (home / ".a/device.md").symlink_to("/dev/zero")
    files = copied(tmp_path, ".a")
    assert (names(files), files.refused) == ([".a/ok.md"], (".a/key.md",))


def test_below_a_link_no_other_link_leads_out(tmp_path: Path) -> None:
    """I1: sandboxed code of one project must not choose what the sandbox of another one sees."""
    home = tmp_path / "home"
    diary = write(home / "documents/diary.md", "private")
    skill = write(home / "project/skill/SKILL.md", "x").parent
    (skill / "notes.md").symlink_to(diary)
    (skill / "more").symlink_to(diary.parent)
    (skill / "again.md").symlink_to("SKILL.md")
    (skill / "up").symlink_to("..")
    (home / ".a").mkdir()
    (home / ".a/skill").symlink_to(skill)
    (home / ".a/own.md").symlink_to(diary)
    assert names(copied(tmp_path, ".a")) == [
        ".a/own.md", ".a/skill/SKILL.md", ".a/skill/again.md",
    ]  # fmt: skip
    (home / ".b").symlink_to(skill)
    assert names(copied(tmp_path, ".b/notes.md", ".b/more", ".b/SKILL.md")) == [".b/SKILL.md"]


def test_a_file_with_a_credential_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "home/.a/b.md", f"use {PASSWORD}")
    write(tmp_path / "home/.a/c.md", "fine")
    files = copied(tmp_path, ".a")
    assert (names(files), files.refused) == ([".a/c.md"], (".a/b.md",))


def test_files_that_the_sandbox_can_write_are_not_copied(tmp_path: Path) -> None:
    write(tmp_path / "home/.a/c.md", "fine")
    assert names(copied(tmp_path, ".a")) == [".a/c.md"]
    assert names(copied(tmp_path, ".a", writable=(tmp_path / "home",))) == []


def test_number_size_and_depth_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    write(home / ".a/1/2/3/4/5/6/7.md", "deep")
    write(home / ".a/large.md", "x" * (agent_files.MAX_FILE + 1))
    write(home / ".a/small.md", "x")
    files = copied(tmp_path, ".a")
    assert (names(files), files.crowded) == ([".a/small.md"], True)
    monkeypatch.setattr(agent_files, "MAX_FILES", 2)
    for number in range(5):
        write(home / f".b/{number}.md", "x")
    assert names(copied(tmp_path, ".b")) == [".b/0.md", ".b/1.md"]
    monkeypatch.setattr(agent_files, "MAX_BYTES", 1)
    assert names(copied(tmp_path, ".b")) == [".b/0.md"]


def test_a_directory_of_links_to_itself_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "home/.a"
    directory.mkdir(parents=True)
    for number in range(10):
        (directory / f"l{number}").symlink_to(directory)
    files = copied(tmp_path, ".a")
    assert (names(files), files.crowded) == ([], False)
    monkeypatch.setattr(agent_files, "MAX_ENTRIES", 15)
    files = copied(tmp_path, ".a")
    assert (names(files), files.crowded) == ([], True)


def test_a_settings_file_is_read_unless_its_place_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / ".a/settings.json", "{}")
    write(home / ".ssh/settings.json", "{}")
    os.symlink(home / ".ssh/settings.json", home / ".a/linked.json")
    here = host(tmp_path)
    assert settings_text(".a/settings.json", here, lambda *_: False) == "{}"
    assert settings_text(".a/gone.json", here, lambda *_: False) == ""
    assert settings_text(".a/linked.json", here, lambda real, _: "/.ssh/" in real) == ""
