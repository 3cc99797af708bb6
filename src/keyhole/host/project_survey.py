"""Reads the facts that `keyhole init` asks about: a project's git remote and package managers.

No program is run, and of a project only file names and one URL are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host import git_remote

if TYPE_CHECKING:
    from pathlib import Path

_MARKS = {
    "python": ("pyproject.toml", "requirements*.txt", "setup.py"),
    "node": ("package.json",),
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
    "maven": ("pom.xml", "build.gradle*"),
}
"""Files at the top of a project, by the preset they call for."""


def remote_url(project: Path) -> str | None:
    """The URL of the project's `origin`, without userinfo."""
    return git_remote.origin(project)


def package_managers(project: Path) -> tuple[str, ...]:
    """The presets that the project's files call for."""
    return tuple(
        preset
        for preset, patterns in _MARKS.items()
        if any(path.is_file() for pattern in patterns for path in project.glob(pattern))
    )
