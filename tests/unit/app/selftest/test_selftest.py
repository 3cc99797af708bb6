"""The self-test: a set-up is tried once, and what does not hold refuses (I2)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyhole.app.selftest.selftest import WallResult, refuse_unless_held
from keyhole.app.selftest.selftest_cache import SelftestCache, bubblewrap_key
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind
from keyhole.sandbox.launch import Launch, ResourceLimits
from keyhole.sandbox.programs import own_code

if TYPE_CHECKING:
    from pathlib import Path


def test_one_wall_that_does_not_hold_refuses_and_so_does_having_tried_nothing() -> None:
    held = WallResult("vsock", True, "EAFNOSUPPORT")
    refuse_unless_held([held])
    with pytest.raises(SetupFailed, match="io-uring \\(done\\)"):
        refuse_unless_held([held, WallResult("io-uring", False, "done")])
    with pytest.raises(SetupFailed, match="nothing was tried"):
        refuse_unless_held([])


def test_a_set_up_is_remembered_among_the_most_recent(tmp_path: Path) -> None:
    remembered = SelftestCache(tmp_path / "state" / "selftest.json")
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
    remembered = SelftestCache(file)
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
        files=(Bind("/usr", "/usr", MountKind.DIR),),
        bounds=ResourceLimits(1, 1),
        uid=1000,
        gid=1000,
        bwrap=str(tmp_path / "program"),
        nft=str(tmp_path / "program"),
        python="/usr/bin/python3",
    )


def test_whatever_makes_up_the_walls_makes_another_set_up(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    first = bubblewrap_key(launch, b"filter", borrows=False)
    other_command = msgspec.structs.replace(launch, command=("other",))
    assert bubblewrap_key(other_command, b"filter", borrows=False) == first
    more_files = (*launch.files, Mask("/usr/x", MountKind.FILE))
    others = {
        bubblewrap_key(launch, b"another filter", borrows=False),
        bubblewrap_key(msgspec.structs.replace(launch, files=more_files), b"filter", borrows=False),
        bubblewrap_key(msgspec.structs.replace(launch, uid=1001), b"filter", borrows=False),
        bubblewrap_key(launch, b"filter", borrows=True),
    }
    (tmp_path / "program").write_text("upgraded")
    others.add(bubblewrap_key(launch, b"filter", borrows=False))
    assert len(others | {first}) == 6


def test_whatever_code_makes_the_walls_makes_another_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the seccomp filter, the mounts' walk and the system calls are rooms of their own."""
    for name in ("confine/seccomp.py", "system/walk.py", "sandbox/bwrap/helper_main.py"):
        assert any(str(path).endswith(name) for path in own_code()), name
    launch = launch_of(tmp_path)
    first = bubblewrap_key(launch, b"filter", borrows=False)
    changed = tmp_path / "changed.py"
    changed.write_text("pass")
    monkeypatch.setattr(
        "keyhole.app.selftest.selftest_cache.own_code", lambda: [*own_code(), changed]
    )
    assert bubblewrap_key(launch, b"filter", borrows=False) != first
