"""Real agents by name, with the policy that `keyhole init` writes for them.

Has their tasks, a provider on loopback that answers, and what must hold. Used by the tests of
agents: `make test` has two, the attack battery all.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from tests.rigs.clients.services import PROGRAMS, keep, random_text
from tests.rigs.nginx import write_chain
from tests.rigs.sandbox.projects import SEARCH, Project, line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENTS = Path(__file__).parents[3] / ".agents"
"""Where `make setup` installs agents, if there is npm."""

TASKS = {
    "aider": ("--no-git", "--yes-always", "--message", "hi"),
    "claude": ("-p", "make the file", "--allowedTools", "Bash"),
    "cline": ("say hi",),
    "codex": ("exec", "--skip-git-repo-check", "hi"),
    "copilot": ("-p", "hi"),
    "gemini": ("-p", "hi"),
    "goose": (
        "run",
        "--no-session",
        "--provider",
        "anthropic",
        "--model",
        "claude-sonnet-4-5",
        "--text",
        "hi",
    ),
    "opencode": ("run", "hi"),
    "qwen": ("-m", "gpt-5", "-p", "hi"),
    "vibe": ("-p", "hi"),
}
SERVICES = {
    "codex": "openai",
    "copilot": "github-copilot",
    "gemini": "gemini",
    "qwen": "openai",
    "vibe": "mistral",
}
"""The service that an agent uses; the others use anthropic."""
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


@contextlib.contextmanager
def provider_of_models(directory: Path, authority: trustme.CA | None = None) -> Iterator[Provider]:
    """A provider that answers for every host of the agents."""
    authority = authority or trustme.CA()
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
    """Do what a new user does: keep a key, `keyhole init`, run the agent by its name.

    See that it answers, that nothing it needs is refused, and that its key stayed outside.
    """
    env = {"PATH": f"{path}:{SEARCH}"}
    service = SERVICES.get(name, "anthropic")
    key = random_text(KEYS[service], 48)
    kept = project("secret", "set", "--plain", service, text=key.encode())
    assert kept.code == 0, kept
    wrote = project("init", "--yes", "--force", "--agent", name, env=env)
    assert wrote.code == 0, wrote
    assert f"next: `keyhole run {name}`" in wrote.out
    lead_to(provider, project)
    before = provider.credentials()
    ran = project("run", "--trust", name, *TASKS[name], env=env)
    assert ran.code == 0, ran
    assert ANSWER in ran.out
    # Refusals of telemetry are not told, and no other request is refused.
    assert ran.err.count("keyhole: denied") == (name in TOLD), ran
    # The provider got the real key, which nothing inside has seen.
    assert provider.credentials() - before == {key}
    assert key not in ran.out + ran.err


def lead_to(provider: Provider, project: Project) -> None:
    """Have the project's policy find the provider's hosts on loopback; change nothing else."""
    keep(project, "ca.pem", provider.ca)
    connect = "".join(f'"{host}:443" = "127.0.0.1:{provider.port}"\n' for host in HOSTS)
    policy = (project.directory / "keyhole.toml").read_text()
    project.write(
        "keyhole.toml",
        f'{policy}\n[upstream]\nca_file = "~/ca.pem"\n[upstream.connect]\n{connect}',
    )
