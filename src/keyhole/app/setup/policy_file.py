"""A policy from disk, read once: the bytes that are judged are the bytes that are parsed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.host import presets
from keyhole.host.host_environment import HostEnvironment
from keyhole.host.suffixes import covered_suffix
from keyhole.model.errors import Refused
from keyhole.policy.build import PolicyContext
from keyhole.policy.document import MAX_DOCUMENT_SIZE
from keyhole.policy.load import (
    LoadedPolicy,
    PolicyText,
    load,
    load_desktop_wish,
    load_gateway_limits,
)
from keyhole.policy.presets import join_presets
from keyhole.vault.interface import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.inject.preset import Preset
    from keyhole.model.host import Host, HostPattern
    from keyhole.policy.budget import GatewayLimits
    from keyhole.policy.policy import Policy


class PolicyFile(Struct, frozen=True):
    """A valid policy, its path, and the bytes that it was parsed from."""

    path: Path
    data: bytes
    loaded: LoadedPolicy
    marks: Mapping[Path, object] = field(default_factory=dict)
    """The marks of this file and of the user's defaults from before they were read: a watcher that
    begins later compares with these."""

    @property
    def directory(self) -> Path:
        """The directory to which the policy's paths are relative."""
        return self.path.parent


def read_bounded(path: Path, limit: int = MAX_DOCUMENT_SIZE) -> bytes:
    """A regular file's bytes, at most one over the limit; never a device, pipe or directory."""
    try:
        # Without O_NONBLOCK, a pipe in its place would block the run for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{path}: not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)


def open_policy(path: Path, places: HostPaths, catalogue: FileCatalogue) -> PolicyFile:
    """Read and validate a policy with the user's defaults under it; raises PolicyFaults."""
    if not _is_there(path):
        raise Refused(f"no policy at {path}; `keyhole init` writes one")
    mark = mark_of(path)
    return parse_policy(path, read_bounded(path), places, catalogue, mark)


def parse_policy(
    path: Path, data: bytes, places: HostPaths, catalogue: FileCatalogue, mark: object = None
) -> PolicyFile:
    """Validate these bytes as the policy at a path, whose mark from before it was read is kept;
    raises PolicyFaults."""
    defaults = mark_of(places.user_defaults)
    world = PolicyContext(catalogue, covered_suffix, presets.NAMES)
    loaded = load(PolicyText(str(path), data), _user_defaults(places), world)
    real = Path(os.path.realpath(path))
    return PolicyFile(real, data, loaded, {real: mark, places.user_defaults: defaults})


def _is_there(path: Path) -> bool:
    """Whether the file exists. A file that cannot be examined does not count as missing: otherwise
    the user's own limits could be lost."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise Refused(f"{path}: {error.strerror}") from None
    return True


def open_gateway_limits(places: HostPaths) -> GatewayLimits:
    """The limits of all sandboxes of one gateway together. Raises PolicyFaults or Refused."""
    return load_gateway_limits(_user_defaults(places))


def wants_desktop(places: HostPaths) -> bool:
    """Whether the user wants questions on the desktop. Raises PolicyFaults or Refused."""
    return load_desktop_wish(_user_defaults(places))


def _user_defaults(places: HostPaths) -> PolicyText | None:
    path = places.user_defaults
    return PolicyText(str(path), read_bounded(path)) if _is_there(path) else None


def preset_of(
    file: PolicyFile, env: dict[str, str], places: HostPaths, host: Host, port: int
) -> str | None:
    """The preset, of those that the policy does not name, that would allow this host."""
    return known_presets(file, env, places)(host, port)


def known_presets(
    file: PolicyFile, env: dict[str, str], places: HostPaths
) -> Callable[[Host, int], str | None]:
    """The same for many hosts: each package manager is asked once, and only if it must be."""
    surroundings = _surroundings(file, env, places)
    learnt: dict[str, Preset | None] = {}

    def hosts_of(name: str) -> tuple[HostPattern, ...]:
        if name not in learnt:
            try:
                learnt[name] = presets.learn(name, surroundings)
            except Refused:
                learnt[name] = None
        preset = learnt[name]
        return tuple(each.pattern for each in preset.hosts) if preset else ()

    def find(host: Host, port: int) -> str | None:
        for name in presets.QUICK_FIRST:
            if name in file.loaded.policy.presets:
                continue
            if any(pattern.matches(host) and pattern.port == port for pattern in hosts_of(name)):
                return name
        return None

    return find


def _surroundings(file: PolicyFile, env: dict[str, str], places: HostPaths) -> HostEnvironment:
    listed = file.loaded.policy.sandbox.writable
    writable = tuple((file.directory / p).expanduser().resolve() for p in listed)
    return HostEnvironment(env, places.home, writable=writable, answers=places.answers)


class PolicyWithPresets(Struct, frozen=True):
    """A policy with its presets: it contains their grants; their variables and files are beside
    it."""

    policy: Policy
    presets: tuple[Preset, ...]
    notes: tuple[str, ...]


def with_presets(file: PolicyFile, env: dict[str, str], places: HostPaths) -> PolicyWithPresets:
    """The policy joined with the settings of this host's package managers."""
    policy = file.loaded.policy
    surroundings = _surroundings(file, env, places)
    learnt, notes = [], []
    for name in policy.presets:
        try:
            learnt.append(presets.learn(name, surroundings))
        except Refused as error:
            notes.append(f"preset.{name}: {error}")
    joined, more = join_presets(policy, learnt)
    return PolicyWithPresets(joined, tuple(learnt), (*notes, *more))
