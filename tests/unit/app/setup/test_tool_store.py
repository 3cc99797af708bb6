"""The file with the tools of MCP servers: written whole, and never trusted to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.tool_store import ToolStore
from keyhole.model.errors import Refused
from keyhole.policy.mcp_grant import SeenTool
from keyhole.policy.seen_tools import ServiceTools

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "1" * 64, "2" * 64


def test_tools_are_kept_for_each_policy_and_service(tmp_path: Path) -> None:
    store, policy = ToolStore(tmp_path / "tools"), tmp_path / "keyhole.toml"
    assert store.read(policy) == {}
    store.note(policy, "linear", [SeenTool("a", ONE, True)])
    store.note(policy, "linear", [SeenTool("a", TWO, False)])
    store.note(policy, "linear", [SeenTool("a", TWO, False)])  # nothing to write
    store.note(policy, "docs", [SeenTool("s", ONE, True)])
    known = ToolStore(tmp_path / "tools").read(policy)
    assert known == {
        "linear": ServiceTools({"a": ONE}, {"a": TWO}),
        "docs": ServiceTools({"s": ONE}, {}),
    }
    assert store.read(tmp_path / "other.toml") == {}
    assert store.accept(policy, "linear", []) == ("a",)
    assert store.read(policy)["linear"] == ServiceTools({"a": TWO}, {})


def test_only_what_waits_can_be_accepted(tmp_path: Path) -> None:
    store, policy = ToolStore(tmp_path / "tools"), tmp_path / "keyhole.toml"
    with pytest.raises(Refused, match="no tool of linear waits"):
        store.accept(policy, "linear", [])
    store.note(policy, "linear", [SeenTool("a", ONE, True), SeenTool("b", ONE, False)])
    with pytest.raises(Refused, match="no tool 'a' of linear waits"):
        store.accept(policy, "linear", ["a"])
    assert store.accept(policy, "linear", ["b"]) == ("b",)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"accepted": [], "waiting": {}}}']
)
def test_a_file_that_is_not_readable_is_an_empty_one(tmp_path: Path, text: str) -> None:
    store, policy = ToolStore(tmp_path), tmp_path / "keyhole.toml"
    store.note(policy, "linear", [SeenTool("a", ONE, True)])
    (file,) = tmp_path.glob("*.json")
    file.write_text(text)
    assert store.read(policy) == {}
