"""What a profile adds to a run: files that are shown, settings that come along (I1)."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.agent_launch import AgentLaunch, prepare_agent
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.agent_survey import survey_agents
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.launch_preparation import program_links, with_search
from keyhole.host import presets
from keyhole.host.host_environment import HostEnvironment
from keyhole.host.suffixes import covered_suffix
from keyhole.policy.build import PolicyContext
from keyhole.policy.load import PolicyText, load
from keyhole.sandbox.files.mount_plan import Bind, MountKind, Symlink, Tmpfs
from tests.rigs.host.building import program, write

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.policy.policy import Policy

TOKEN = "sk-ant-api03-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4"
PROFILES = FileProfiles()


def home_of(tmp_path: Path) -> HostEnvironment:
    """A home with Claude Code and Codex in it."""
    home = tmp_path / "home"
    program(home / ".local/share/claude/versions/2.1.0", "")
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/claude").symlink_to(home / ".local/share/claude/versions/2.1.0")
    program(home / ".local/bin/codex", "CODEX_HOME")
    return HostEnvironment({"PATH": f"{home}/.local/bin:/usr/bin"}, home)


def policy(services: str) -> Policy:
    context = PolicyContext(FileCatalogue(), covered_suffix, presets.NAMES)
    text = PolicyText("keyhole.toml", f"version = 1\n{services}".encode())
    return load(text, None, context).policy


def prepared(
    host: HostEnvironment,
    *command: str,
    services: str = "",
    contained: bool = False,
    secrets: tuple[Path, ...] = (),
    project: Path | None = None,
) -> AgentLaunch | None:
    here = host.home / "project"
    return prepare_agent(
        command,
        PROFILES,
        host,
        policy(services),
        project or here,
        here / "src",
        contained=contained,
        secrets=secrets,
    )


def content(launch: AgentLaunch | None, path: str) -> Any:  # noqa: ANN401 - of any shape
    assert launch is not None
    text = next(each.content for each in launch.files if each.path == path)
    return tomllib.loads(text) if path.endswith(".toml") else json.loads(text)


def test_other_programs_and_strangers_of_the_name_have_no_profile(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    assert prepared(host, "sh", "-c", "claude") is None
    assert prepared(host, "a" * 5000) is None
    program(host.home / ".local/bin/codex", "another codex")
    assert prepared(host, "codex") is None
    assert prepared(host, "goose") is None


def test_an_agent_is_started_by_its_path_with_its_words(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    made = prepared(host, "claude", "-p", "hi")
    assert made is not None
    start = str(host.home / ".local/bin/claude")
    real = str(host.home / ".local/share/claude/versions/2.1.0")
    assert made.command == (start, "-p", "hi")
    assert (made.trees, made.links) == ((real,), ((start, real),))
    assert made.environment["DISABLE_AUTOUPDATER"] == "1"
    assert prepared(host, start) == prepared(host, "claude")
    image = prepared(host, "claude", "-p", "hi", contained=True)
    assert image is not None
    assert (image.command, image.trees, image.links) == (("claude", "-p", "hi"), (), ())


def test_listed_settings_come_along_and_credentials_do_not(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    own = {
        "model": "opus",
        "env": {"ANTHROPIC_API_KEY": TOKEN},
        "apiKeyHelper": "cat key",
        "hooks": {"Stop": ["x"]},
        "permissions": {
            "allow": ["Read", f"Bash(curl -H {TOKEN})"],
            "additionalDirectories": ["/"],
        },
    }
    write(host.home / ".claude/settings.json", json.dumps(own))
    write(host.home / ".claude/CLAUDE.md", "be kind")
    write(host.home / ".claude/commands/deploy.md", f"token {TOKEN}")
    write(host.home / ".claude/.credentials.json", TOKEN)
    oauth = {"oauthAccount": {"x": TOKEN}, "theme": "dark", "primaryApiKey": TOKEN}
    write(host.home / ".claude.json", json.dumps(oauth))
    made = prepared(host, "claude")
    assert content(made, ".claude/settings.json") == {
        "model": "opus", "permissions": {"allow": ["Read"]}, "sandbox": {"enabled": False},
    }  # fmt: skip
    state = content(made, ".claude.json")
    assert state["theme"] == "dark"
    assert state["projects"][str(host.home / "project")] == {"hasTrustDialogAccepted": True}
    assert made is not None
    assert TOKEN not in repr(made)
    paths = {each.path for each in made.files}
    assert ".claude/CLAUDE.md" in paths
    assert not paths & {".claude/commands/deploy.md", ".claude/.credentials.json"}
    assert "left out, credentials: ~/.claude/commands/deploy.md" in made.notes


def test_a_program_of_the_project_is_no_agent_though_the_sandbox_cannot_write_it(
    tmp_path: Path,
) -> None:
    """I1, I11: a repository that is shown read-only must not choose which files are shown."""
    host = home_of(tmp_path)
    diary = write(host.home / "documents/diary", "private")
    own = write(host.home / "project/src/bin/claude", f"#!{diary}\nCLAUDE_CODE_OAUTH_TOKEN\n")
    own.chmod(0o755)
    first = HostEnvironment({"PATH": f"{own.parent}:{host.env['PATH']}"}, host.home)
    for each in (host, first):
        made = prepared(each, "claude")
        assert made is not None
        assert made.command == (str(host.home / ".local/bin/claude"),)
        assert str(diary) not in made.trees
    assert prepared(host, str(own)) is None
    assert prepared(host, str(own), contained=True) is None
    assert prepared(host, "bin/claude", contained=True) is None
    assert prepared(host, "/usr/bin/claude", contained=True) is not None
    # The same where the policy lies elsewhere and shows the repository, and where it is the home's.
    own.rename(host.home / "project/claude")
    shown = f'[sandbox]\nwritable = []\nreadable = ["{host.home}/project"]\n'
    elsewhere = host.home / "policies"
    for services, project in ((shown, elsewhere), ("", None)):
        there = str(host.home / "project/claude")
        assert prepared(host, there, services=services, project=project) is None
    assert prepared(host, "claude", project=host.home) is not None


def test_values_of_credentials_without_a_known_shape_stay_outside(tmp_path: Path) -> None:
    """I1: permissions hold whole commands, and recipes and front matter hold settings."""
    host = home_of(tmp_path)
    rules = ["Bash(npm test:*)", "Bash(PGPASSWORD=hunter22 psql:*)", "Bash(x --token hunter22)",
             'Bash(curl -H "Authorization: Bearer hunter22")',
             'Bash(curl -H "Authorization: Bearer $TOKEN")']  # fmt: skip
    write(host.home / ".claude/settings.json", json.dumps({"permissions": {"allow": rules}}))
    write(host.home / ".claude/agents/a.md", "---\nenv: {API_TOKEN: hunter22}\n---\n")
    write(host.home / ".claude/agents/b.md", "---\nname: b\n---\nSet API_TOKEN=hunter22 first.\n")
    write(host.home / ".claude/skills/c/config.json", '{"api_key": "hunter22"}')
    write(host.home / ".claude/skills/c/schema.json", '{"key": "name", "password": "string"}')
    made = prepared(host, "claude")
    allowed = content(made, ".claude/settings.json")["permissions"]["allow"]
    assert allowed == [rules[0], rules[-1]]
    assert made is not None
    paths = {each.path for each in made.files}
    assert {".claude/agents/b.md", ".claude/skills/c/schema.json"} <= paths
    assert not paths & {".claude/agents/a.md", ".claude/skills/c/config.json"}
    assert "left out, credentials: ~/.claude/agents/a.md, ~/.claude/skills/c/config.json" in (
        made.notes
    )


def test_a_file_that_the_policy_reads_a_secret_from_is_not_copied(tmp_path: Path) -> None:
    """I1: whatever its content looks like."""
    host = home_of(tmp_path)
    kept = write(host.home / ".claude/skills/c/words.txt", "correct horse")
    for secrets, count in (((), 1), ((kept,), 0)):
        made = prepared(host, "claude", secrets=secrets)
        assert made is not None
        assert len([each for each in made.files if each.path.endswith("words.txt")]) == count


def test_links_to_credentials_are_not_followed(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    write(host.home / ".claude/.credentials.json", "{}")
    write(host.home / ".ssh/config", '{"model": "x"}')
    (host.home / ".claude/rules").mkdir()
    (host.home / ".claude/rules/a.md").symlink_to(host.home / ".claude/.credentials.json")
    (host.home / ".claude/settings.json").symlink_to(host.home / ".ssh/config")
    made = prepared(host, "claude")
    assert "model" not in content(made, ".claude/settings.json")
    assert made is not None
    assert not [each for each in made.files if "rules" in each.path]


def test_the_inner_sandbox_steps_back(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    write(
        host.home / ".codex/config.toml", 'model = "m"\nsandbox_mode = "read-only"\n[mcp_servers.x]'
    )
    table = content(prepared(host, "codex"), ".codex/config.toml")
    assert table["model"] == "m"
    assert table["sandbox_mode"] == "danger-full-access"
    assert "mcp_servers" not in table


def test_a_policy_without_the_agents_service_is_said(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    made = prepared(host, "claude")
    assert made is not None
    assert made.notes[0].startswith("the policy has no service for Claude Code: add [services.cl")
    served = prepared(host, "claude", services='[services.own]\nuse = "anthropic"\n')
    assert served is not None
    assert served.notes == ()


def test_the_service_of_the_policy_decides_how_the_agent_logs_in(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    program(host.home / "brew/Cellar/gemini-cli/1/bin/gemini", "")
    (host.home / ".local/bin/gemini").symlink_to(host.home / "brew/Cellar/gemini-cli/1/bin/gemini")
    for service, kind, code_assist in (
        ("gemini", "gemini-api-key", False),
        ("gemini-code-assist", "oauth-personal", True),
    ):
        made = prepared(host, "gemini", services=f"[services.{service}]\n")
        settings = content(made, ".gemini/settings.json")
        assert settings["security"]["auth"] == {"selectedType": kind}
        assert settings["security"]["folderTrust"] == {"enabled": False}
        assert made is not None
        assert ("GOOGLE_GENAI_USE_GCA" in made.environment) is code_assist


def cline_at_home(tmp_path: Path) -> HostEnvironment:
    host = home_of(tmp_path)
    program(host.home / "brew/Cellar/cline/1/bin/cline", "")
    (host.home / ".local/bin/cline").symlink_to(host.home / "brew/Cellar/cline/1/bin/cline")
    return host


def test_an_agent_asks_for_web_search_only_where_its_service_opens_it(tmp_path: Path) -> None:
    """It asks with every request, so it would not work where that is closed."""
    host = cline_at_home(tmp_path)
    opens = 'features = ["web-search"]\n'
    for services, on in (
        ("", False),
        ("[services.anthropic]\n", False),
        (f"[services.anthropic]\n{opens}", True),
        (f'[services.mine]\nuse = "anthropic"\n{opens}', True),
        (f"[services.anthropic]\n[services.openrouter]\n{opens}", False),
    ):
        launch = prepared(host, "cline", services=services)
        made = content(launch, ".cline/data/settings/global-settings.json")
        assert made["tools"] == {"web_search": {"enabled": on}}, services


def test_nothing_comes_along_of_a_settings_file_that_holds_keys(tmp_path: Path) -> None:
    host = cline_at_home(tmp_path)
    path = ".cline/data/settings/providers.json"
    theirs = {"settings": {"provider": "anthropic", "apiKey": TOKEN, "baseUrl": "https://else"}}
    own = {"version": 9, "lastUsedProvider": "x", "providers": {"anthropic": theirs, "x": theirs}}
    write(host.home / path, json.dumps(own))
    for service in ("anthropic", "openrouter"):
        made = content(prepared(host, "cline", services=f"[services.{service}]\n"), path)
        assert (made["version"], made["lastUsedProvider"]) == (1, service)
        assert {"anthropic", "openrouter"} == set(made["providers"])
        key = made["providers"][service]["settings"]["apiKey"]
        assert made["providers"][service]["settings"] == {"provider": service, "apiKey": key}
        assert key == "keyhole-adds-it"


def test_a_crowd_of_skills_is_bounded_and_said(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    for number in range(250):
        write(host.home / f".claude/skills/{number}/SKILL.md", "x")
    made = prepared(host, "claude", services='[services.claude]\nsecret = "login:claude"\n')
    assert made is not None
    assert len(made.files) < 250
    assert made.notes == ("not all of Claude Code's instructions and skills are copied",)


def test_links_are_made_where_nothing_of_the_host_is_shown(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    made = prepared(host, "claude")
    assert made is not None
    link, home = Symlink(*made.links[0]), str(host.home)
    assert program_links(made, ()) == (link,)
    assert program_links(made, (Tmpfs(home, 1),)) == (link,)
    assert program_links(made, (Bind(home, home, MountKind.DIR),)) == ()
    assert program_links(None, ()) == ()


def test_directories_of_the_agent_come_first_in_path() -> None:
    assert with_search({"PATH": "/usr/bin"}, ()) == {"PATH": "/usr/bin"}
    assert with_search({"PATH": "/usr/bin"}, ("/a", "/b"))["PATH"] == "/a:/b:/usr/bin"


def test_the_survey_names_what_is_installed_and_ready(tmp_path: Path) -> None:
    host = home_of(tmp_path)
    found = {each.profile.name: each for each in survey_agents(PROFILES, host, ("openai",))}
    assert found["claude"].program == str(host.home / ".local/bin/claude")
    assert found["claude"].access is None
    assert found["gemini"].program is None
    codex = found["codex"].access
    assert codex is not None
    assert str(codex.secret) == "store:openai"
    write(host.home / ".claude/.credentials.json", "{}")
    again = {each.profile.name: each for each in survey_agents(PROFILES, host, ())}
    claude = again["claude"].access
    assert claude is not None
    assert str(claude.secret) == "login:claude"


def test_servers_that_the_policy_grants_come_along_without_a_credential(tmp_path: Path) -> None:
    """I1: user and project servers of Claude Code, and Codex's; a token is in none of the files."""
    host = home_of(tmp_path)
    linear = {"type": "http", "url": "https://mcp.linear.app/mcp", "headers": {"X-Key": TOKEN}}
    other = {"type": "http", "url": "https://mcp.other.example/mcp"}
    local = {"command": "npx", "args": ["a"], "env": {"OPENAI_API_KEY": TOKEN}}
    leaking = {"command": "npx", "args": ["--token", TOKEN]}
    here = {str(host.home / "project"): {"mcpServers": {"local": local, "leaking": leaking}}}
    own = {"mcpServers": {"linear": linear, "other": other}, "projects": here}
    write(host.home / ".claude.json", json.dumps(own))
    codex = f'[mcp_servers.linear]\nurl = "{linear["url"]}"\nhttp_headers = {{ K = "{TOKEN}" }}\n'
    write(host.home / ".codex/config.toml", codex)
    granting = '[services.linear-mcp]\ntools = ["get_*"]\n[services.openai]\nsecret = "store:x"\n'
    claude = prepared(host, "claude", services=granting)
    assert claude is not None
    (file,) = [each for each in claude.files if each.path == ".claude.json"]
    assert json.loads(file.content)["mcpServers"] == {
        "linear": {"type": "http", "url": "https://mcp.linear.app/mcp"},
        "local": {
            "command": "npx",
            "args": ["a"],
            "env": {"OPENAI_API_KEY": "${OPENAI_API_KEY}"},
        },
    }
    stay = "MCP servers that stay on the host: other, leaking;"
    assert [note for note in claude.notes if note.startswith(stay)]
    for_codex = prepared(host, "codex", services=granting)
    assert for_codex is not None
    (file,) = [each for each in for_codex.files if each.path == ".codex/config.toml"]
    assert tomllib.loads(file.content)["mcp_servers"] == {"linear": {"url": linear["url"]}}
    assert not [each for each in (*claude.files, *for_codex.files) if TOKEN in each.content]
    # Without a service, none comes along.
    bare = prepared(host, "codex")
    assert bare is not None
    (file,) = [each for each in bare.files if each.path == ".codex/config.toml"]
    assert "mcp_servers" not in tomllib.loads(file.content)
