"""What a sandbox that others make finds in its mounts: certificates, placeholders, our programs.

Called by `doorkeeper.py`. The counterpart of `prepare.py`, for a container whose user, files and
command are not Keyhole's to choose: of the policy, what concerns services, egress and variables
holds, and its file lists do not. Everything written here is for the sandbox to read; no secret and
no key is among it (I1).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.attached import open_session
from keyhole.app.catalogue import FileCatalogue
from keyhole.app.gitsettings import SYSTEM, Host, git_settings
from keyhole.app.kit import Certificates, StandIns, Stores, build, inspects
from keyhole.app.policyfile import open_policy, with_presets
from keyhole.app.prepare import Intent, preset_files, preset_variables
from keyhole.app.trust import TrustStore, examine
from keyhole.model.secret import Source
from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox import programs
from keyhole.sandbox.containers.composed import PLACE, TERMS, Terms, boot
from keyhole.sandbox.containers.holder import UID
from keyhole.sandbox.containers.kitvolume import fill_kit
from keyhole.sandbox.environment import build_environment
from keyhole.sandbox.files.fileplan import FilePlan, Refused, Seed, Text, Tmpfs
from keyhole.sandbox.launch import Bounds
from keyhole.sandbox.seccomp import build_filter
from keyhole.vault.files import NoPlace, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.app.doorway import Expected
    from keyhole.app.kit import Kit
    from keyhole.app.places import Places
    from keyhole.control.client import Client
    from keyhole.control.values import Opened
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.files.fileplan import Entry

HOME, USER = "/home/sandbox", "sandbox"
"""As the compose file has them: a tree in memory, for files that clients begin with."""
GIT = f"{PLACE}/gitconfig"
"""In place of /etc/gitconfig, over which nothing is mounted here."""
LABEL = "composed"

ETC, KIT = "etc", "kit"
"""Below the directory that is furnished: what the sandbox has at /etc/keyhole, and at /.keyhole."""


class Furniture:
    """Writes for one sandbox after the other."""

    def __init__(self, expected: Expected, places: Places, env: dict[str, str]) -> None:
        self._expected = expected
        self._places = places
        self._env = env

    def prepare(self) -> None:
        """Once: our programs, and nothing of a sandbox before. Raises OSError, Missing."""
        place = self._expected.furnish / ETC
        place.mkdir(exist_ok=True)
        _clear(place)
        kit = self._expected.furnish / KIT
        kit.mkdir(exist_ok=True)
        fill_kit(kit, str(programs.find(contained=True).nft))

    def open(self, client: Client) -> Furnishing:
        """A session under the policy as it is now. Raises Refused, Unreadable, PolicyFaults."""
        places, env = self._places, self._env
        file = open_policy(self._expected.policy, places, FileCatalogue())
        dossier = examine(file, places.home, env.get("PATH", ""))
        accepted = TrustStore(places.trust).find(file.path)
        if accepted is None or accepted.digest != dossier.digest:
            raise Refused(
                f"{visible(str(file.path))} is not what was accepted when the gateway was started;"
                " start it again"
            )
        joined = with_presets(file, env, places.home)
        intent = Intent(dossier, joined, places, env, (LABEL,), file.directory)
        stand_ins = StandIns(joined.policy, secrets.token_bytes)
        opened = open_session(client, intent, stand_ins, ())
        policy = joined.policy
        kit = _kit(intent, stand_ins, opened)
        variables = dict(kit.environment) | preset_variables(joined) | _variables(policy)
        entries = (*kit.entries, *preset_files(joined, Path(HOME)))
        bounds = Bounds(policy.limits.processes, policy.limits.memory)
        return Furnishing(
            opened,
            policy.limits.ttl,
            self._expected.furnish / ETC,
            variables,
            entries,
            bounds,
            self._kept(policy, file.directory),
        )

    def _kept(self, policy: Policy, directory: Path) -> tuple[tuple[int, int], ...]:
        """What no sandbox may have mounted, by what the kernel calls it."""
        places = self._places
        paths = [self._expected.door, places.state, places.runtime]
        for service in policy.services:
            if service.secret and service.secret.source is Source.FILE:
                with contextlib.suppress(NoPlace):  # the vault refuses it
                    text = service.secret.locator
                    paths.append(locate(text, directory, places.home, self._env))
        found = []
        for path in paths:
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_dev, status.st_ino))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What is written for one session, from when its door is served to its end."""

    opened: Opened
    ttl: float
    directory: Path
    environment: Mapping[str, str]
    entries: tuple[Entry, ...]
    bounds: Bounds
    kept: tuple[tuple[int, int], ...]

    def place(self, namespace: str, cookie: bytes) -> None:
        """Write it; by the last file the sandbox knows that the others are there."""
        _clear(self.directory)
        seeds = []
        for entry in self.entries:
            match entry:
                case Seed() | Text() if entry.target.startswith(f"{HOME}/"):
                    seeds.append((entry.target, entry.content, entry.mode | 0o200))
                case Text():
                    self._write(entry.target, entry.content.encode(), entry.mode)
        terms = Terms(
            namespace=namespace,
            cookie=cookie,
            boot=boot(),
            holder=UID,
            environment=dict(self.environment),
            seeds=tuple(seeds),
            program=build_filter(),
            open_files=self.bounds.open_files,
            memory=self.bounds.memory,
            kept=self.kept,
        )
        self._write(TERMS, terms.packed(), 0o444)

    def close(self) -> None:
        """Have no sandbox start, and leave what one that runs may still read."""
        _closed(self.directory)

    def withdraw(self) -> None:
        """Take it away: without it no sandbox starts."""
        _clear(self.directory)

    def _write(self, target: str, content: bytes, mode: int) -> None:
        """Whole or not at all, readable for a user that is not ours."""
        target = GIT if target == SYSTEM else target
        path = self.directory / os.path.relpath(target, PLACE)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(path)


def _kit(intent: Intent, stand_ins: StandIns, opened: Opened) -> Kit:
    policy = intent.joined.policy
    certificates = None
    if inspects(policy):
        from keyhole.app.roots import open_roots

        authority = opened.ca.encode("ascii")
        bundle = open_roots(policy, intent.dossier).bundle(authority)
        certificates = Certificates(authority, bundle, lambda: b"")
    home = Path(HOME)
    git = git_settings(policy, FilePlan((), ()), Host({}, home, home))
    today = datetime.date.today().isoformat()
    shown = (Tmpfs(HOME, 0),)
    nowhere = Stores((), ())  # what the image has is not known here; variables name the bundle
    return build(policy, certificates, shown, home, stand_ins, today, git=git, stores=nowhere)


def _variables(policy: Policy) -> dict[str, str]:
    """What the policy sets; the image's PATH stays unless it says another."""
    made = build_environment(policy.sandbox, {}, HOME, USER)
    if "PATH" not in dict(policy.sandbox.env):
        del made["PATH"]
    return made | {"GIT_CONFIG_SYSTEM": GIT}


def _clear(directory: Path) -> None:
    """What says that all is there goes first."""
    _closed(directory)
    for path in sorted(_below(directory), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _closed(directory: Path) -> None:
    (directory / os.path.basename(TERMS)).unlink(missing_ok=True)


def _below(directory: Path) -> Iterable[Path]:
    return list(directory.rglob("*"))
