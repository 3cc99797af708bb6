"""Git's settings for a sandbox: files and variables by which an unmodified git works inside.

Called when a run is prepared, after the mount plan; `client_setup.py` mounts the files, and
`policy` writes their text. Nothing is run, and of the host's settings only the user's name and
address are used (I1, I11).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.app.setup.signing_key import (
    find_key,
    read_public_key,
    refuse_writable_keyring,
    signing_programs,
)
from keyhole.app.setup.submodules import submodule_settings
from keyhole.host.git_config import parse
from keyhole.host.git_identity import git_identity, wants_signed_commits
from keyhole.host.host_environment import HostEnvironment
from keyhole.model.errors import Malformed, Refused
from keyhole.model.redacted import redacted_repr
from keyhole.policy.git_settings import (
    COPIED_CONFIG,
    NO_HOOKS,
    READ_ONLY_CONFIG,
    Inclusion,
    config_text,
    openpgp_lines,
    person_lines,
    signing_lines,
    system_config,
)
from keyhole.policy.signing import openpgp_key
from keyhole.sandbox.files.git_config import MAX_CONFIG
from keyhole.sandbox.files.mount_plan import Bind, MountPlan, TextFile
from keyhole.sandbox.files.triggers import is_git_directory
from keyhole.system.programs import SEARCH
from keyhole.system.walk import read_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from keyhole.host.git_config import GitSetting
    from keyhole.model.commit_identity import CommitIdentity
    from keyhole.policy.git_settings import Line
    from keyhole.policy.policy import Policy

SYSTEM = "/etc/gitconfig"
"""The file that git reads first, unless its packager chose another place."""
OTHERS = ("/usr/local/etc/gitconfig", "/usr/etc/gitconfig")
"""The paths at which a git built from source looks instead; the host's files there are covered."""
OWN = "/etc/keyhole/git"
"""The directory of files for some repositories alone."""
HOOKS = f"{OWN}/hooks"
SIGN = f"{OWN}/sign"

NOT_SIGNED = (
    "your git settings have commits signed; those made in the sandbox are not, because your key is"
    " not there. `sandbox.sign` names a key to sign them with"
)

MAX_MODULES = 1 << 16
"""Bytes of a `.gitmodules`: about 500 submodules."""
MAX_POINTER = 4096
"""Bytes of a file that holds one path."""
MAX_REPOSITORIES = 64
"""Repositories that are looked into for submodules and hooks; a project has a few."""

