"""Writes the files for a sandbox of another tool: certificates, placeholders, our programs.

Called by `door_receiver.py`. The counterpart of `launch_preparation.py`, for a container whose
user, files and command are not Keyhole's to choose: the policy's services, egress and variables
apply, and its file lists do not. The sandbox can read everything written here; it contains no
secret and no key (I1).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.run.daemon_gateway import open_session
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.client_setup import (
    SandboxCertificates,
    SessionPlaceholders,
    build_client_setup,
    inspects_tls,
)
from keyhole.app.setup.git_settings import SYSTEM, GitHostSettings, git_settings
from keyhole.app.setup.launch_preparation import (
    PODS_ALONE,
    RunRequest,
    preset_files,
    preset_variables,
)
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy, with_presets
from keyhole.app.setup.root_reader import open_roots, sandbox_bundle
from keyhole.confine.seccomp import build_filter
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.secret import SecretScheme
from keyhole.model.text import visible
from keyhole.policy.schema import ChangesMode
from keyhole.sandbox import programs
from keyhole.sandbox.containers.composed import PLACE, TERMS, ComposeTerms, boot
from keyhole.sandbox.containers.holder import UID
from keyhole.sandbox.containers.program_volume import fill_program_volume
from keyhole.sandbox.environment import build_environment
from keyhole.sandbox.files.mount_plan import MountPlan, SeedFile, TextFile, Tmpfs, entry_bytes
from keyhole.sandbox.files.trust_paths import TrustStorePaths
from keyhole.sandbox.launch import ResourceLimits
from keyhole.vault.source_paths import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.app.containers.door_receiver_client import ExpectedSandbox
    from keyhole.app.setup.client_setup import ClientSetup
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.client import ControlClient
    from keyhole.control.values import OpenedSession
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.files.mount_plan import Entry

HOME, USER = "/home/sandbox", "sandbox"
"""The home and user in the compose file: a tree in memory, for files that clients need at their
start."""
GIT = f"{PLACE}/gitconfig"
"""Git's system configuration. It replaces /etc/gitconfig, over which nothing is mounted here."""
LABEL = "composed"

ETC, KIT = "etc", "kit"
"""Subdirectories that the sandbox mounts at /etc/keyhole and at /.keyhole."""


class SandboxFilesWriter:
    """Writes files for one sandbox after another."""

    def __init__(self, expected: ExpectedSandbox, places: HostPaths, env: dict[str, str]) -> None:
        self._expected = expected
        self._places = places
        self._env = env

    def prepare(self) -> None:
        """Write our programs once, and remove files of earlier sandboxes. Raises OSError,
        ResourceUnusable."""
        place = self._expected.directory / ETC
        place.mkdir(exist_ok=True)
        _clear(place)
        kit = self._expected.directory / KIT
        kit.mkdir(exist_ok=True)
        fill_program_volume(kit, str(programs.find_programs(contained=True).nft))

    def open(self, client: ControlClient) -> SandboxFiles:
        """Open a session under the present policy.

        Raises Refused, ResourceUnusable or PolicyFaults.
        """
        places, env = self._places, self._env
        file = open_policy(self._expected.policy, places, FileCatalogue())
        examined = examine_policy(file, places.home, env.get("PATH", ""))
        accepted = AcceptanceStore(places.trust).find(file.path)
        if accepted is None or accepted.digest != examined.digest:
            raise Refused(
                f"{visible(str(file.path))} is not what was accepted when the gateway was started;"
                " start it again"
            )
        if file.loaded.policy.sandbox.inbound:
            raise Refused(PODS_ALONE)
        if file.loaded.policy.sandbox.changes is ChangesMode.REVIEW:
            # The compose file mounts the project: nothing here could hold its changes (I11).
            raise Refused(
                'sandbox.changes = "review": a sandbox by compose has no review',
                "`keyhole new` makes a container that has one",
            )
        joined = with_presets(file, env, places)
        intent = RunRequest(examined, joined, places, env, (LABEL,), file.directory)
        stand_ins = SessionPlaceholders(joined.policy, secrets.token_bytes)
        # No person reads a notice about a closed service here, so the gateway is unhealthy.
        opened = open_session(client, intent, stand_ins, (), all_secrets=True)
        policy = joined.policy
        kit = _kit(intent, stand_ins, opened)
        variables = dict(kit.environment) | preset_variables(joined) | _variables(policy)
        entries = (*kit.entries, *preset_files(joined, Path(HOME)))
        bounds = ResourceLimits(policy.limits.processes, policy.limits.memory)
        return SandboxFiles(
            opened,
            policy.limits.ttl,
            self._expected.directory / ETC,
            variables,
            entries,
            bounds,
            self._kept(policy, file.directory),
        )

    def _kept(self, policy: Policy, directory: Path) -> tuple[tuple[int, int], ...]:
        """Device and inode of files that must not be mounted in a sandbox."""
        places = self._places
        paths = [self._expected.door, places.state, places.runtime]
        for service in policy.services:
            if service.secret and service.secret.source is SecretScheme.FILE:
                with contextlib.suppress(ResourceUnusable):  # the vault refuses it
                    text = service.secret.locator
                    paths.append(locate(text, directory, places.home, self._env))
        found = []
        for path in paths:
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_dev, status.st_ino))
        return tuple(found)


