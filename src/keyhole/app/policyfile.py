"""A policy from disk, read once: the bytes that are judged are the bytes that are parsed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host import presets
from keyhole.host.errors import NotFound
from keyhole.host.suffixes import covered_suffix
from keyhole.model.value import dataclass
from keyhole.policy.build import World
from keyhole.policy.document import MAX_DOCUMENT_SIZE
from keyhole.policy.load import File, Loaded, load, load_gateway_limits
from keyhole.policy.presets import join_presets

if TYPE_CHECKING:
    from keyhole.app.catalogue import FileCatalogue
    from keyhole.app.places import Places
    from keyhole.inject.preset import Preset
    from keyhole.policy.budget import GatewayLimits
    from keyhole.policy.policy import Policy


class Unreadable(Exception):
    """A file that cannot be used, with what to do about it."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A valid policy, where it is, and the bytes it was made from."""

    path: Path
    data: bytes
    loaded: Loaded

    @property
    def directory(self) -> Path:
        """What the policy's relative paths are relative to."""
        return self.path.parent


def read_bounded(path: Path, limit: int = MAX_DOCUMENT_SIZE) -> bytes:
    """A regular file's bytes, at most one over the limit; never a device, pipe or directory."""
    try:
        # Without O_NONBLOCK, a pipe left in its place would hold the run for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable(f"{path}: not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)


def open_policy(path: Path, places: Places, catalogue: FileCatalogue) -> PolicyFile:
    """Read and validate a policy with the user's defaults under it; raises PolicyFaults."""
    if not _is_there(path):
        raise Unreadable(f"no policy at {path}; `keyhole init` writes one")
    data = read_bounded(path)
    user = None
    if _is_there(places.user_defaults):
        user = File(str(places.user_defaults), read_bounded(places.user_defaults))
    world = World(catalogue, covered_suffix, presets.NAMES)
    loaded = load(File(str(path), data), user, world)
    return PolicyFile(Path(os.path.realpath(path)), data, loaded)


def _is_there(path: Path) -> bool:
    """Whether there is something to read. What cannot be looked at is not taken for missing: the
    user's own limits would be, too."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise Unreadable(f"{path}: {error.strerror}") from None
    return True


def open_gateway_limits(places: Places) -> GatewayLimits:
    """What all sandboxes of one gateway may use together; raises PolicyFaults or Unreadable."""
    path = places.user_defaults
    return load_gateway_limits(File(str(path), read_bounded(path)) if _is_there(path) else None)


@dataclass(frozen=True, slots=True)
class Joined:
    """A policy with its presets: what they grant is in it, what they set inside is beside it."""

    policy: Policy
    presets: tuple[Preset, ...]
    notes: tuple[str, ...]


def with_presets(file: PolicyFile, env: dict[str, str], home: Path) -> Joined:
    """The policy joined with what this host's package managers say."""
    from keyhole.host.surroundings import Surroundings  # it brings what runs programs

    policy = file.loaded.policy
    writable = tuple((file.directory / p).expanduser().resolve() for p in policy.sandbox.writable)
    surroundings = Surroundings(env=env, home=home, writable=writable)
    learnt, notes = [], []
    for name in policy.presets:
        try:
            learnt.append(presets.learn(name, surroundings))
        except NotFound as error:
            notes.append(f"preset.{name}: {error}")
    joined, more = join_presets(policy, learnt)
    return Joined(joined, tuple(learnt), (*notes, *more))
