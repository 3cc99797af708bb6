"""Which MCP servers the agents of a host have, by the files that they write."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from keyhole.host.configured_mcp import configured_servers
from keyhole.host.host_environment import HostEnvironment
from keyhole.host.indented_settings import read_indented

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://mcp.tracker.example/mcp"
JSON = json.dumps({"mcpServers": {"tracker": {"type": "http", "url": URL}}})
CODEX = f'[mcp_servers.tracker]\nurl = "{URL}"\n'
OPENCODE = f'{{ // a comment\n"mcp": {{"tracker": {{"type": "remote", "url": "{URL}",}}}}}}'
OPENCODE_2 = json.dumps({"mcp": {"servers": {"tracker": {"type": "remote", "url": URL}}}})
EDITOR = json.dumps({"servers": {"tracker": {"type": "http", "url": URL}}})
VIBE = f'[[mcp_servers]]\nname = "tracker"\ntransport = "http"\nurl = "{URL}"\n'
GOOSE = f"""\
GOOSE_PROVIDER: anthropic
extensions:
  developer:
    enabled: true
    type: builtin
  tracker:
    enabled: true
    type: streamable_http
    uri: {URL}   # of ours
    env_keys:
    - TRACKER_TOKEN
  other:
    enabled: false
    type: streamable_http
    uri: https://other.example/mcp
"""

FILES = {
    ".claude.json": ("Claude Code", JSON),
    "./.mcp.json": ("Claude Code", JSON),
    ".codex/config.toml": ("Codex", CODEX),
    "./.codex/config.toml": ("Codex", CODEX),
    ".gemini/settings.json": ("Gemini CLI", JSON.replace('"url"', '"httpUrl"')),
    "./.gemini/settings.json": ("Gemini CLI", JSON),
    ".qwen/settings.json": ("Qwen Code", JSON),
    ".config/opencode/opencode.json": ("opencode", OPENCODE),
    "./opencode.jsonc": ("opencode", OPENCODE),
    "./.opencode/opencode.json": ("opencode", OPENCODE_2),
    ".config/goose/config.yaml": ("goose", GOOSE),
    ".copilot/mcp-config.json": ("Copilot CLI", JSON),
    ".vibe/config.toml": ("Mistral Vibe", VIBE),
    ".cursor/mcp.json": ("Cursor", JSON),
    "./.cursor/mcp.json": ("Cursor", JSON),
    ".config/Code/User/mcp.json": ("VS Code", EDITOR),
    "./.vscode/mcp.json": ("VS Code", EDITOR),
}


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("file", FILES)
def test_each_agents_own_file_is_read(tmp_path: Path, file: str) -> None:
    program, text = FILES[file]
    home, project = tmp_path / "home", tmp_path / "project"
    put((project if file.startswith("./") else home) / file.removeprefix("./"), text)
    (found,) = configured_servers(HostEnvironment({}, home), project)
    assert (found.program, found.server.name) == (program, "tracker")
    assert found.server.url is not None
    assert found.server.url.text == URL
    assert found.own is file.startswith("./")
    assert found.where == (file if found.own else f"~/{file}")


def test_servers_of_one_project_are_another_ones_not(tmp_path: Path) -> None:
    """Claude Code keeps those of a project under its path."""
    here = json.loads(JSON)
    put(tmp_path / ".claude.json", json.dumps({"projects": {str(tmp_path / "a"): here}}))
    host = HostEnvironment({}, tmp_path)
    assert configured_servers(host, tmp_path / "b") == ()
    (found,) = configured_servers(host, tmp_path / "a")
    assert not found.own


def test_variables_say_where_the_files_are(tmp_path: Path) -> None:
    put(tmp_path / "c/.claude.json", JSON)
    put(tmp_path / "x/config.toml", CODEX)
    put(tmp_path / "cfg/goose/config.yaml", GOOSE)
    env = {"CLAUDE_CONFIG_DIR": "c", "CODEX_HOME": str(tmp_path / "x")}
    env |= {"XDG_CONFIG_HOME": str(tmp_path / "cfg")}
    host = HostEnvironment(env, tmp_path / "home")
    assert {f.program for f in configured_servers(host, tmp_path)} == {"Codex", "goose"}
    host = HostEnvironment(env | {"CLAUDE_CONFIG_DIR": str(tmp_path / "c")}, tmp_path / "home")
    assert len(configured_servers(host, tmp_path)) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}', "\x00", '{"mcpServers": "x"}'])
def test_a_file_that_is_none_has_no_servers(tmp_path: Path, text: str) -> None:
    put(tmp_path / ".claude.json", text)
    put(tmp_path / ".codex/config.toml", text)
    assert configured_servers(HostEnvironment({}, tmp_path), tmp_path) == ()


def test_a_file_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    """I9: a project may have a pipe in its place, or a huge TOML file, which is slow to read."""
    os.mkfifo(tmp_path / ".mcp.json")
    put(tmp_path / ".codex/config.toml", CODEX + "#" * 300_000)
    assert configured_servers(HostEnvironment({}, tmp_path), tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: b", {"a": "b"}),
        ("a: 'b'  # c", {"a": "b"}),
        ("a:\n  b: true\n  c: false\nd: e", {"a": {"b": True, "c": False}, "d": "e"}),
        ("a:\n- x\n- 'y'\nb: z", {"a": ["x", "y"], "b": "z"}),
        ("a:\n  b:\n    - x\n  c: y", {"a": {"b": ["x"], "c": "y"}}),
        ("a: {x: 1}\nb: |\nc: *anchor", {"a": "", "b": "", "c": ""}),
        ("- x\n# c\n\nno colon\nurl:x", {}),
        ("a:\n  b: c\n  - x", {"a": {"b": "c"}}),
        ("a:\n  b:\n    c:\n  - x", {"a": {"b": {"c": {}}}}),
    ],
)
def test_the_plain_part_of_yaml_is_read(text: str, found: dict[str, object]) -> None:
    assert read_indented(text) == found


def test_tables_in_tables_are_bounded() -> None:
    deep = "".join(f"{' ' * n}a:\n" for n in range(100))
    depth, table = 0, read_indented(deep)
    while isinstance(table := table.get("a", ""), dict):
        depth += 1
    assert depth == 8