class SandboxFiles(Struct, frozen=True):
    """The files of one session, from when its door is served to its end."""

    opened: OpenedSession
    ttl: float
    directory: Path
    environment: Mapping[str, str]
    entries: tuple[Entry, ...]
    bounds: ResourceLimits
    kept: tuple[tuple[int, int], ...]

    def place(self, namespace: str, cookie: bytes) -> None:
        """Write the files. The last one tells the sandbox that the others are complete."""
        _clear(self.directory)
        seeds = []
        for entry in self.entries:
            match entry:
                case SeedFile() | TextFile() if entry.target.startswith(f"{HOME}/"):
                    seeds.append((entry.target, entry.content, entry.mode | 0o200))
                case TextFile():
                    self._write(entry.target, entry_bytes(entry), entry.mode)
        terms = ComposeTerms(
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
        """Prevent further starts, and leave files that a running sandbox may still read."""
        _closed(self.directory)

    def withdraw(self) -> None:
        """Remove the files: without them no sandbox starts."""
        _clear(self.directory)

    def _write(self, target: str, content: bytes, mode: int) -> None:
        """Write a file in one step, readable for another user."""
        target = GIT if target == SYSTEM else target
        path = self.directory / os.path.relpath(target, PLACE)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(path)


def _kit(intent: RunRequest, stand_ins: SessionPlaceholders, opened: OpenedSession) -> ClientSetup:
    policy = intent.joined.policy
    certificates = None
    if inspects_tls(policy):
        authority = opened.ca.encode("ascii")
        bundle = sandbox_bundle(open_roots(policy, intent.examined), authority)
        certificates = SandboxCertificates(authority, bundle, lambda: b"")
    home = Path(HOME)
    git = git_settings(policy, MountPlan((), ()), GitHostSettings({}, home, home))
    today = datetime.date.today().isoformat()
    shown = (Tmpfs(HOME, 0),)
    # The image's files are not known here, so variables name the bundle.
    nowhere = TrustStorePaths((), ())
    return build_client_setup(
        policy, certificates, shown, home, stand_ins, today, git=git, stores=nowhere
    )


def _variables(policy: Policy) -> dict[str, str]:
    """The policy's variables; the image's PATH stays unless the policy sets one."""
    made = build_environment(policy.sandbox, {}, HOME, USER)
    if "PATH" not in dict(policy.sandbox.env):
        del made["PATH"]
    return made | {"GIT_CONFIG_SYSTEM": GIT}


def _clear(directory: Path) -> None:
    """Remove all files, first the one that says that the others are complete."""
    _closed(directory)
    for path in sorted(_below(directory), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _closed(directory: Path) -> None:
    (directory / os.path.basename(TERMS)).unlink(missing_ok=True)


def _below(directory: Path) -> Iterable[Path]:
    return list(directory.rglob("*"))
