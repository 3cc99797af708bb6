"""The volumes that outlive a sandbox: made once, given to its user, known again, and tidied.

Called before a sandbox is made. A volume of the name that somebody else made is not taken. That one
was given to its user is remembered outside, by a word that only that volume carries; whoever was
killed in between finds it unfinished. What code that is not trusted left in a volume would lead the
engine's mounts below it anywhere, over our own programs among them: so that is looked at first,
while no sandbox has the volume (I11).
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.containers import spec
from keyhole.sandbox.containers.engine import EngineFailed, NoSuchThing
from keyhole.sandbox.files.fileplan import Bind, Kind, Mask, Tmpfs, Volume
from keyhole.sandbox.files.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.nature import Nature
    from keyhole.sandbox.files.fileplan import Entry
    from keyhole.sandbox.launch import Launch

WHAT = "volume"
"""What they are labelled as."""
MADE = "keyhole.made"
"""By what one is told from another that had its name before."""


@dataclass(frozen=True, slots=True)
class Giving:
    """Who gives them away: our own image with its kit, and where is remembered what was given."""

    image: str
    kit: str
    nature: Nature
    """Of the engine: whose ids it has."""
    marks: Path


def marks_of(at: Path) -> Path:
    """Where that is remembered, beside the files of this user's sandboxes."""
    return at.parent / "volumes"


def ensure(engine: Engine, launch: Launch, giving: Giving) -> None:
    """Have every volume of the launch. EngineFailed when one cannot be had."""
    who = (launch.uid, launch.gid)
    shown = [entry for _, entry in spec.visible(launch.files)]
    for volume in shown:
        if not isinstance(volume, Volume) or _ensure(engine, volume.name, who, giving):
            continue
        below = [_place(e, volume) for e in _mounted_in(volume, shown)]
        if below:
            kit, nature = giving.kit, giving.nature
            _run(engine, spec.tidier(giving.image, kit, volume.name, who, below, nature))


def _mounted_in(volume: Volume, shown: list[Entry]) -> list[Entry]:
    """What is mounted in it, and not in something that is."""
    below = [entry for entry in shown if is_below(entry.target, volume.target)]
    return [e for e in below if not any(is_below(e.target, other.target) for other in below)]


def _place(entry: Entry, volume: Volume) -> str:
    """Where something is mounted, as `tidy.py` reads it: a directory ends with a slash."""
    kind = entry.kind if isinstance(entry, Bind | Mask) else Kind.FILE
    directory = isinstance(entry, Tmpfs | Volume) or kind is Kind.DIR
    return entry.target.removeprefix(f"{volume.target}/") + ("/" if directory else "")


def forget(engine: Engine, name: str, marks: Path) -> None:
    """Remove a volume of ours with all that is in it, and whoever was killed while using it.

    By who holds the sandbox that it is the home of. EngineFailed while somebody else uses it.
    """
    with contextlib.suppress(NoSuchThing):
        if engine.volume(name).get(spec.LABEL) == WHAT:
            for container in engine.containers(volume=name):
                engine.remove(container.id)
            engine.remove_volume(name)
    (marks / name).unlink(missing_ok=True)


def _ensure(engine: Engine, name: str, who: tuple[int, int], giving: Giving) -> bool:
    """Have one; whether it is new, so that there is nothing in it."""
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
            engine.create_volume(name, {spec.LABEL: WHAT, MADE: secrets.token_hex(8)})
            found = engine.volume(name)
        elif _said(mark) == _words(found, who):
            return False
        _run(engine, spec.owner(giving.image, giving.kit, name, who, giving.nature))
        mark.write_text(_words(found, who), "utf-8")
    return new


def _find(engine: Engine, name: str) -> Mapping[str, str] | None:
    try:
        found = engine.volume(name)
    except NoSuchThing:
        return None
    if found.get(spec.LABEL) != WHAT:
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
