"""Reading where the host has mounted something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.mounts import read_mount_points

if TYPE_CHECKING:
    from pathlib import Path


def test_escapes_in_the_table_are_undone(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 27 0:21 / /proc rw - proc proc rw\n"
        "23 27 0:22 / /mnt/a\\040b\\134c rw shared:1 - ext4 /dev/x rw\n"
        "24 27 0:22 / /mnt/d\re rw shared:1 - ext4 /dev/x rw\n",
        newline="",
    )
    assert read_mount_points(table) == ("/mnt/a b\\c", "/mnt/d\re", "/proc")


def test_this_host_has_a_root() -> None:
    assert "/" in read_mount_points()
