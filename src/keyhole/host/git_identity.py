"""Reads the commit identity of this host: `user.name` and `user.email` of the user's git settings,
and whether they have commits signed.

Called before a run. Git is not asked, because in a hostile tree it reads that tree's config first.
Files are read in git's order, with includes, each only if the sandbox cannot write it (I11); of all
their settings, three values leave this module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host.git_config import GitSetting, parse
from keyhole.model.commit_identity import CommitIdentity, is_plain
from keyhole.model.errors import Malformed
from keyhole.model.glob import ANY_DEPTH, Glob, fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.host_environment import HostEnvironment

MAX_INCLUDES = 10
"""Depth of includes: git's own bound."""
MAX_FILES = 64
"""Files that are read in all: without it, ten levels of ten includes each are 10^10 files."""


def git_identity(surroundings: HostEnvironment, git_directory: str) -> CommitIdentity:
    """The identity that the settings give for the repository with this git directory."""
    reading = _Reading(surroundings, git_directory)
    found = CommitIdentity()
    for path in _files(surroundings):
        for setting in reading.settings(path, 0):
            if setting.section != "user" or setting.subsection is not None:
                continue
            value = setting.value or ""
            if value and not is_plain(value):
                continue
            if setting.name == "name":
                found = CommitIdentity(value, found.email)
            elif setting.name == "email":
                found = CommitIdentity(found.name, value)
    return found


def wants_signed_commits(surroundings: HostEnvironment, git_directory: str) -> bool:
    """Whether the settings have git sign every commit of the repository."""
    reading = _Reading(surroundings, git_directory)
    wanted = False
    for path in _files(surroundings):
        for setting in reading.settings(path, 0):
            if (setting.section, setting.subsection, setting.name) == ("commit", None, "gpgsign"):
                # A name without a value means true.
                value = "true" if setting.value is None else setting.value.lower()
                wanted = value in ("true", "yes", "on", "1")
    return wanted


def _files(surroundings: HostEnvironment) -> list[Path]:
    """The system's files, then the user's: later ones win."""
    chosen = surroundings.env.get("GIT_CONFIG_GLOBAL")
    if chosen is not None:
        own = [Path(chosen)]
    else:
        own = [surroundings.config_home() / "git/config", surroundings.home / ".gitconfig"]
    return [surroundings.at("/etc/gitconfig"), *own]


class _Reading:
    def __init__(self, surroundings: HostEnvironment, git_directory: str) -> None:
        self._surroundings = surroundings
        self._git_directory = git_directory
        self._left = MAX_FILES

    def settings(self, path: Path, depth: int) -> Iterator[GitSetting]:
        """A file's settings with those of its includes in their place."""
        if depth > MAX_INCLUDES or not self._left:
            return
        self._left -= 1
        text = self._surroundings.read(path)
        try:
            found = parse(text or "")
        except Malformed:
            return
        for setting in found:
            if self._includes(setting, path) and setting.value:
                yield from self.settings(self._expand(setting.value, path), depth + 1)
            else:
                yield setting

    def _includes(self, setting: GitSetting, path: Path) -> bool:
        if setting.name != "path":
            return False
        if setting.section == "include":
            return setting.subsection is None
        return setting.section == "includeif" and self._holds(setting.subsection or "", path)

    def _holds(self, condition: str, path: Path) -> bool:
        """Whether it names this repository's directory. Other conditions (branches, remotes) would
        need facts of the repository, which is not trusted here."""
        kind, _, pattern = condition.partition(":")
        if kind not in ("gitdir", "gitdir/i") or not pattern:
            return False
        if pattern.startswith(("~/", "./")):
            pattern = str(self._expand(pattern, path)) + ("/" if pattern.endswith("/") else "")
        if not pattern.startswith("/"):
            pattern = f"/{ANY_DEPTH}/{pattern}"
        if pattern.endswith("/"):
            pattern += ANY_DEPTH
        glob = Glob(tuple(pattern.split("/")))
        subject = tuple(os.path.realpath(self._git_directory).split("/"))
        if kind == "gitdir/i":
            glob, subject = glob.folded(), tuple(map(fold, subject))
        return glob.matches(subject)

    def _expand(self, text: str, path: Path) -> Path:
        return path.parent / self._surroundings.expand(text)
