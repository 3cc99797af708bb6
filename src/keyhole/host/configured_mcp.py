"""Reads which MCP servers the agents and editors of this host are configured with.

Called by `keyhole init` and `keyhole doctor`. Files are bounded, and nothing of them but names,
hosts and plain paths is kept (`inject/configured_servers.py`). A project's own files may be
anybody's, so their servers are marked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.host.indented_settings import read_indented
from keyhole.host.settings_file import read_text
from keyhole.inject.agent_profile import SettingsFormat
from keyhole.inject.agent_settings import read_settings, value_at
from keyhole.inject.configured_servers import ConfiguredServer, read_servers

if TYPE_CHECKING:
    from keyhole.host.host_environment import HostEnvironment

MAX_TOML = 256 * 1024
"""Characters of a TOML file: Python's own reader of it is slow."""
MAX_YAML = 256 * 1024
"""Characters of a YAML file."""


class _Place(Struct, frozen=True):
    """A file, and the dotted key of the table in it."""

    program: str
    file: str
    """Below the home, or `./` and a path below the project."""
    key: str
    variable: str = ""
    """The variable that names another directory for the file."""


_PLACES = (
    _Place("Claude Code", ".claude.json", "mcpServers", "CLAUDE_CONFIG_DIR"),
    _Place("Claude Code", ".claude.json", "projects.{project}.mcpServers", "CLAUDE_CONFIG_DIR"),
    _Place("Claude Code", "./.mcp.json", "mcpServers"),
    _Place("Codex", ".codex/config.toml", "mcp_servers", "CODEX_HOME"),
    _Place("Codex", "./.codex/config.toml", "mcp_servers"),
    _Place("Gemini CLI", ".gemini/settings.json", "mcpServers"),
    _Place("Gemini CLI", "./.gemini/settings.json", "mcpServers"),
    _Place("Qwen Code", ".qwen/settings.json", "mcpServers"),
    _Place("Qwen Code", "./.qwen/settings.json", "mcpServers"),
    *(
        _Place("opencode", f"{where}opencode.{suffix}", key)
        for where in (".config/opencode/", "./", "./.opencode/")
        for suffix in ("json", "jsonc")
        for key in ("mcp", "mcp.servers")
    ),
    _Place("goose", ".config/goose/config.yaml", "extensions"),
    _Place("Copilot CLI", ".copilot/mcp-config.json", "mcpServers"),
    _Place("Mistral Vibe", ".vibe/config.toml", "mcp_servers"),
    _Place("Cursor", ".cursor/mcp.json", "mcpServers"),
    _Place("Cursor", "./.cursor/mcp.json", "mcpServers"),
    _Place("VS Code", ".config/Code/User/mcp.json", "servers"),
    _Place("VS Code", "./.vscode/mcp.json", "servers"),
)

_FORMATS = {"toml": SettingsFormat.TOML, "json": SettingsFormat.JSON, "jsonc": SettingsFormat.JSON}


class FoundServer(Struct, frozen=True):
    """A server, and where it is configured."""

    server: ConfiguredServer
    program: str
    """The agent or editor."""
    where: str
    """The file, as a person writes it."""
    own: bool
    """Whether the project itself names it."""


def configured_servers(host: HostEnvironment, project: Path) -> tuple[FoundServer, ...]:
    """Every server of this host's agents, and of the project, each place's own."""
    names = {"project": str(project)}
    tables: dict[Path, dict[str, Any]] = {}
    found: dict[tuple[str, str], FoundServer] = {}
    for place in _PLACES:
        own = place.file.startswith("./")
        path = project / place.file[2:] if own else _path(place, host)
        if path not in tables:
            tables[path] = _table(path)
        for server in read_servers(value_at(tables[path], place.key, names)):
            shown = f"./{path.relative_to(project)}" if own else host.shown(path)
            found.setdefault((shown, server.name), FoundServer(server, place.program, shown, own))
    return tuple(found.values())


def _path(place: _Place, host: HostEnvironment) -> Path:
    named = host.env.get(place.variable, "") if place.variable else ""
    if named.startswith("/"):
        return Path(named) / Path(place.file).name
    if place.file.startswith(".config/"):
        return host.config_home() / place.file.removeprefix(".config/")
    return host.home / place.file


def _table(path: Path) -> dict[str, Any]:
    text = read_text(path)
    if not text:
        return {}
    suffix = path.name.rpartition(".")[2]
    if suffix == "yaml":
        return read_indented(text[:MAX_YAML])
    if suffix == "toml" and len(text) > MAX_TOML:
        return {}
    return read_settings(text, _FORMATS[suffix])
