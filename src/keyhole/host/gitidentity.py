"""Who commits on this host: `user.name` and `user.email` of the person's own git settings.

Called before a run. Git is not asked: in a hostile tree it reads that tree's config first. Files
are read here in git's order, includes followed, each only if the sandbox has no say in it (I11);
of all their settings two values leave this module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host.gitconfig import BadConfig, Setting, parse
from keyhole.model.glob import ANY_DEPTH, Glob, fold
from keyhole.model.person import Person, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.surroundings import Surroundings

MAX_INCLUDES = 10
"""How deep includes go: git's own bound."""
MAX_FILES = 64
"""Files read in all: ten that each include ten others are 10^10."""


def identity(surroundings: Surroundings, git_directory: str) -> Person:
    """The person, as far as the settings tell, in the repository with this directory of git's."""
    reading = _Reading(surroundings, git_directory)
    found = Person()
    for path in _files(surroundings):
        for setting in reading.settings(path, 0):
            if setting.section != "user" or setting.subsection is not None:
                continue
            value = setting.value or ""
            if value and not is_plain(value):
                continue
            if setting.name == "name":
                found = Person(value, found.email)
            elif setting.name == "email":
                found = Person(found.name, value)
    return found


def _files(surroundings: Surroundings) -> list[Path]:
    """The system's, then the user's: later ones win."""
    chosen = surroundings.env.get("GIT_CONFIG_GLOBAL")
    if chosen is not None:
        own = [Path(chosen)]
    else:
        own = [surroundings.config_home() / "git/config", surroundings.home / ".gitconfig"]
    return [surroundings.at("/etc/gitconfig"), *own]


class _Reading:
    def __init__(self, surroundings: Surroundings, git_directory: str) -> None:
        self._surroundings = surroundings
        self._git_directory = git_directory
        self._left = MAX_FILES

    def settings(self, path: Path, depth: int) -> Iterator[Setting]:
        """A file's settings with those of its includes in their place."""
        if depth > MAX_INCLUDES or not self._left:
            return
        self._left -= 1
        text = self._surroundings.read(path)
        try:
            found = parse(text or "")
        except BadConfig:
            return
        for setting in found:
            if self._includes(setting, path) and setting.value:
                yield from self.settings(self._expand(setting.value, path), depth + 1)
            else:
                yield setting

    def _includes(self, setting: Setting, path: Path) -> bool:
        if setting.name != "path":
            return False
        if setting.section == "include":
            return setting.subsection is None
        return setting.section == "includeif" and self._holds(setting.subsection or "", path)

    def _holds(self, condition: str, path: Path) -> bool:
        """Whether it names this repository's directory; other conditions (branches, remotes) would
        have to be asked of the repository, whose word does not count here."""
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
