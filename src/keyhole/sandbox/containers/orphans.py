"""Finds and removes what a killed run leaves in an engine.

No process is left: the holder ends with its run, and the sandbox with the holder. Ended containers
and files are left. A living run holds a lock on its directory, which the kernel releases with it.
Called by `keyhole prune`, and by runs for their own directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.containers import container_spec, holder_image
from keyhole.sandbox.containers.engine_client import EngineFailed
from keyhole.sandbox.containers.idmapped_mounts import unmount_idmapped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine

_ALIVE = "alive"
_SESSION = re.compile("[0-9a-f]{12}")
_IMAGES = (f"{container_spec.IMAGE}:", f"{container_spec.OWN_IMAGE}:")
"""The names of our images. A label alone proves nothing: any image can carry it."""
_NO_REGISTRY = "localhost/"
"""Podman's prefix for an image that comes from no registry."""
_FRESH_SECONDS = 300
"""Seconds after which a container that was never started counts as forgotten: it is needed only for
a moment."""


class Orphan(Struct, frozen=True):
    """Something that was removed."""

    id: str
    what: str
    session: str = ""


def make_session_directory(directory: Path) -> int:
    """Make the directory of a session. The session counts as alive for as long as the descriptor
    that is returned is open."""
    with _directories_locked(directory.parent):
        directory.mkdir(mode=0o700)
        descriptor = os.open(directory / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@contextlib.contextmanager
def _directories_locked(at: Path) -> Iterator[None]:
    """Keep other processes from making or pruning directories of sessions: a new one has no lock
    of its own for a moment, and must not be taken for an orphan."""
    descriptor = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_session_files(directory: Path) -> None:
    """Remove a session's files.

    Nothing is removed below the directory's own entries: a project may be mounted there.
    """
    unmount_idmapped(directory)
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            place = directory / name
            with contextlib.suppress(OSError):
                if place.is_dir() and not place.is_symlink():
                    place.rmdir()
                else:
                    place.unlink()
        directory.rmdir()


def prune_orphans(engine: Engine, at: Path, nft: str) -> Iterator[Orphan]:
    """Remove everything that no run of this user needs any more. Raises EngineFailed.

    `at` has the files of this user's runs; `nft` is the program in the present holder's image.
    """
    failed: EngineFailed | None = None
    # Holders last: Podman does not remove one while another container uses its namespaces.
    for container in sorted(
        engine.containers(), key=lambda c: c.labels[container_spec.LABEL] == "holder"
    ):
        what, session = (
            container.labels[container_spec.LABEL],
            container.labels.get(container_spec.SESSION_LABEL, ""),
        )
        if what in ("look", "filler", "errand"):
            # None of our containers runs without us; a running one has our label from an image.
            old = time.time() - container.created > _FRESH_SECONDS
            orphaned = old and not container.running
        else:
            own = container.labels.get(container_spec.AT_LABEL) == str(at)
            orphaned = own and not _lives(at / session)
        if orphaned:
            try:
                engine.remove(container.id)
            except EngineFailed as error:
                failed = error  # Podman removes none to which a foreign container is attached
                continue
            yield Orphan(container.id[:12], what, session)
    for directory in _remove_dead_directories(at):
        yield Orphan(str(directory), "files", directory.name)
    key = holder_image.holder_image_key(holder_image.HolderPrograms.of(nft))
    for name in engine.volumes():
        if name != f"{container_spec.IMAGE}-{key}" and engine.forget_volume(name):
            yield Orphan(name, "volume")
    for name in engine.images():
        short = name.removeprefix(_NO_REGISTRY)
        ours = short.startswith(_IMAGES) and short != f"{container_spec.IMAGE}:{key}"
        if ours and engine.forget_image(name):
            yield Orphan(name, "image")
    if failed is not None:
        raise failed


def remove_ended_sessions(engine: Engine, at: Path, known: str) -> None:
    """Remove every container of this user's sessions that have ended, and their files.

    `known` is a session whose owner has ended, or empty. Files of others are removed if they have
    a container; `prune_orphans` removes the rest.
    """
    ended = {known} if known else set()
    for container in sorted(
        engine.containers(), key=lambda c: c.labels[container_spec.LABEL] == "holder"
    ):
        told = container.labels
        session = told.get(container_spec.SESSION_LABEL, "")
        # Attack: a container inherits its image's labels, and this one becomes part of a path.
        if told.get(container_spec.AT_LABEL) != str(at) or not _SESSION.fullmatch(session):
            continue
        if session in ended or not _lives(at / session):
            engine.remove(container.id)
            ended.add(session)
    for session in ended:
        remove_session_files(at / session)


def _remove_dead_directories(at: Path) -> list[Path]:
    """Remove the directories of sessions that have ended, and return them."""
    try:
        with _directories_locked(at):
            dead = [path for path in sorted(at.iterdir()) if path.is_dir() and not _lives(path)]
            for directory in dead:
                remove_session_files(directory)
    except OSError:
        return []
    return dead


def _lives(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / _ALIVE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
