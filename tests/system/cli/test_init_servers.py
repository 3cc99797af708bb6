"""`keyhole init` and `doctor` know the MCP servers of agents, and copy no token (I1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyhole.app.proofs.mcp_check import check_servers
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.host.host_environment import HostEnvironment
from tests.rigs.cli.terminals import PROGRAM, on_terminal
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

TOKEN = "hunter2-a-token-of-a-person"
SERVERS = {
    "linear": {"type": "http", "url": "https://mcp.linear.app/mcp"},
    "tracker": {
        "type": "http",
        "url": f"https://mcp.tracker.example/s/{TOKEN}/mcp?api_key={TOKEN}",
        "headers": {"Authorization": f"Bearer {TOKEN}"},
    },
    "files": {"command": "npx", "args": ["-y", TOKEN], "env": {"OPENAI_API_KEY": TOKEN}},
}


def configure(keyhole: Keyhole) -> None:
    """Claude Code's own file, and one that came with the project."""
    (keyhole.home / ".claude.json").write_text(json.dumps({"mcpServers": SERVERS}))
    own = {"theirs": {"type": "http", "url": "https://mcp.stranger.example/mcp"}}
    (keyhole.project / ".mcp.json").write_text(json.dumps({"mcpServers": own}))


def test_init_proposes_a_service_for_each_remote_server_and_copies_no_token(
    keyhole: Keyhole,
) -> None:
    """I1; I3: of a server that only the project names, nothing is granted unasked."""
    configure(keyhole)
    ran = keyhole("init", "--yes")
    assert ran.code == 0, ran.err
    text = (keyhole.project / "keyhole.toml").read_text()
    assert TOKEN not in text + ran.out + ran.err
    assert '[services.linear-mcp]\nsecret = "login:linear-mcp"' in text
    assert '[services.tracker]\nuse    = "mcp"\nhosts  = ["mcp.tracker.example"]' in text
    assert 'secret = "store:tracker"' in text
    assert "# [services.theirs]" in text
    assert '# [services.openai]\n# secret = "store:openai"' in text
    assert "services.linear-mcp has no secret yet: `keyhole login linear-mcp`\n" in ran.out
    assert "these MCP servers are programs, and run inside: files (Claude Code)\n" in ran.out
    checked = json.loads(keyhole("check", "--json").out)
    tools = {each["subject"]: each["text"] for each in checked["grants"] if "tools" in each["text"]}
    assert tools["linear-mcp"] == "tools list_*, get_*, search_documentation"
    assert "theirs" not in tools


def test_init_asks_about_each_server_on_a_terminal(keyhole: Keyhole) -> None:
    configure(keyhole)
    asked = [
        ("Claude Code has an MCP server at mcp.linear.app", "n\r"),
        ("Claude Code has an MCP server at mcp.tracker.example", "\r"),
        ("this project has an MCP server at mcp.stranger.example", "y\r"),
        ("MCP server files of Claude Code wants OPENAI_API_KEY", "n\r"),
    ]
    words = [PROGRAM, "init", "--force"]
    code, shown = on_terminal(words, keyhole.env, keyhole.project, asked, (24, 300))
    assert code == 0, shown
    assert TOKEN not in shown
    text = (keyhole.project / "keyhole.toml").read_text()
    assert "linear" not in text
    assert "openai" not in text
    assert "\n[services.tracker]\n" in text
    assert "\n[services.theirs]\n" in text
    # An empty answer grants a person's own servers, and not the project's.
    asked = [(question, "\r") for question, _ in asked]
    code, shown = on_terminal(words, keyhole.env, keyhole.project, asked, (24, 300))
    assert code == 0, shown
    text = (keyhole.project / "keyhole.toml").read_text()
    assert "\n[services.linear-mcp]\n" in text
    assert "theirs" not in text


