"""Agents by name: `keyhole run claude` as a person types it, with the layouts of real installers.

The agents' place is taken by small programs under their names; node, npm and Python are this
host's own. Real agents run in the attack battery.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.services import keep, random_text
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.projects import SEARCH, Ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

REPORT = """
import json, os, sys
home, found = os.environ["HOME"], {}
for folder, _, names in os.walk(home):
    for name in names:
        path = os.path.join(folder, name)
        try:
            found[os.path.relpath(path, home)] = open(path, errors="replace").read(100000)
        except OSError as error:
            found[os.path.relpath(path, home)] = str(error)
for name in (".claude/settings.json", ".claude/CLAUDE.md"):
    try:
        open(os.path.join(home, name), "a").write("// written inside")
    except OSError as error:
        found[name] = "not writable: " + str(error)
print(json.dumps({"words": sys.argv[1:], "env": dict(os.environ), "files": found,
                  "cwd": os.getcwd()}))
"""


def install(project: Project, path: str, text: str) -> Path:
    """A program in the person's home."""
    made = keep(project, path, text)
    made.chmod(0o755)
    return made


def own_all(project: Project) -> None:
    """Give the person everything below their home."""
    for folder, directories, files in os.walk(project.home):
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                project.person.own(type(project.home)(path))


def claude(project: Project) -> str:
    """Claude Code as its own installer puts it: a link to one file of a directory of versions."""
    version = ".local/share/claude/versions/2.1.325"
    install(project, version, f"#!/usr/bin/python3 -IS\n{REPORT}")
    (project.home / ".local/bin").mkdir(parents=True)
    (project.home / ".local/bin/claude").symlink_to(project.home / version)
    own_all(project)
    return f"{project.home}/.local/bin:{SEARCH}"


