"""A run's sandbox by an engine of containers: which engine, which image, and whether they will do.

Imported only for a policy, or a command line, that says docker or podman.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.app.kit import Stores
from keyhole.model.text import visible
from keyhole.model.value import dataclass, replace
from keyhole.sandbox import programs
from keyhole.sandbox.containers.engine import (
    Engine,
    EngineFailed,
    NoSuchThing,
    Progress,
    address_of,
)
from keyhole.sandbox.containers.holding import Holding
from keyhole.sandbox.containers.image import forget, links_to, look, programs_of
from keyhole.sandbox.containers.nature import AS_ROOT
from keyhole.sandbox.containers.orphans import Orphan, prune
from keyhole.sandbox.containers.spec import points, refuse_led
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.files.generated import Accounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from keyhole.policy.policy import Sandbox
    from keyhole.sandbox.containers.console import Console, Unattended
    from keyhole.sandbox.containers.engine import Image
    from keyhole.sandbox.containers.image import Contents
    from keyhole.sandbox.containers.nature import Nature
    from keyhole.sandbox.containers.start import Containers
    from keyhole.sandbox.files.fileplan import Entry
    from keyhole.sandbox.identity import Identity
    from keyhole.sandbox.launch import Bounds, Launch


Pulling = Callable[[str, Iterator[Progress]], None]
"""Shows somebody how an image of this name is pulled, to the end."""

BOXES = "boxes"
"""Where the files of sandboxes are, in the state directory."""
_IMAGES = "images"
_UNBOUNDED = {
    "memory": "memory of all processes together (limits.memory holds for each)",
    "pids": "processes (limits.processes)",
}


@dataclass(frozen=True, slots=True)
class Berth:
    """An engine, and an image in it."""

    engine: Engine
    image: Image
    contents: Contents
    directory: Path
    """Where the files of its sandboxes are, for as long as they live."""
    nature: Nature = AS_ROOT
    holding: Holding | None = None
    """The session's holder, where it was begun ahead."""

    @property
    def accounts(self) -> Accounts:
        """Whom the image knows."""
        return Accounts(self.contents.passwd, self.contents.group)

    @property
    def stores(self) -> Stores:
        """Where the image's programs look for authorities."""
        return Stores(self.contents.bundles, self.contents.truststores)

    def refuse_unfit(self, who: Identity) -> None:
        """Refuse an engine by which what the sandbox writes would be somebody else's."""
        nature = self.nature
        if nature.rootless and not nature.keeps_ids:
            raise Refused(
                "rootless Docker can show your files as yours only to a container's root, which no "
                "sandbox is: use rootless Podman (runtime podman), or bwrap"
            )
        if nature.keeps_ids and nature.owner != (who.uid, who.gid):
            theirs, ours = (f"{uid}:{gid}" for uid, gid in (nature.owner, (who.uid, who.gid)))
            raise Refused(
                f"this rootless Podman runs as {theirs}, so that what the sandbox ({ours}) writes "
                f"would not be its own: use one that runs as {ours}"
            )

    def refuse_led(self, files: Sequence[Entry]) -> None:
        """Refuse an image that has something mounted over our own programs."""
        image, kept = self.image, self.directory.parent / _IMAGES
        try:
            links = links_to(self.engine, image, kept, points(files, image.volumes))
        except EngineFailed as failed:
            raise Refused(str(failed)) from None
        refuse_led(files, image.volumes, links)

    def notices(self, bounds: Bounds) -> tuple[str, ...]:
        """What the person should know of the engine, once."""
        return tuple(_notices(self.nature, bounds))

    def runtime(self, launch: Launch, console: Console | Unattended, session: str) -> Containers:
        """What makes a sandbox of it."""
        # With its loop, while the engine starts the holder.
        from keyhole.sandbox.containers.start import Containers

        return Containers(
            self.engine,
            launch,
            self.image,
            console,
            session,
            self.directory,
            self.nature,
            self.holding,
        )

    def begun(self, session: str, nft: str) -> Berth:
        """The same with the session's holder on its way, for whoever closes it."""
        holding = Holding(self.engine, session, self.directory, nft, self.nature)
        return replace(self, holding=holding)

    def close(self) -> None:
        """Leave nothing of what was begun; no matter whether a runtime has done so."""
        if self.holding is not None:
            self.holding.close()


