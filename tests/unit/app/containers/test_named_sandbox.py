"""What is kept of sandboxes that have a name."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.containers.named_sandbox import (
    NamedSandbox,
    SandboxLifecycle,
    SandboxRecord,
    SandboxState,
    find_sandbox,
    is_sandbox_name,
    list_sandboxes,
    make_sandbox,
    new_volume,
)
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

RECORD = SandboxRecord(
    "box", "docker", "debian:12", "/run/e.sock", "/p/keyhole.toml", "/p", ("sh", "-c", "x"),
    new_volume("box"), 1,
)  # fmt: skip


@pytest.mark.parametrize("text", ["a", "box", "a-1", "abcdefabcde", "a" * 31, "abcabcabcabg"])
def test_names(text: str) -> None:
    assert is_sandbox_name(text)


@pytest.mark.parametrize(
    "text",
    ["", "Box", "1box", "-box", "box/..", "..", "a" * 32, "abcabcabcabc", "box\n", "bök", "a_b"],
)
def test_no_names(text: str, tmp_path: Path) -> None:
    """What could be a session's id, a path or two readings of one is none."""
    assert not is_sandbox_name(text)
    with pytest.raises(Refused):
        find_sandbox(tmp_path, text)
    with pytest.raises(Refused):
        make_sandbox(tmp_path, replace(RECORD, name=text))


def test_what_was_written_is_read_again_and_a_name_is_one_sandboxes(tmp_path: Path) -> None:
    made = make_sandbox(tmp_path, RECORD)
    assert (made.record(), made.life(), made.state()) == (
        RECORD,
        SandboxLifecycle(""),
        SandboxState.STOPPED,
    )
    assert [each.name for each in list_sandboxes(tmp_path)] == ["box"]
    assert made.directory.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Refused, match="already"):
        make_sandbox(tmp_path, RECORD)
    (made.directory / "life.1234").touch()  # of who was killed while writing
    made.remove()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "box").mkdir()  # of who was killed before it was anything
    assert (list(list_sandboxes(tmp_path)), make_sandbox(tmp_path, RECORD).record()) == ([], RECORD)


def test_one_at_a_time_acts_on_it_and_looking_keeps_nobody_from_it(tmp_path: Path) -> None:
    made = make_sandbox(tmp_path, RECORD)
    held = made.hold()
    assert made.state() is SandboxState.STARTING
    with pytest.raises(Refused, match="already"):
        NamedSandbox(made.directory).hold()
    made.write_life(SandboxLifecycle("5e55", "c" * 64))
    assert made.running() == (RECORD, SandboxLifecycle("5e55", "c" * 64))
    made.note_closed("idle")
    assert made.state() is SandboxState.CLOSED
    with pytest.raises(Refused, match="being started"):
        made.stop()  # nobody of ours has process number 0
    os.close(held)
    assert made.state() is SandboxState.STOPPED
    os.close(made.hold())
    with pytest.raises(Refused, match="is stopped"):
        made.running()


def test_a_process_that_is_no_supervisor_is_never_ended(tmp_path: Path) -> None:
    """A record that names another process, here this one's parent. Control: stop, with engines."""
    made = make_sandbox(tmp_path, RECORD)
    held = made.hold()
    made.write_life(SandboxLifecycle("5e55", "c" * 64, os.getppid(), 1))
    with pytest.raises(Refused):
        made.stop()
    os.close(held)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"engine": "e.sock"},
        {"volume": "somebodys"},
        {"command": 3},
        {"image": 1},
    ],
)
def test_a_record_that_is_not_its_own_is_not_followed(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    made = make_sandbox(tmp_path, RECORD)
    path = made.directory / "record"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    if changed == {"image": 1}:
        assert made.record().image == "1"  # control: what is only odd is the engine's to refuse
        return
    with pytest.raises(Refused):
        made.record()


def test_a_record_is_a_file_of_ours_and_no_link(tmp_path: Path) -> None:
    made = make_sandbox(tmp_path, RECORD)
    (made.directory / "record").rename(tmp_path / "elsewhere")
    (made.directory / "record").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="cannot be read"):
        made.record()
