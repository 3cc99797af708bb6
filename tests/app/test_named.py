"""Sandboxes that are kept under a name, on disk: what a killed one leaves takes no name away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.app.named import Life, Named, NotPossible, Record, every, find, make

if TYPE_CHECKING:
    from pathlib import Path


def record(name: str = "box") -> Record:
    volume = f"keyhole-home-{name}-0"
    return Record(name, "docker", "i", "/engine", "/p/keyhole.toml", "/p", (), volume, 1)


def test_a_name_is_free_again_whatever_was_left_of_it(tmp_path: Path) -> None:
    """By who was killed while it wrote, or started what somebody else had just removed.

    Control: one that is there has its name."""
    named = make(tmp_path, record())
    with pytest.raises(NotPossible, match="already"):
        make(tmp_path, record())
    named.write_life(Life("5e55"))
    (named.directory / "life.0123abcd").write_text("{")
    lock = named.hold()
    named.remove()
    os.close(lock)
    assert list(tmp_path.iterdir()) == []
    # The supervisor of a start that came too late, and the verb before it.
    for left in ("log", "lock", "record.0123abcd"):
        (tmp_path / "box").mkdir(exist_ok=True)
        (tmp_path / "box" / left).write_text("")
        with pytest.raises(NotPossible, match="no sandbox"):
            find(tmp_path, "box")
        assert not list(every(tmp_path))
        found = make(tmp_path, record())
        assert found.record() == record()
        assert find(tmp_path, "box").life() == Life("")
        lock = found.hold()
        found.remove()
        os.close(lock)
        assert list(tmp_path.iterdir()) == []


def test_who_makes_one_waits_for_nobody_who_makes_or_removes_it(tmp_path: Path) -> None:
    """And what the other holds is not touched."""
    (tmp_path / "box").mkdir()
    lock = Named(tmp_path / "box").hold()
    try:
        with pytest.raises(NotPossible, match="being started or removed"):
            make(tmp_path, record())
    finally:
        os.close(lock)
    assert make(tmp_path, record()).record() == record()
