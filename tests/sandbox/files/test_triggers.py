"""The table of what a host runs by itself knows its tools, and no ordinary file (I11)."""

from __future__ import annotations

import pytest

from keyhole.sandbox.files.fileplan import Kind
from keyhole.sandbox.files.triggers import TRIGGERS, trigger_of


@pytest.mark.parametrize(
    "path",
    [".roo/mcp.json", ".kiro/settings/", ".amazonq/mcp.json", "x/.windsurf/", "x/.continue/",
     ".qwen/settings.json", ".factory/mcp.json", "x/.junie/", "x/.crush.json",
     ".helix/languages.toml", "x/.nvimrc", "x/.vimrc", "x/.exrc", ".cargo/config.toml",
     ".cargo/config", ".hg/hgrc", "repo/config.toml", "x/.envrc", "x/my.code-workspace"],
)  # fmt: skip
def test_what_a_tool_runs_by_itself_is_in_the_table(path: str) -> None:
    """I11."""
    parent, _, name = path.rstrip("/").rpartition("/")
    found = trigger_of(parent, name)
    assert found is not None
    assert found.kind is (Kind.DIR if path.endswith("/") else Kind.FILE)
    assert found.why


@pytest.mark.parametrize(
    ("parent", "name"),
    [("src", "mcp.json"), ("src", "settings"), ("src", "config"), ("src", "config.toml"),
     ("src", "settings.json"), ("src", "languages.toml"), ("src", "hgrc"), (".jj", "repo"),
     ("src", "default.nix"), ("src", "Makefile")],
)  # fmt: skip
def test_a_name_that_means_something_only_elsewhere_is_not(parent: str, name: str) -> None:
    """The control."""
    assert trigger_of(parent, name) is None


def test_no_row_hides_another() -> None:
    assert len({(row.parent, row.name) for row in TRIGGERS}) == len(TRIGGERS)
