"""Real agents by name, as npm and pip install them, with a provider on loopback (I1, I10).

Each is started by its profile alone, answers, and never holds a key. Goose is missing: neither npm
nor pip has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import PROGRAMS, keep, random_text
from tests.rigs.lacking import give_up
from tests.rigs.nginx import write_chain
from tests.rigs.sandbox.projects import SEARCH, Project, line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.outside, pytest.mark.attack]

PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "cline": "cline@3.0.65",
    "codex": "@openai/codex@0.169.0",
    "copilot": "@github/copilot@1.0.102",
    "gemini": "@google/gemini-cli@0.61.0",
    "opencode": "opencode-ai@1.18.33",
    "qwen": "@qwen-code/qwen-code@0.15.10",
}
SCRIPTED = "@anthropic-ai/claude-code,opencode-ai"
"""Packages that fetch nothing but move their own binary into place when they are installed."""

WHEELS = {
    "aider": ("aider-chat==0.86.2", (3, 11)),
    "vibe": ("mistral-vibe==2.26.1", (3, 12)),
}
"""Agents from wheels, and the Python that each needs at least."""
PYTHONS = ("python3", "python3.12", "python3.13", "python3.14")

TASKS = {
    "aider": ("--no-git", "--yes-always", "--message", "hi"),
    "claude": ("-p", "make the file", "--allowedTools", "Bash"),
    "cline": ("say hi",),
    "codex": ("exec", "--skip-git-repo-check", "hi"),
    "copilot": ("-p", "hi"),
    "gemini": ("-p", "hi"),
    "opencode": ("run", "hi"),
    "qwen": ("-m", "gpt-5", "-p", "hi"),
    "vibe": ("-p", "hi"),
}
KEYS = {
    "anthropic": "sk-ant-api03-real",
    "openai": "sk-proj-real",
    "gemini": "AIzaReal",
    "github-copilot": "gho_real",
    "mistral": "mistralReal",
}
"""The start of each service's key."""
HOSTS = (
    "api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "api.mistral.ai",
    "api.githubcopilot.com", "api.github.com",
)  # fmt: skip
TOLD = {"opencode"}
"""Agents of which one refusal is told: it wants its packages from npm's index, as a person may."""
ANSWER = "the-answer-of-the-provider"
CONVERSATION = "7d3f0c52-6f7e-4b0e-9a51-0c8f2f4f3a11"
INSTALLING = 600
"""Seconds for npm to bring them."""


@dataclass(frozen=True)
class Provider:
    """Where the provider is, and what it was asked."""

    port: int
    ca: str
    log: Path

    def credentials(self) -> set[str]:
        """The credentials of the requests so far."""
        lines = self.log.read_text().splitlines()
        return {json.loads(line)["credential"].removeprefix("Bearer ") for line in lines} - {""}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix of npm with the agents."""
    npm = shutil.which("npm", path=SEARCH)
    if npm is None:
        give_up("npm is not installed")
    made = tmp_path_factory.mktemp("npm")
    done = subprocess.run(
        [npm, "install", "-g", "--no-audit", "--no-fund", f"--allow-scripts={SCRIPTED}",
         "--prefix", made, *PACKAGES.values()],
        env=os.environ | {"PATH": SEARCH}, capture_output=True, text=True, check=False,
        timeout=INSTALLING,
    )  # fmt: skip
    if done.returncode:
        give_up(f"the agents do not install here: {done.stderr[-500:]}")
    return made


def python_of(least: tuple[int, int]) -> str:
    """A Python of this version or later that the sandbox of any person can be shown."""
    ask = f"import sys; sys.exit(sys.version_info < {least})"
    for name in PYTHONS:
        found = shutil.which(name, path=SEARCH)
        if found and not subprocess.run([found, "-c", ask], check=False).returncode:
            return found
    give_up(f"no Python from {least} on is installed")


def install_wheel(name: str, directory: Path) -> str:
    """The directory of an agent's program, in an environment of its own."""
    package, least = WHEELS[name]
    subprocess.run([python_of(least), "-m", "venv", directory], check=True)
    done = subprocess.run(
        [directory / "bin/pip", "install", "-qq", "--disable-pip-version-check", package],
        capture_output=True, text=True, check=False, timeout=INSTALLING,
    )  # fmt: skip
    if done.returncode:
        give_up(f"{package} does not install here: {done.stderr[-500:]}")
    return f"{directory}/bin"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    directory = tmp_path_factory.mktemp("provider")
    authority = trustme.CA()
    write_chain(directory / "chain.pem", authority, *HOSTS)
    log = directory / "log"
    log.touch()
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "provider.py", directory / "chain.pem", log, ANSWER],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            port = int(line_of(process.stdout))
            yield Provider(port, authority.cert_pem.bytes().decode(), log)
        finally:
            process.kill()
            process.wait(PATIENCE)


