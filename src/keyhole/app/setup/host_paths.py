"""The directories and files that Keyhole uses on the host. Made by `cli/` from its variables."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

POLICY_NAME = "keyhole.toml"

_OF_REPOSITORIES = (".git", ".hg", ".jj", ".svn", ".bzr", ".pijul", "_darcs", ".fslckout")
"""Names of entries at the root of a working copy, of git and of other systems."""


class HostPaths(Struct, frozen=True):
    """The host's directories for one user."""

    home: Path
    config: Path
    state: Path
    runtime: Path
    """The control socket's, see `control.socket_directory`; gone with the login."""

    def told(self) -> dict[str, str]:
        """The directories as texts, for another process of Keyhole."""
        return {name: str(getattr(self, name)) for name in self.__struct_fields__}

    @classmethod
    def read(cls, told: Mapping[str, str]) -> HostPaths:
        """The inverse of `told`; other members are left alone."""
        return cls(*(Path(told[name]) for name in cls.__struct_fields__))

    @property
    def control_socket(self) -> Path:
        """The socket of `keyhole up`'s gateway, as `control.socket_directory` names it. A run looks
        for it before it imports that module."""
        return self.runtime / "control.sock"

    @property
    def user_defaults(self) -> Path:
        """Secrets by service name and default limits."""
        return self.config / "config.toml"

    @property
    def schema(self) -> Path:
        """The JSON Schema of a policy, for editors."""
        return self.state / "policy.schema.json"

    @property
    def tried(self) -> Path:
        """The file of set-ups that passed the self-test since this boot."""
        return self.state / "selftest.json"

    @property
    def trust(self) -> Path:
        """The directory of accepted policies."""
        return self.state / "trust"

    @property
    def store(self) -> Path:
        """Keyhole's own secrets."""
        return self.state / "secrets"

    @property
    def quarantine(self) -> Path:
        """The directory for pushes that are being judged; its files have no names."""
        return self.state / "quarantine"

    @property
    def sessions(self) -> Path:
        """The directory of sandboxes that a gateway serves, for the next gateway if it dies."""
        return self.state / "sessions"

    @property
    def findings(self) -> Path:
        """The directory of findings, a file for each project."""
        return self.state / "findings"

    @property
    def tools(self) -> Path:
        """Tools of MCP servers that were seen, a file for each policy."""
        return self.state / "tools"

    @property
    def notices(self) -> Path:
        """Which notices were said, a file for each project."""
        return self.state / "notices"

    @property
    def answers(self) -> Path:
        """Answers of slow programs of the host."""
        return self.state / "answers"

    @property
    def changes(self) -> Path:
        """Changes that are held for review, a directory for each project and policy."""
        return self.state / "changes"

    @property
    def spending(self) -> Path:
        """The account of what sessions have spent."""
        return self.state / "spending"

    @property
    def sandboxes(self) -> Path:
        """The directories of named sandboxes."""
        return self.state / "sandboxes"

    @property
    def homes(self) -> Path:
        """Homes and caches that are kept for sandboxes."""
        return self.state / "homes"

    @property
    def faults(self) -> Path:
        """Reports of errors in Keyhole itself."""
        return self.state / "faults"

    @property
    def ports(self) -> Path:
        """The register of ports of this host that Keyhole itself listens on."""
        return self.runtime / "ports"

    @property
    def gateway_log(self) -> Path:
        """Messages of a gateway in the background; decisions are in the audit log."""
        return self.state / "gateway.log"

    @property
    def audit(self) -> Path:
        """The event log's files."""
        return self.state / "audit"


def _is_root(directory: str) -> bool:
    """Whether a repository begins here: a policy above is not meant for a clone in its tree."""
    return any(os.path.lexists(f"{directory}/{name}") for name in _OF_REPOSITORIES)


def find_policy(directory: Path, home: Path) -> Path:
    """The policy of a directory: its own, or that of the nearest directory above it.

    The search ends at the root of a repository, at the home, and before a directory of another
    owner or one that every user can write, so that another user's file is not taken. Where
    there is none, the directory's own is named, which `open_policy` reports as missing.
    """
    own = Path(POLICY_NAME)
    try:
        here = os.path.realpath(directory)
        owner, steps = os.stat(here).st_uid, 0
        while True:
            if os.path.lexists(f"{here}/{POLICY_NAME}"):
                return Path(*[".."] * steps, POLICY_NAME)
            above = os.path.dirname(here)
            if here in (above, os.path.realpath(home)) or _is_root(here):
                return own
            found = os.stat(above)
            if found.st_uid != owner or found.st_mode & stat.S_IWOTH:
                return own
            here, steps = above, steps + 1
    except OSError:
        return own