def test_a_project_cannot_have_a_stored_secret_sent_to_its_server(keyhole: Keyhole) -> None:
    """I1. Attack: it calls its server like a secret of the person's. Control: a server of the
    person's own settings uses the secret of its name."""
    assert keyhole("secret", "set", "anthropic", "--plain", stdin="a-key-of-some-length").code == 0
    servers = {"mcpServers": {"anthropic": {"type": "http", "url": "https://evil.example/mcp"}}}
    (keyhole.project / ".mcp.json").write_text(json.dumps(servers))
    words = [PROGRAM, "init", "--force"]
    asked = [("this project has an MCP server at evil.example", "y\r")]
    code, shown = on_terminal(words, keyhole.env, keyhole.project, asked, (24, 300))
    assert code == 0, shown
    text = (keyhole.project / "keyhole.toml").read_text()
    assert "[services.anthropic-mcp]\n" in text
    assert "store:anthropic" not in text
    (keyhole.project / ".mcp.json").rename(keyhole.home / ".claude.json")
    assert 'secret = "store:anthropic"' in keyhole("init", "--print").out


def test_the_doctor_says_which_servers_no_service_judges(keyhole: Keyhole) -> None:
    configure(keyhole)
    host = HostEnvironment({}, keyhole.home)
    shown = {row.id: row for row in check_servers(host, keyhole.project, None)}
    assert set(shown) == {"mcp", "mcp local"}
    assert "linear (Claude Code), tracker (Claude Code)" in shown["mcp"].seen
    assert "`keyhole init`" in shown["mcp"].advice
    policy = loaded('[services.tracker]\nuse = "server"\nhosts = ["mcp.tracker.example"]\n').policy
    row = check_servers(host, keyhole.project, policy)[0]
    assert (row.held, row.vital) == (False, False)
    assert "judges linear (Claude Code), theirs (Claude Code):" in row.seen
    assert TOKEN not in repr(shown)
    plain = {"old": {"url": "http://10.0.0.7/sse"}}
    (keyhole.home / ".claude.json").write_text(json.dumps({"mcpServers": plain}))
    (keyhole.project / ".mcp.json").unlink()
    (row,) = check_servers(host, keyhole.project, policy)
    assert row.seen == "no service can be proposed for old (Claude Code): it is not an https URL"
    # Control: with a service for each host, every server is granted.
    configure(keyhole)
    hosts = ["mcp.tracker.example", "mcp.linear.app", "mcp.stranger.example"]
    policy = loaded(f'[services.all]\nuse = "server"\nhosts = {hosts}\n').policy
    assert check_servers(host, keyhole.project, policy)[0].held


def test_each_known_servers_readers_are_tools_of_a_policy(keyhole: Keyhole) -> None:
    catalogue = FileCatalogue()
    known = [name for name in catalogue if (one := catalogue[name].mcp) and one.endpoint]
    assert len(known) >= 12
    for name in known:
        server = catalogue[name].mcp
        assert server is not None
        assert server.reads
        keyhole.policy(f"[services.{name}]\ntools = {list(server.reads)}\n")
        assert keyhole("check").code == 0, name
    shown = keyhole("services", "show", "linear-mcp").out
    assert "MCP server at https://mcp.linear.app/mcp\n  tools that read: list_*, get_*" in shown


def test_init_prefers_the_token_of_an_app_whose_key_is_there(keyhole: Keyhole) -> None:
    """The safest credential; without one, it is recommended in a line."""
    git = keyhole.project / ".git"
    git.mkdir()
    (git / "config").write_text('[remote "origin"]\n\turl = git@github.com:acme/widgets.git\n')
    ran = keyhole("init", "--yes")
    assert "the safest token for GitHub is an app's, made for acme/widgets alone" in ran.out
    pem = "-----BEGIN RSA PRIVATE KEY-----\nnot-really-the-key-of-an-app\n"
    assert keyhole("secret", "set", "github-app-12345", "--plain", stdin=pem).code == 0
    ran = keyhole("init", "--yes", "--force")
    assert "the safest token" not in ran.out
    text = (keyhole.project / "keyhole.toml").read_text()
    assert 'secret = "github-app:12345"\nrepos  = ["acme/widgets"]' in text
    assert keyhole("check").code == 0
