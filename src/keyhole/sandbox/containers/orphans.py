"""What a run that was killed leaves in an engine, and how it is told from one that lives.

Nothing of it runs: the holder ends with its run, and the sandbox with the holder. What is left are
containers that have ended, and files. Whether a run lives is told by the lock that it holds on its
directory, which the kernel takes away with it. Called by `keyhole prune`, and by runs for their
own directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.containers import closure, spec
from keyhole.sandbox.containers.engine import EngineFailed
from keyhole.sandbox.containers.mapped import unmap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine

_ALIVE = "alive"
_IMAGES = (f"{spec.IMAGE}:", f"{spec.OWN_IMAGE}:")
"""How images of ours are called; a label is what anybody's may have."""
_NO_REGISTRY = "localhost/"
"""What Podman has before the name of an image that is from none."""
_FRESH_SECONDS = 300
"""How old a container that is never started must be to have been forgotten: it takes a moment."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something that was removed."""

    id: str
    what: str
    session: str = ""


def hold(directory: Path) -> int:
    """Say that this run lives, for as long as the descriptor is open."""
    descriptor = os.open(directory / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def remove_files(directory: Path) -> None:
    """Leave nothing of a session's files.

    Nothing is removed below what lies in the directory itself: a project may be mounted there.
    """
    unmap(directory)
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            place = directory / name
            with contextlib.suppress(OSError):
                if place.is_dir() and not place.is_symlink():
                    place.rmdir()
                else:
                    place.unlink()
        directory.rmdir()


def prune(engine: Engine, at: Path, nft: str) -> Iterator[Orphan]:
    """Remove what no run of this user uses any more. EngineFailed where the engine does not help.

    `at` is where this user's runs have their files; `nft` is what today's holder is made with.
    """
    failed: EngineFailed | None = None
    # Holders last: Podman keeps one for as long as something hangs on it.
    for container in sorted(engine.containers(), key=lambda c: c.labels[spec.LABEL] == "holder"):
        what, session = container.labels[spec.LABEL], container.labels.get(spec.SESSION_LABEL, "")
        if what in ("look", "filler", "errand"):
            # None of them goes on without us; what does has its label from an image.
            old = time.time() - container.created > _FRESH_SECONDS
            orphaned = old and not container.running
        else:
            own = container.labels.get(spec.AT_LABEL) == str(at)
            orphaned = own and not _lives(at / session)
        if orphaned:
            try:
                engine.remove(container.id)
            except EngineFailed as error:
                failed = error  # Podman removes none to which somebody's own is attached
                continue
            yield Orphan(container.id[:12], what, session)
    for directory in _directories(at):
        if not _lives(directory):
            remove_files(directory)
            yield Orphan(str(directory), "files", directory.name)
    key = closure.key_of(closure.Programs.of(nft))
    for name in engine.volumes():
        if name != f"{spec.IMAGE}-{key}" and engine.forget_volume(name):
            yield Orphan(name, "volume")
    for name in engine.images():
        short = name.removeprefix(_NO_REGISTRY)
        ours = short.startswith(_IMAGES) and short != f"{spec.IMAGE}:{key}"
        if ours and engine.forget_image(name):
            yield Orphan(name, "image")
    if failed is not None:
        raise failed


def remove_session(engine: Engine, at: Path, session: str) -> None:
    """Leave nothing of one session of this user's, if it has ended."""
    if not session or _lives(at / session):
        return
    for container in sorted(engine.containers(), key=lambda c: c.labels[spec.LABEL] == "holder"):
        told = container.labels
        if (told.get(spec.AT_LABEL), told.get(spec.SESSION_LABEL)) == (str(at), session):
            engine.remove(container.id)
    remove_files(at / session)


def _directories(at: Path) -> list[Path]:
    try:
        return [path for path in sorted(at.iterdir()) if path.is_dir()]
    except OSError:
        return []


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
