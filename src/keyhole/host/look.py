"""What `keyhole init` sees when it looks around: agents, git remote, package managers.

Pure observation: nothing is run, and nothing that a project holds is believed beyond its file
names and one URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host import gitremote

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.surroundings import Surroundings

AGENTS = (
    "claude", "codex", "gemini", "aider", "opencode", "copilot", "cursor-agent", "agy", "goose",
    "gh", "glab",
)  # fmt: skip
"""Programs that speak for a service of the catalogue."""

_MARKS = {
    "python": ("pyproject.toml", "requirements*.txt", "setup.py"),
    "node": ("package.json",),
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
    "maven": ("pom.xml", "build.gradle*"),
}
"""Files at the top of a project, by the preset they call for."""


def agents(surroundings: Surroundings) -> tuple[str, ...]:
    """Which agents this host has; one that the sandbox could have put there does not count."""
    return tuple(name for name in AGENTS if surroundings.program(name))


def git_remote(project: Path) -> str | None:
    """The URL of the project's `origin`, without userinfo."""
    return gitremote.origin(project)


def package_managers(project: Path) -> tuple[str, ...]:
    """The presets that the project's files call for."""
    return tuple(
        preset
        for preset, patterns in _MARKS.items()
        if any(path.is_file() for pattern in patterns for path in project.glob(pattern))
    )