def _notices(nature: Nature, bounds: Bounds) -> Iterator[str]:
    if nature.remaps:
        yield (
            "this engine gives containers other users (userns-remap); a sandbox is not among them, "
            "so that what it writes is its own: it is no root and has no capability all the same"
        )
    missing = [
        text
        for name, text in _UNBOUNDED.items()
        if name not in nature.bounds and not (name == "pids" and nature.counts_by_user)
    ]
    if bounds.cpus and "cpu" not in nature.bounds:
        missing.append("processors (limits.cpus)")
    if missing:
        why = "no control group is delegated to it" if nature.rootless else "it has no controller"
        yield f"this engine cannot bound {' nor '.join(missing)}: {why}"


def prune_engines(env: Mapping[str, str], state: Path) -> list[Orphan]:
    """Remove what killed runs left in every engine of this host. EngineFailed when there is none,
    or one does not answer."""
    addresses, failures = [], []
    for name in ("docker", "podman"):
        try:
            addresses.append(address_of(name, env))
        except EngineFailed as failed:
            failures.append(failed)
    if not addresses:
        raise failures[0]
    nft = str(programs.find(contained=True).nft)
    found: list[Orphan] = []
    for address in dict.fromkeys(addresses):
        engine = Engine(address)
        try:
            found += prune(engine, state / BOXES, nft)
        finally:
            engine.close()
    return found


def _pull(engine: Engine, runtime: str, name: str, pulling: Pulling | None) -> Image:
    shown, advice = visible(name), f"`{runtime} pull {visible(name)}` gets it"
    if pulling is None:
        raise Refused(f"{runtime} has no image {shown}: {advice}")
    try:
        pulling(name, engine.pull(name))
        return engine.image(name)
    except EngineFailed as failed:
        raise Refused(
            f"{runtime} has no image {shown}, and it cannot be pulled: {failed}; if that takes a "
            f"login, {advice}"
        ) from None


def have_image(runtime: str, path: str, name: str, pulling: Pulling) -> None:
    """See that the engine at this socket has an image. Refused when it cannot be had."""
    try:
        engine = Engine(path)
        try:
            engine.image(name)
        except NoSuchThing:
            _pull(engine, runtime, name, pulling)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def describe(runtime: str, image: str, env: Mapping[str, str]) -> tuple[str, str]:
    """An engine and an image, for a person. Refused when either is not there."""
    try:
        engine = Engine(address_of(runtime, env))
        try:
            return engine.version(), f"{visible(image)} {engine.image(image).id}"
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def programs_in(
    runtime: str, image: str, env: Mapping[str, str], names: Iterable[str]
) -> frozenset[str]:
    """Which of these programs the image has. Refused as above."""
    try:
        engine = Engine(address_of(runtime, env))
        try:
            return programs_of(engine, engine.image(image), names)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


@contextmanager
def own_berth(runtime: str, env: Mapping[str, str], state: Path) -> Iterator[str]:
    """The name of an image of this host's programs, in the engine while the block lasts."""
    from keyhole.sandbox.containers.ownimage import own_image

    try:
        engine = Engine(address_of(runtime, env))
        with own_image(engine) as name:
            image = engine.image(name)
            try:
                yield name
            finally:
                forget(image, state / _IMAGES)
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def find_berth(
    sandbox: Sandbox, env: Mapping[str, str], state: Path, pulling: Pulling | None = None
) -> Berth:
    """The engine and the image that the policy names. Refused, in a line, when there are none.

    An image that is missing is pulled where `pulling` shows somebody how far that is.
    """
    name = sandbox.image
    if not name:
        raise Refused(
            f"which image? runtime {sandbox.runtime} needs one: `image` under [sandbox], or --image"
        )
    try:
        engine = Engine(address_of(sandbox.runtime, env))
        try:
            image = engine.image(name)
        except NoSuchThing:
            image = _pull(engine, sandbox.runtime, name, pulling)
        contents = look(engine, image, state / _IMAGES)
        return Berth(engine, image, contents, state / BOXES, engine.nature())
    except EngineFailed as failed:
        raise Refused(str(failed)) from None
