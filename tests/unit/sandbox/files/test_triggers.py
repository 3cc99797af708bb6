"""The rules for what a host runs by itself know its tools, and no ordinary file (I11)."""

from __future__ import annotations

import pytest

from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.triggers import TRIGGERS, TriggerGuard, trigger_of


@pytest.mark.parametrize(
    "path",
    ["x/.windsurf/", "x/.continue/", "x/.junie/", "x/.crush.json", "x/.helix/", "x/.nvimrc",
     "x/.vimrc", "x/.exrc", ".cargo/config.toml", ".cargo/config", ".hg/hgrc", "repo/config.toml",
     "x/.envrc", "x/my.code-workspace", "x/.claude/", "x/.opencode/", "x/.kiro/", "x/.cursor/",
     "x/.codex/", "x/.gemini/", "x/.qwen/", "x/.zed/", "x/.idea/", "x/.devcontainer/", "x/.fleet/",
     "x/.direnv/", "x/.pdbrc", "x/.Rprofile", "x/rust-toolchain.toml", "mise/config.toml"],
)  # fmt: skip
def test_what_a_tool_runs_by_itself_is_in_the_table(path: str) -> None:
    """I11."""
    parent, _, name = path.rstrip("/").rpartition("/")
    kind = MountKind.DIR if path.endswith("/") else MountKind.FILE
    found = trigger_of(parent, name, kind)
    assert found is not None
    assert found.kind is kind
    assert found.why


@pytest.mark.parametrize(
    ("variant", "known"),
    [(".envrc.local", ".envrc"), (".envrc.private", ".envrc"), ("mise.local.toml", "mise.toml"),
     ("mise.dev.toml", "mise.toml"), (".mise.local.toml", ".mise.toml"),
     ("lefthook-local.yml", "lefthook.yml"), ("lefthook.toml", "lefthook.yml"),
     (".pre-commit-config.yml", ".pre-commit-config.yaml"), ("opencode.jsonc", "opencode.json"),
     (".mcp.local.json", ".mcp.json"), (".aider.conf.yaml", ".aider.conf.yml"),
     (".vimrc.local", ".vimrc")],
)  # fmt: skip
def test_a_variant_of_a_known_name_counts_as_that_name(variant: str, known: str) -> None:
    """I11: tools read it beside the known one, or instead."""
    found, meant = trigger_of("x", variant), trigger_of("x", known)
    assert found is not None
    assert meant is not None
    assert (found.why, found.guard) == (meant.why, meant.guard)


@pytest.mark.parametrize(
    "path",
    [".nextagent/settings.json", ".nextagent/settings.local.json", ".nextagent/mcp.json",
     ".nextagent/mcp_config.json", ".nextagent/hooks/", ".nextagent/plugins/", ".pijul/config",
     ".mvn/extensions.xml"],
)  # fmt: skip
def test_settings_of_a_tool_that_nobody_here_knows_are_reported(path: str) -> None:
    """I11: the next agent has a directory of its own, too. It is never made read-only."""
    parent, _, name = path.rstrip("/").rpartition("/")
    found = trigger_of(parent, name, MountKind.DIR if path.endswith("/") else MountKind.FILE)
    assert found is not None
    assert found.guard is TriggerGuard.REPORTED


@pytest.mark.parametrize(
    ("parent", "name"),
    [("src", "mcp.json"), ("src", "settings"), ("src", "config"), ("src", "config.toml"),
     ("src", "settings.json"), ("src", "languages.toml"), ("src", "hgrc"), (".jj", "repo"),
     ("src", "default.nix"), ("src", "Makefile"), ("src", ".env.local"), (".github", "config.yml"),
     (".circleci", "config.yml"), ("x", "keyhole.local.toml"), ("x", "package.json"),
     ("x", "local.toml"), ("x", "notes.local.md"), (".cache", "config")],
)  # fmt: skip
def test_a_name_that_means_something_only_elsewhere_is_not(parent: str, name: str) -> None:
    """The control."""
    assert trigger_of(parent, name) is None
    assert trigger_of(parent, name, MountKind.DIR) is None


def test_no_row_hides_another() -> None:
    assert len({(row.parent, row.name) for row in TRIGGERS}) == len(TRIGGERS)
