"""Git's own settings for a sandbox: files and variables by which plain git works inside.

Called by whoever prepares a run, once the file plan stands; `kit.py` places what is made here. What
the files say is `policy/gitsettings.py`'s matter. Nothing is run, and of the host's settings only
the person's name and address come in (I1, I11).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from keyhole.app.submodules import registrations
from keyhole.host.gitconfig import BadConfig, parse
from keyhole.host.gitidentity import identity
from keyhole.host.surroundings import Surroundings
from keyhole.model.value import dataclass, field
from keyhole.policy.gitsettings import (
    NO_HOOKS,
    READ_ONLY_CONFIG,
    Inclusion,
    config_text,
    person_lines,
    system_config,
)
from keyhole.sandbox.files.fileplan import Bind, FilePlan, Text
from keyhole.sandbox.files.gitconfig import MAX_CONFIG
from keyhole.sandbox.files.triggers import is_git_directory
from keyhole.sandbox.files.walk import read_no_links
from keyhole.sandbox.programs import SEARCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from keyhole.host.gitconfig import Setting
    from keyhole.model.person import Person
    from keyhole.policy.gitsettings import Line
    from keyhole.policy.policy import Policy

SYSTEM = "/etc/gitconfig"
"""What git reads first, where its packager did not choose another place."""
OTHERS = ("/usr/local/etc/gitconfig", "/usr/etc/gitconfig")
"""Where a git that somebody built looks instead; the host's own there is covered."""
OWN = "/etc/keyhole/git"
"""Where that finds what holds for some repositories alone."""
HOOKS = f"{OWN}/hooks"

MAX_MODULES = 1 << 16
"""Bytes of a `.gitmodules`: about 500 submodules."""
MAX_POINTER = 4096
"""Bytes of a file that holds one path."""
MAX_REPOSITORIES = 64
"""Repositories that are looked into for submodules and hooks; a project has a few."""

ENVIRONMENT = MappingProxyType(
    {
        # Nobody could answer, and nothing that is asked for would be right.
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_SYSTEM": SYSTEM,
    }
)

_LFS_PUSH = """\
#!/bin/sh
# Large files go before the commits that name them. Other hooks are off: [sandbox] git_hooks.
test -d "$(git rev-parse --git-common-dir)/lfs" || exit 0
exec git lfs pre-push "$@"
"""


@dataclass(frozen=True, slots=True)
class GitFile:
    """A file to be placed, read-only."""

    content: str
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class GitSettings:
    """What is placed for git; nothing, where none is wanted."""

    system: str = ""
    """The system-wide configuration, wherever a git reads it."""
    files: Mapping[str, GitFile] = field(default_factory=dict)
    """What that refers to."""


@dataclass(frozen=True, slots=True)
class Host:
    """Whose settings are read: the user's variables, home and current directory."""

    env: Mapping[str, str] = field(repr=False)  # it may hold tokens
    home: Path
    directory: Path
    root: Path = Path("/")
    """Where the system's trees are; tests have their own."""


def git_settings(policy: Policy, plan: FilePlan, host: Host) -> GitSettings:
    """All that git is told inside under this policy and file plan."""
    lfs = _has_lfs(host.root)
    hooks = None if policy.sandbox.git_hooks else NO_HOOKS
    files: dict[str, GitFile] = {}
    if hooks and lfs:
        hooks = HOOKS
        files[f"{HOOKS}/pre-push"] = GitFile(_LFS_PUSH, 0o555)
    inclusions: list[Inclusion] = []

    def include(name: str, lines: Iterable[Line], *directories: str) -> None:
        text = config_text(lines)
        if text and directories:
            files[f"{OWN}/{name}"] = GitFile(text)
            inclusions.append(Inclusion(f"{OWN}/{name}", directories))

    who = _Who(policy, plan, host)
    protected = _protected(plan)
    include("protected", READ_ONLY_CONFIG, *(d for path in protected for d in (path, f"{path}/")))
    for number, path in enumerate(list(protected)[:MAX_REPOSITORIES]):
        include(f"{number}.person", who.differs_in(path), path, f"{path}/")
        if policy.sandbox.git_hooks:
            include(f"{number}.hooks", _hooks(path), path, f"{path}/worktrees/")
        for index, (gitdir, tree) in enumerate(_work_trees(path, plan)):
            modules = _settings(_read(f"{tree}/.gitmodules", MAX_MODULES))
            lines = registrations(modules, _settings(protected[path])) if modules else []
            include(f"{number}.{index}.submodules", lines, gitdir)
    system = system_config(policy, who.usual, hooks, lfs=lfs, inclusions=inclusions)
    return GitSettings(system, MappingProxyType(files))


class _Who:
    """Who commits: whom the policy names, else the host's person, who may be another at work."""

    def __init__(self, policy: Policy, plan: FilePlan, host: Host) -> None:
        self._chosen = policy.sandbox.git_user
        self._surroundings = Surroundings(
            host.env, host.home, host.root, tuple(map(Path, plan.writable))
        )
        self.usual = self._in(f"{host.directory}/.git")

    def differs_in(self, git_directory: str) -> list[Line]:
        """Settings for this repository, where the person's own includes another name for it."""
        person = self._in(git_directory)
        return person_lines(person) if person != self.usual else []

    def _in(self, git_directory: str) -> Person:
        return self._chosen or identity(self._surroundings, git_directory)


def _has_lfs(root: Path) -> bool:
    """Whether the sandbox's PATH leads to it: what is searched here is shown there."""
    return any(os.access(root / place[1:] / "git-lfs", os.X_OK) for place in SEARCH)


def _protected(plan: FilePlan) -> dict[str, str]:
    """The repositories whose config the plan covers, each with the config as it is seen inside."""
    found = {}
    for entry in plan.entries:
        path, _, name = entry.target.rpartition("/")
        if name != "config" or not isinstance(entry, Text | Bind) or not _is_repository(path):
            continue
        shown = entry.content if isinstance(entry, Text) else _read(entry.target, MAX_CONFIG)
        found[path] = shown
    return found


def _is_repository(path: str) -> bool:
    try:
        return is_git_directory(path, frozenset(os.listdir(path)))
    except OSError:
        return False


def _hooks(path: str) -> list[Line]:
    """Where its config says that hooks are, which the copy of it inside does not."""
    found = [
        setting.value
        for setting in _settings(_read(f"{path}/config", MAX_CONFIG))
        if (setting.section, setting.subsection, setting.name) == ("core", None, "hookspath")
    ]
    return [("core", None, "hooksPath", found[-1])] if found and found[-1] else []


def _work_trees(path: str, plan: FilePlan) -> Iterator[tuple[str, str]]:
    """The repository's own work tree and those linked to it, each after its directory for git."""
    if path.endswith("/.git"):
        yield path, os.path.dirname(path)
    for entry in plan.entries:
        private, _, name = entry.target.rpartition("/")
        if name == "gitdir" and os.path.dirname(private) == f"{path}/worktrees":
            pointer = os.path.join(private, _read(entry.target, MAX_POINTER).rstrip("\n"))
            yield private, os.path.dirname(os.path.normpath(pointer))


def _settings(text: str) -> tuple[Setting, ...]:
    try:
        return parse(text)
    except BadConfig:
        return ()


def _read(path: str, limit: int) -> str:
    """The text of a file below no link, of so many bytes at most; empty where there is none."""
    try:
        data = read_no_links(path, limit + 1)
    except (OSError, ValueError):
        return ""
    return data.decode("utf-8", "replace") if len(data) <= limit else ""
