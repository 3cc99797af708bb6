"""Real agents by name, as npm and pip install them, with a provider on loopback (I1, I10).

Each is started by its profile alone, answers, and never holds a key.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.agents import ANSWER, Provider, provider_of_models, work_by_name
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.projects import SEARCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.attack]

GOOSE = f"@aaif/goose-binary-linux-{'arm64' if os.uname().machine == 'aarch64' else 'x64'}"
"""npm has goose as a program alone, which has another name there."""

PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "cline": "cline@3.0.65",
    "codex": "@openai/codex@0.169.0",
    "copilot": "@github/copilot@1.0.102",
    "gemini": "@google/gemini-cli@0.61.0",
    "goose": f"{GOOSE}@1.52.0",
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

CONVERSATION = "7d3f0c52-6f7e-4b0e-9a51-0c8f2f4f3a11"
INSTALLING = 600
"""Seconds for npm to bring them."""


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
    (made / "bin/goose").symlink_to(made / "lib/node_modules" / GOOSE / "bin/goose")
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
    with provider_of_models(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.mark.parametrize("name", PACKAGES)
def test_a_real_agent_works_by_name_and_never_holds_a_key(
    name: str, new_project: Callable[[], Project], prefix: Path, provider: Provider
) -> None:
    project = new_project()
    work_by_name(name, project, f"{prefix}/bin", provider)
    if name == "claude":
        # Its own sandbox has stepped back: a command ran.
        assert (project.directory / "made.txt").read_text() == "made inside\n"


def test_cline_searches_the_web_once_the_policy_says_so(
    new_project: Callable[[], Project], prefix: Path, provider: Provider
) -> None:
    """Control: with the policy of `keyhole init` it works and asks for no search."""
    project = new_project()
    search = '"type": "web_search_'
    before = len(provider.log.read_text())
    work_by_name("cline", project, f"{prefix}/bin", provider)
    assert search not in provider.log.read_text()[before:]
    policy = (project.directory / "keyhole.toml").read_text()
    secret = 'secret = "store:anthropic"\n'
    assert secret in policy
    project.write("keyhole.toml", policy.replace(secret, f'{secret}features = ["web-search"]\n'))
    ran = project("run", "--trust", "cline", "say hi", env={"PATH": f"{prefix}/bin:{SEARCH}"})
    assert ran.code == 0, ran
    assert ANSWER in ran.out
    assert search in provider.log.read_text()[before:]


def test_each_message_of_codexs_websocket_is_judged(
    new_project: Callable[[], Project], prefix: Path, provider: Provider
) -> None:
    """I3: a message that asks for a search is refused and does not arrive, nor does the request by
    which Codex asks again. Control: it works by messages that ask for none."""
    project = new_project()
    work_by_name("codex", project, f"{prefix}/bin", provider)
    log = provider.log.read_text()
    assert '"path": "/v1/responses"' in log
    assert '"message": true' in log
    # A model whose tools stand in the message itself, which Codex names for any that it lacks.
    asking = ("-m", "gpt-5.4", "-c", 'web_search="live"', "exec", "--skip-git-repo-check", "hi")
    ran = project("run", "--trust", "codex", *asking, env={"PATH": f"{prefix}/bin:{SEARCH}"})
    assert ran.code != 0, ran
    for method in ("WEBSOCKET", "POST"):
        said = f"denied {method} https://api.openai.com/v1/responses (it asks for web-search"
        assert said in ran.err
    assert provider.log.read_text() == log
    refused = {e["details"]["method"] for e in project.events() if e["reason"] == "feature-closed"}
    assert refused == {"WEBSOCKET", "POST"}


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
    _, _, policy = (project.directory / "keyhole.toml").read_text().partition("\nversion = 1\n")
    assert "\n[sandbox]\n" in policy
    project.policy(policy.replace("\n[sandbox]\n", '\n[sandbox]\nhome = "fresh"\n', 1))
    anew = project(*resume, env=path)
    assert anew.code != 0, anew
    assert "No conversation found" in anew.out + anew.err


@pytest.mark.parametrize("name", WHEELS)
def test_a_real_agent_of_a_virtual_environment_works_by_name_and_never_holds_a_key(
    name: str, new_project: Callable[[], Project], tmp_path: Path, provider: Provider
) -> None:
    work_by_name(name, new_project(), install_wheel(name, tmp_path / name), provider)
