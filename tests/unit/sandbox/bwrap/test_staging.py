"""A file that is covered by a link to the sandbox's own copy, or else stays read-only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.sandbox.bwrap.staging import cover_by_link, linked_entries
from keyhole.sandbox.files.mount_plan import SeedFile, TextFile
from keyhole.system import syscalls

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFIG = TextFile("/p/.git/config", "[core]\n", own_copy="/run/keyhole/git/0/config")


def test_a_system_that_mounts_no_links_keeps_the_file_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where it does, the link goes over the file of that name."""
    attached: list[str] = []
    monkeypatch.setattr(syscalls, "clone_tree", lambda _: _open_null())
    monkeypatch.setattr(syscalls, "attach_tree", lambda _, target: attached.append(target))
    bound = {"/p/.git": "/stage/3"}
    assert cover_by_link(CONFIG, str(tmp_path / "one"), bound)
    assert attached == ["/stage/3/config"]

    def refused(_: int) -> int:
        raise OSError("no links here")

    monkeypatch.setattr(syscalls, "clone_tree", refused)
    assert not cover_by_link(CONFIG, str(tmp_path / "two"), bound)


def test_only_a_file_with_a_copy_in_a_staged_directory_is_covered(tmp_path: Path) -> None:
    assert not cover_by_link(CONFIG, str(tmp_path / "link"), {})
    plain = TextFile("/p/.git/config", "")
    assert not cover_by_link(plain, str(tmp_path / "link"), {"/p/.git": "/stage/3"})


def test_the_copy_is_written_where_the_file_was_not_staged() -> None:
    entries = (TextFile("/etc/hosts", ""), CONFIG)
    assert linked_entries(entries, {0: "/stage/0"}) == {
        1: SeedFile("/run/keyhole/git/0/config", "[core]\n", 0o644)
    }
    assert not linked_entries(entries, {0: "/stage/0", 1: "/stage/1"})


def _open_null() -> int:
    return os.open(os.devnull, os.O_RDONLY)