def work_by_name(name: str, project: Project, path: str, provider: Provider) -> None:
    """Run the agent by its name, and see that it answers and that its key stayed outside."""
    keys = {service: random_text(start, 48) for service, start in KEYS.items()}
    for service, key in keys.items():
        keep(project, f"keys/{service}", key)
    keep(project, "ca.pem", provider.ca)
    services = "".join(f'[services.{s}]\nsecret = "file:~/keys/{s}"\n' for s in keys)
    connect = "".join(f'"{host}:443" = "127.0.0.1:{provider.port}"\n' for host in HOSTS)
    project.policy(f'{services}[upstream]\nca_file = "~/ca.pem"\n[upstream.connect]\n{connect}')
    before = provider.credentials()
    ran = project("run", "--trust", name, *TASKS[name], env={"PATH": f"{path}:{SEARCH}"})
    assert ran.code == 0, ran
    assert ANSWER in ran.out
    # Refusals of telemetry are not told, and no other request is refused.
    assert ran.err.count("keyhole: denied") == (name in TOLD), ran
    # The provider got the real key, which nothing inside has seen.
    assert provider.credentials() - before <= set(keys.values())
    assert provider.credentials() > before
    assert not [key for key in keys.values() if key in ran.out + ran.err]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_real_agent_works_by_name_and_never_holds_a_key(
    name: str, new_project: Callable[[], Project], prefix: Path, provider: Provider
) -> None:
    project = new_project()
    work_by_name(name, project, f"{prefix}/bin", provider)
    if name == "claude":
        # Its own sandbox has stepped back: a command ran.
        assert (project.directory / "made.txt").read_text() == "made inside\n"


def test_claude_goes_on_with_its_conversation_in_a_later_run(
    new_project: Callable[[], Project], prefix: Path, provider: Provider
) -> None:
    """The home of an agent by name stays; with a fresh one there is nothing to go on with."""
    project = new_project()
    work_by_name("claude", project, f"{prefix}/bin", provider)
    path = {"PATH": f"{prefix}/bin:{SEARCH}"}
    begin = ("run", "--trust", "claude", "-p", "hi", "--session-id", CONVERSATION)
    resume = ("run", "--trust", "claude", "-p", "and again", "--resume", CONVERSATION)
    assert project(*begin, env=path).code == 0
    went_on = project(*resume, env=path)
    assert went_on.code == 0, went_on
    assert ANSWER in went_on.out
    policy = (project.directory / "keyhole.toml").read_text()
    project.policy(f'[sandbox]\nhome = "fresh"\n{policy.removeprefix("version = 1")}')
    anew = project(*resume, env=path)
    assert anew.code != 0, anew
    assert "No conversation found" in anew.out + anew.err


@pytest.mark.parametrize("name", WHEELS)
def test_a_real_agent_of_a_virtual_environment_works_by_name_and_never_holds_a_key(
    name: str, new_project: Callable[[], Project], tmp_path: Path, provider: Provider
) -> None:
    work_by_name(name, new_project(), install_wheel(name, tmp_path / name), provider)
