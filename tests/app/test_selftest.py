"""The self-test: a set-up is tried once, and what does not hold refuses (I2)."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from keyhole.app.selftest import Wall, refuse_unless_held
from keyhole.app.tried import Remembered, key_of
from keyhole.sandbox.files.fileplan import Bind, Kind, Mask
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.launch import Bounds, Launch

if TYPE_CHECKING:
    from pathlib import Path


def test_one_wall_that_does_not_hold_refuses_and_so_does_having_tried_nothing() -> None:
    held = Wall("vsock", True, "EAFNOSUPPORT")
    refuse_unless_held([held])
    with pytest.raises(SetupFailed, match="io-uring \\(done\\)"):
        refuse_unless_held([held, Wall("io-uring", False, "done")])
    with pytest.raises(SetupFailed, match="nothing was tried"):
        refuse_unless_held([])


def test_a_set_up_is_remembered_among_the_most_recent(tmp_path: Path) -> None:
    remembered = Remembered(tmp_path / "state" / "selftest.json")
    assert not remembered.holds("a")
    remembered.keep("a")
    remembered.keep("a")
    assert remembered.holds("a")
    for number in range(100):
        remembered.keep(str(number))
    assert not remembered.holds("a")
    assert len(json.loads((tmp_path / "state" / "selftest.json").read_text())) <= 64


@pytest.mark.parametrize("damage", ["", "{", "3", "\xff"])
def test_a_damaged_memory_remembers_nothing(tmp_path: Path, damage: str) -> None:
    """I3: what cannot be read is tried again."""
    file = tmp_path / "selftest.json"
    remembered = Remembered(file)
    remembered.keep("a")
    assert remembered.holds("a")
    file.write_bytes(damage.encode("latin-1"))
    assert not remembered.holds("a")
    remembered.keep("b")
    assert remembered.holds("b")


def launch_of(tmp_path: Path) -> Launch:
    (tmp_path / "program").write_text("x")
    return Launch(
        command=("true",),
        directory="/",
        environment={},
        files=(Bind("/usr", "/usr", Kind.DIR),),
        bounds=Bounds(1, 1),
        uid=1000,
        gid=1000,
        bwrap=str(tmp_path / "program"),
        nft=str(tmp_path / "program"),
        python="/usr/bin/python3",
    )


def test_whatever_makes_up_the_walls_makes_another_set_up(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    first = key_of(launch, b"filter", borrows=False)
    other_command = dataclasses.replace(launch, command=("other",))
    assert key_of(other_command, b"filter", borrows=False) == first
    more_files = (*launch.files, Mask("/usr/x", Kind.FILE))
    others = {
        key_of(launch, b"another filter", borrows=False),
        key_of(dataclasses.replace(launch, files=more_files), b"filter", borrows=False),
        key_of(dataclasses.replace(launch, uid=1001), b"filter", borrows=False),
        key_of(launch, b"filter", borrows=True),
    }
    (tmp_path / "program").write_text("upgraded")
    others.add(key_of(launch, b"filter", borrows=False))
    assert len(others | {first}) == 6
