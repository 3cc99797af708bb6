"""The volumes that outlive a sandbox: created once, given to its user, recognised, and tidied.

Called before a sandbox is made. A volume of that name that Keyhole did not make is not used. Each
volume has a unique label, and a file outside records that the volume with this label was given to
its user; after a kill in between it counts as unfinished. Links that untrusted code left in a
volume could redirect the engine's mounts, even over our own programs. So the volume is tidied
first, while no sandbox uses it (I11).
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.containers import container_spec
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind, Tmpfs, Volume
from keyhole.sandbox.files.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.engine_traits import EngineTraits
    from keyhole.sandbox.files.mount_plan import Entry
    from keyhole.sandbox.launch import Launch

WHAT = "volume"
"""The label's value for these volumes."""
MADE = "keyhole.made"
"""The label that distinguishes it from an earlier volume of the same name."""


class VolumeGiver(Struct, frozen=True):
    """Our own image with its programs, and the directory of records of volumes."""

    image: str
    kit: str
    traits: EngineTraits
    """The engine's traits, for the ids of its containers."""
    marks: Path


def volume_marks(at: Path) -> Path:
    """The directory of these records, beside the files of this user's sandboxes."""
    return at.parent / "volumes"


def ensure_volumes(engine: Engine, launch: Launch, giving: VolumeGiver) -> None:
    """Create, and tidy, every volume of the launch. Raises EngineFailed."""
    who = (launch.uid, launch.gid)
    shown = [entry for _, entry in container_spec.visible_entries(launch.files)]
    for volume in shown:
        if not isinstance(volume, Volume) or _ensure(engine, volume.name, who, giving):
            continue
        below = [_place(e, volume) for e in _mounted_in(volume, shown)]
        if below:
            kit, traits = giving.kit, giving.traits
            _run(
                engine, container_spec.tidy_spec(giving.image, kit, volume.name, who, below, traits)
            )


def _mounted_in(volume: Volume, shown: list[Entry]) -> list[Entry]:
    """The entries that are mounted directly in the volume, not in another of its mounts."""
    below = [entry for entry in shown if is_below(entry.target, volume.target)]
    return [e for e in below if not any(is_below(e.target, other.target) for other in below)]


def _place(entry: Entry, volume: Volume) -> str:
    """The path of a mount in the form of `tidy_volume.py`: a directory ends with a slash."""
    kind = entry.kind if isinstance(entry, Bind | Mask) else MountKind.FILE
    directory = isinstance(entry, Tmpfs | Volume) or kind is MountKind.DIR
    return entry.target.removeprefix(f"{volume.target}/") + ("/" if directory else "")


def remove_volume(engine: Engine, name: str, marks: Path) -> None:
    """Remove one of our volumes with its content, and containers of killed runs that used it.

    The caller holds the sandbox whose home it is. Raises EngineFailed while it is in
    use.
    """
    with contextlib.suppress(NotInEngine):
        if engine.volume(name).get(container_spec.LABEL) == WHAT:
            for container in engine.containers(volume=name):
                engine.remove(container.id)
            engine.remove_volume(name)
    (marks / name).unlink(missing_ok=True)


def _ensure(engine: Engine, name: str, who: tuple[int, int], giving: VolumeGiver) -> bool:
    """Create the volume, if it is missing, and give it to the user. Returns whether it is new."""
    mark = giving.marks / name
    found = _find(engine, name)
    if found and _said(mark) == _words(found, who):
        return False
    giving.marks.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(giving.marks / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _find(engine, name)
        new = found is None
        if found is None:
            engine.create_volume(name, {container_spec.LABEL: WHAT, MADE: secrets.token_hex(8)})
            found = engine.volume(name)
        elif _said(mark) == _words(found, who):
            return False
        _run(engine, container_spec.chown_spec(giving.image, giving.kit, name, who, giving.traits))
        mark.write_text(_words(found, who), "utf-8")
    return new


def _find(engine: Engine, name: str) -> Mapping[str, str] | None:
    try:
        found = engine.volume(name)
    except NotInEngine:
        return None
    if found.get(container_spec.LABEL) != WHAT:
        raise EngineFailed(f"the engine has a volume {name} that Keyhole did not make")
    return found


def _run(engine: Engine, config: dict[str, object]) -> None:
    container = engine.create(config)
    other = engine.another()
    try:
        engine.start(container)
        if other.wait(container):
            raise EngineFailed("what is in a volume of this sandbox's keeps it from being mounted")
    finally:
        other.close()
        engine.remove(container)


def _words(found: Mapping[str, str], who: tuple[int, int]) -> str:
    return f"{found.get(MADE)} {who[0]} {who[1]}"


def _said(mark: Path) -> str:
    try:
        return mark.read_text("utf-8")
    except OSError:
        return ""
