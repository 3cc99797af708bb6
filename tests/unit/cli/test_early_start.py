"""A look at the policy before it is read: a hint, whatever lies in its place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.cli.early_start import MAX_LOOKED_AT, _mentions_inspection

if TYPE_CHECKING:
    from pathlib import Path


def test_a_policy_with_a_service_or_a_preset_is_known_by_its_text(tmp_path: Path) -> None:
    policy = tmp_path / "keyhole.toml"
    policy.write_text("version = 1\n")
    assert not _mentions_inspection(policy)
    for text in ("[services.anthropic]\n", '[egress]\npresets = ["node"]\n'):
        policy.write_text(f"version = 1\n{text}")
        assert _mentions_inspection(policy)


def test_nothing_that_lies_in_its_place_stops_or_blocks_a_run(tmp_path: Path) -> None:
    """I9: a cloned project has a pipe, a directory, a loop of links or a huge file there."""
    pipe, loop, huge = (tmp_path / name for name in ("pipe", "loop", "huge"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    huge.write_bytes(b"#" * MAX_LOOKED_AT + b"[services]")
    for path in (pipe, loop, tmp_path, tmp_path / "missing", huge):
        assert not _mentions_inspection(path)