def report(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_an_agent_runs_by_name_with_its_settings_and_without_its_login(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    path = claude(project)
    token = random_text("sk-ant-oat01-")
    settings = {"model": "opus", "env": {"ANTHROPIC_AUTH_TOKEN": token}}
    keep(project, ".claude/settings.json", json.dumps(settings))
    keep(project, ".claude/CLAUDE.md", "be kind")
    keep(project, ".claude/skills/deploy/SKILL.md", f"curl -H 'Authorization: Bearer {token}'")
    login = {"claudeAiOauth": {"accessToken": token}}
    keep(project, ".claude/.credentials.json", json.dumps(login))
    keep(project, ".claude.json", json.dumps({"primaryApiKey": token, "theme": "dark"}))
    own_all(project)
    before = (project.home / ".claude/settings.json").read_text()
    for words in (("claude",), ("--", "claude")):
        said = report(project("run", "--trust", *words, "-p", "hi", env={"PATH": path}))
        assert said["words"] == ["-p", "hi"]
        assert token not in json.dumps(said)
        files = said["files"]
        assert json.loads(files[".claude/settings.json"])["model"] == "opus"
        assert json.loads(files[".claude.json"])["theme"] == "dark"
        assert files[".claude/CLAUDE.md"] == "be kind"
        assert ".claude/.credentials.json" not in files
        assert ".claude/skills/deploy/SKILL.md" not in files
        assert said["env"]["DISABLE_AUTOUPDATER"] == "1"
        assert said["env"]["PATH"].split(":")[0] == f"{project.home}/.local/bin"
    # What was written inside stayed there.
    assert (project.home / ".claude/settings.json").read_text() == before
    assert (project.home / ".claude/CLAUDE.md").read_text() == "be kind"


def test_a_program_of_the_same_name_is_no_agent(new_project: Callable[[], Project]) -> None:
    project = new_project()
    path = claude(project)
    (project.home / ".local/bin/claude").unlink()
    install(project, ".local/bin/claude", "#!/bin/sh\necho another")
    ran = project("run", "--trust", "claude", env={"PATH": path})
    assert ran.code == 127


def test_an_agent_of_npm_runs_with_the_node_of_nvm(new_project: Callable[[], Project]) -> None:
    project = new_project()
    node = shutil.which("node", path=SEARCH) or give_up("no node")
    npm = shutil.which("npm", path=SEARCH) or give_up("no npm")
    prefix = project.home / ".nvm/versions/node/v22.1.0"
    package = project.home / "package"
    keep(
        project,
        "package/package.json",
        json.dumps({"name": "@openai/codex", "version": "1.0.0", "bin": {"codex": "bin/codex.js"}}),
    )
    show = (
        "const fs = require('fs'), home = process.env.HOME;\n"
        "console.log(JSON.stringify({words: process.argv.slice(2), env: process.env,"
        " files: {config: fs.readFileSync(home + '/.codex/config.toml', 'utf8'),"
        " package: fs.readdirSync(__dirname)}}));\n"
    )
    install(project, "package/bin/codex.js", f"#!/usr/bin/env node\n{show}")
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(node, prefix / "bin/node")
    subprocess.run(
        [npm, "install", "-g", "--offline", "--install-links", "--no-audit", "--no-fund",
         "--prefix", prefix, package],
        check=True, capture_output=True, env={"PATH": SEARCH, "HOME": str(project.home)},
    )  # fmt: skip
    own_all(project)
    keep(project, ".codex/auth.json", json.dumps({"OPENAI_API_KEY": random_text("sk-proj-")}))
    path = f"{prefix}/bin:{SEARCH}"
    said = report(project("run", "--trust", "codex", "exec", "hi", env={"PATH": path}))
    assert said["words"] == ["exec", "hi"]
    assert 'sandbox_mode = "danger-full-access"' in said["files"]["config"]


def test_an_agent_in_a_virtual_environment_runs_with_its_python(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    tool = project.home / ".local/share/uv/tools/aider-chat"
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", tool], check=True)
    inside = f"#!{tool}/bin/python\nimport sys\nprint(sys.prefix)\n# from aider.main import main\n"
    install(project, ".local/share/uv/tools/aider-chat/bin/aider", inside)
    (project.home / ".local/bin").mkdir(parents=True)
    (project.home / ".local/bin/aider").symlink_to(tool / "bin/aider")
    own_all(project)
    ran = project("run", "--trust", "aider", env={"PATH": f"{project.home}/.local/bin:{SEARCH}"})
    assert (ran.code, ran.out.strip()) == (0, str(tool))


def test_the_policy_above_is_found_and_the_working_directory_stays(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    project.write("src/deep/file", "x")
    deep = project.directory / "src/deep"
    done = subprocess.run(
        [str(project.person.program), "run", "--trust", "--", "/bin/pwd"],
        cwd=deep, env=project.env, capture_output=True, text=True, check=True,
        **project.person.become(),
    )  # fmt: skip
    assert done.stdout.strip() == str(deep)


def test_the_list_says_what_is_installed_and_ready(new_project: Callable[[], Project]) -> None:
    project = new_project()
    path = claude(project)
    keep(project, ".claude/.credentials.json", "{}")
    rows = {
        row["id"]: row for row in json.loads(project("agents", "--json", env={"PATH": path}).out)
    }
    claude_row = rows["claude"]
    assert (claude_row["installed"], claude_row["secret"]) == (True, "login:claude")
    assert (rows["goose"]["installed"], rows["goose"]["logged_in"]) == (False, False)
    ran = project("agents", env={"PATH": path})
    assert ran.code == 0
    assert ran.lines[0].split() == ["NAME", "INSTALLED", "LOGGED", "IN", "SERVICE"]
    assert "~/.local/bin/claude" in ran.out


def pasted(ran: Ran) -> dict[str, str]:
    """The lines of the advice, by the table that they belong to."""
    lines = [line.removeprefix("keyhole: ") for line in ran.err.splitlines()]
    found, table = {}, ""
    for line in lines:
        if "[sandbox]" in line or "[sandbox.env]" in line:
            table = line[line.index("[") : line.index("]") + 1]
        elif line.startswith("  ") and table:
            found[table] = line.strip()
    return found


def test_a_program_that_the_sandbox_does_not_show_is_said_to_be_that(
    new_project: Callable[[], Project],
) -> None:
    """The advice works as it is pasted."""
    project = new_project()
    real = install(project, ".local/share/tool/1.0/tool", "#!/bin/sh\necho it works")
    (project.home / ".local/bin").mkdir(parents=True)
    (project.home / ".local/bin/tool").symlink_to(real)
    own_all(project)
    path = {"PATH": f"{project.home}/.local/bin:{SEARCH}"}
    ran = project("run", "--trust", "--", "tool", env=path)
    assert ran.code == 127
    said = "~/.local/bin/tool is a link to ~/.local/share/tool/1.0/tool, which the sandbox cannot"
    assert said in ran.err
    advice = pasted(ran)
    assert advice == {"[sandbox]": 'readable = ["~/.local/share/tool/1.0/tool"]'}
    project.policy("\n".join(f"{table}\n{line}" for table, line in advice.items()))
    assert f"then run `keyhole run -- {real}`" in ran.err
    again = project("run", "--trust", "--", str(real), env=path)
    assert (again.code, again.out) == (0, "it works\n")
    # Control: a program that is nowhere is not found, and nothing is advised.
    nowhere = project("run", "--trust", "--", "no-such-tool", env=path)
    assert (nowhere.code, "readable" in nowhere.err) == (127, False)


def test_an_interpreter_that_the_sandbox_does_not_show_is_said_to_be_that(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    prefix = project.home / ".pyenv/versions/3.12.1"
    (prefix / "lib/python3.12").mkdir(parents=True)
    install(project, ".pyenv/versions/3.12.1/bin/python3.12", "#!/bin/sh\necho hello")
    own_all(project)
    tool = project.write("tool.py", f"#!{prefix}/bin/python3.12\n")
    tool.chmod(0o755)
    (project.directory / ".venv/bin").mkdir(parents=True)
    (project.directory / ".venv/bin/python").symlink_to(prefix / "bin/python3.12")
    project.write(".venv/pyvenv.cfg", f"home = {prefix}/bin\n")
    for command, said in (
        ("./tool.py", "the first line of ./tool.py names ~/.pyenv/versions/3.12.1/bin/python3.12"),
        (
            ".venv/bin/python",
            "/.venv/bin/python is a link to ~/.pyenv/versions/3.12.1/bin/python3.",
        ),
    ):
        project.policy("")
        ran = project("run", "--trust", "--", command)
        assert ran.code == 127
        assert said in ran.err
        advice = pasted(ran)
        assert advice == {"[sandbox]": 'readable = ["~/.pyenv/versions/3.12.1"]'}
        project.policy(f"[sandbox]\n{advice['[sandbox]']}\n")
        again = project("run", "--trust", "--", command)
        assert (again.code, again.out) == (0, "hello\n"), again


def test_the_home_is_written_with_a_tilde_in_variables(new_project: Callable[[], Project]) -> None:
    project = new_project()
    project.policy('[sandbox.env]\nA = "~/x"\nB = "/b:~/c:~"\nC = "a~/b"\n')
    ran = project("run", "--trust", "--", "sh", "-c", "echo $A $B $C")
    home = project.home
    assert ran.out == f"{home}/x /b:{home}/c:{home} a~/b\n"


def test_many_instructions_come_along_each_as_it_is(new_project: Callable[[], Project]) -> None:
    """I9: more files than the helper has descriptors below those that it moves out of the way."""
    project = new_project()
    path = claude(project)
    for number in range(150):
        keep(project, f".claude/skills/s{number}/SKILL.md", f"skill {number}")
    own_all(project)
    files = report(project("run", "--trust", "claude", env={"PATH": path}))["files"]
    assert {n: files[f".claude/skills/s{n}/SKILL.md"] for n in range(150)} == {
        n: f"skill {n}" for n in range(150)
    }


def test_the_policy_that_init_writes_runs_the_agent_at_once(
    new_project: Callable[[], Project],
) -> None:
    """Two commands, the second of which the first names; with a login and without."""
    for login in (True, False):
        project = new_project()
        path = {"PATH": claude(project)}
        if login:
            token = {"accessToken": random_text("sk-ant-oat01-"), "expiresAt": 4102444800000}
            keep(project, ".claude/.credentials.json", json.dumps({"claudeAiOauth": token}))
        written = project("init", "--yes", "--force", env=path)
        assert written.code == 0
        word = "next" if login else "and then"
        assert written.lines[-1] == f"{word}: `keyhole run claude`"
        ran = project("run", "--trust", "claude", env=path)
        said = report(ran)
        assert ("CLAUDE_CODE_OAUTH_TOKEN" in said["env"]) is login
        assert "closed" not in ran.err
        assert ("the policy has no service for Claude Code" in ran.err) is not login