ENVIRONMENT = MappingProxyType(
    {
        # A prompt could not be answered, and no answer would be right.
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


class GitFile(Struct, frozen=True):
    """A file to be placed, read-only."""

    content: str
    mode: int = 0o444


class GitSettings(Struct, frozen=True):
    """Git's files for the sandbox; empty where none is needed."""

    system: str = ""
    """The system-wide configuration, wherever a git reads it."""
    files: Mapping[str, GitFile] = field(default_factory=dict)
    """The files that those refer to."""
    notices: tuple[str, ...] = ()
    """Lines for the person, once."""


class GitHostSettings(Struct, frozen=True):
    """The user's variables, home and current directory, from which settings are read."""

    env: Mapping[str, str]  # it may hold tokens
    home: Path
    directory: Path
    root: Path = Path("/")
    """The directory that holds the system's trees; tests have their own."""
    interpreter: tuple[str, ...] = ()
    """The words that start our interpreter inside."""

    __repr__ = redacted_repr("env")


def git_settings(policy: Policy, plan: MountPlan, host: GitHostSettings) -> GitSettings:
    """Git's settings inside, under this policy and mount plan. Raises Refused where commits cannot
    be signed as the policy says."""
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

    who = _Committer(policy, plan, host)
    protected = _protected(plan)
    copied = _copied(plan)
    for name, usual in (("protected", READ_ONLY_CONFIG), ("copied", COPIED_CONFIG)):
        chosen = [path for path in protected if (path in copied) == (name == "copied")]
        include(name, usual, *(d for path in chosen for d in (path, f"{path}/")))
    for number, path in enumerate(list(protected)[:MAX_REPOSITORIES]):
        include(f"{number}.person", who.differs_in(path), path, f"{path}/")
        if policy.sandbox.git_hooks:
            include(f"{number}.hooks", _hooks(path), path, f"{path}/worktrees/")
        for index, (gitdir, tree) in enumerate(_work_trees(path, plan)):
            modules = _settings(_read(f"{tree}/.gitmodules", MAX_MODULES))
            lines = submodule_settings(modules, _settings(protected[path])) if modules else []
            include(f"{number}.{index}.submodules", lines, gitdir)
    signing: list[Line] = []
    if policy.sandbox.sign:
        if not host.interpreter:
            raise Refused(
                "sandbox.sign: commits of a sandbox by compose are not signed",
                "`keyhole new` makes a container in which they are",
            )
        writable = tuple(map(Path, plan.writable))
        openpgp = openpgp_key(policy)
        if openpgp:
            refuse_writable_keyring(host.env, host.home, writable)
            signing = openpgp_lines(SIGN, openpgp)
        else:
            key = read_public_key(find_key(policy, host.home, writable))
            signing = signing_lines(SIGN, key)
        programs = signing_programs(SIGN, host.interpreter, openpgp=bool(openpgp))
        files |= {path: GitFile(text, 0o555) for path, text in programs.items()}
    system = system_config(
        policy, who.usual, hooks, lfs=lfs, inclusions=inclusions, signing=signing
    )
    unsigned = not policy.sandbox.sign and who.signs
    return GitSettings(system, MappingProxyType(files), (NOT_SIGNED,) if unsigned else ())


class _Committer:
    """The committer: from the policy, else from the host's settings for this project."""

    def __init__(self, policy: Policy, plan: MountPlan, host: GitHostSettings) -> None:
        self._chosen = policy.sandbox.git_user
        self._surroundings = HostEnvironment(
            host.env, host.home, host.root, tuple(map(Path, plan.writable))
        )
        self._git_directory = f"{host.directory}/.git"
        self.usual = self._in(self._git_directory)

    @property
    def signs(self) -> bool:
        """Whether the person's settings have commits of this project signed."""
        return wants_signed_commits(self._surroundings, self._git_directory)

    def differs_in(self, git_directory: str) -> list[Line]:
        """Settings for this repository, where the person's own includes another name for it."""
        person = self._in(git_directory)
        return person_lines(person) if person != self.usual else []

    def _in(self, git_directory: str) -> CommitIdentity:
        return self._chosen or git_identity(self._surroundings, git_directory)


def _has_lfs(root: Path) -> bool:
    """Whether the sandbox's PATH leads to it: these directories are visible inside."""
    return any(os.access(root / place[1:] / "git-lfs", os.X_OK) for place in SEARCH)


def _protected(plan: MountPlan) -> dict[str, str]:
    """The repositories with a covered config, each with the config as seen inside."""
    found = {}
    for entry in plan.entries:
        path, _, name = entry.target.rpartition("/")
        if name != "config" or not isinstance(entry, TextFile | Bind) or not _is_repository(path):
            continue
        shown = entry.content if isinstance(entry, TextFile) else _read(entry.target, MAX_CONFIG)
        found[path] = shown
    return found


def _copied(plan: MountPlan) -> frozenset[str]:
    """The repositories whose config is a copy that git can write."""
    texts = (e for e in plan.entries if isinstance(e, TextFile) and e.own_copy)
    return frozenset(os.path.dirname(text.target) for text in texts)


def _is_repository(path: str) -> bool:
    try:
        return is_git_directory(path, frozenset(os.listdir(path)))
    except OSError:
        return False


def _hooks(path: str) -> list[Line]:
    """The hooks directory in its config, which the copy inside leaves out."""
    found = [
        setting.value
        for setting in _settings(_read(f"{path}/config", MAX_CONFIG))
        if (setting.section, setting.subsection, setting.name) == ("core", None, "hookspath")
    ]
    return [("core", None, "hooksPath", found[-1])] if found and found[-1] else []


def _work_trees(path: str, plan: MountPlan) -> Iterator[tuple[str, str]]:
    """The repository's own work tree and those linked to it, each after its directory for git."""
    if path.endswith("/.git"):
        yield path, os.path.dirname(path)
    for entry in plan.entries:
        private, _, name = entry.target.rpartition("/")
        if name == "gitdir" and os.path.dirname(private) == f"{path}/worktrees":
            pointer = os.path.join(private, _read(entry.target, MAX_POINTER).rstrip("\n"))
            yield private, os.path.dirname(os.path.normpath(pointer))


def _settings(text: str) -> tuple[GitSetting, ...]:
    try:
        return parse(text)
    except Malformed:
        return ()


def _read(path: str, limit: int) -> str:
    """The text of a file below no link, of so many bytes at most; empty where there is none."""
    try:
        data = read_no_links(path, limit + 1)
    except (OSError, ValueError):
        return ""
    return data.decode("utf-8", "replace") if len(data) <= limit else ""
