"""The engine and the image of a run whose sandbox is a container, and whether they are suitable.

Imported only when the policy or the command line names docker or podman.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox import programs
from keyhole.sandbox.containers.container_spec import (
    LABEL,
    SESSION_LABEL,
    mount_points,
    refuse_covered_programs,
)
from keyhole.sandbox.containers.engine import Engine
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine, address_of
from keyhole.sandbox.containers.engine_traits import AS_ROOT
from keyhole.sandbox.containers.engine_values import PullProgress
from keyhole.sandbox.containers.holder_image import interpreter_command
from keyhole.sandbox.containers.holder_setup import HolderSetup
from keyhole.sandbox.containers.host_image import build_host_image
from keyhole.sandbox.containers.image_contents import (
    forget_image,
    image_links,
    programs_of,
    read_image_contents,
)
from keyhole.sandbox.containers.orphans import Orphan, prune_orphans
from keyhole.sandbox.files.generated_files import ImageAccounts
from keyhole.sandbox.files.trust_paths import TrustStorePaths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from keyhole.policy.policy import Sandbox
    from keyhole.sandbox.containers.console import ContainerConsole, UnattendedConsole
    from keyhole.sandbox.containers.container_start import ContainerStarter, TryWalls
    from keyhole.sandbox.containers.engine_traits import EngineTraits
    from keyhole.sandbox.containers.engine_values import EngineImage
    from keyhole.sandbox.containers.image_contents import ImageContents
    from keyhole.sandbox.files.mount_plan import Entry
    from keyhole.sandbox.identity import Identity
    from keyhole.sandbox.launch import Launch, ResourceLimits


Pulling = Callable[[str, Iterator[PullProgress]], None]
"""Shows the progress while an image of this name is pulled."""

BOXES = "boxes"
"""The directory for the files of sandboxes, in the state directory."""
_IMAGES = "images"
_UNBOUNDED = {
    "memory": "memory of all processes together (limits.memory holds for each)",
    "pids": "processes (limits.processes)",
}


class ContainerTarget(Struct, frozen=True):
    """An engine, and an image in it."""

    engine: Engine
    image: EngineImage
    contents: ImageContents
    directory: Path
    """The directory for files of its sandboxes, for as long as they live."""
    traits: EngineTraits = AS_ROOT
    holding: HolderSetup | None = None
    """The session's holder, if its creation has begun."""

    @property
    def accounts(self) -> ImageAccounts:
        """The accounts in the image."""
        return ImageAccounts(self.contents.passwd, self.contents.group)

    @property
    def stores(self) -> TrustStorePaths:
        """The paths at which the image's programs look for certificate authorities."""
        return TrustStorePaths(self.contents.bundles, self.contents.truststores)

    @property
    def interpreter(self) -> tuple[str, ...]:
        """The words that start our interpreter inside."""
        return tuple(interpreter_command())

    def refuse_unfit(self, who: Identity) -> None:
        """Refuse an engine in which files that the sandbox writes would belong to another user."""
        traits = self.traits
        if traits.rootless and not traits.keeps_ids:
            raise Refused(
                "rootless Docker can show your files as yours only to a container's root, which no "
                "sandbox is: use rootless Podman (runtime podman), or bwrap"
            )
        if traits.keeps_ids and traits.owner != (who.uid, who.gid):
            theirs, ours = (f"{uid}:{gid}" for uid, gid in (traits.owner, (who.uid, who.gid)))
            raise Refused(
                f"this rootless Podman runs as {theirs}, so that what the sandbox ({ours}) writes "
                f"would not be its own: use one that runs as {ours}"
            )

    def refuse_led(self, files: Sequence[Entry]) -> None:
        """Refuse an image whose links or volumes would have something mounted over our own
        programs."""
        image, kept = self.image, self.directory.parent / _IMAGES
        try:
            links = image_links(self.engine, image, kept, mount_points(files, image.volumes))
        except EngineFailed as failed:
            raise Refused(str(failed)) from None
        refuse_covered_programs(files, image.volumes, links)

    def notices(self, bounds: ResourceLimits) -> tuple[str, ...]:
        """Notes about the engine for the person, printed once."""
        return tuple(_notices(self.traits, bounds))

    @property
    def build(self) -> str:
        """The engine and its build, as an identity."""
        return f"{self.engine.path} {self.traits.build}"

    def runtime(
        self,
        launch: Launch,
        console: ContainerConsole | UnattendedConsole,
        session: str,
        try_walls: TryWalls | None = None,
    ) -> ContainerStarter:
        """The runtime that makes a sandbox of it."""
        # Imported here, with its event loop, while the engine starts the holder.
        from keyhole.sandbox.containers.container_start import ContainerStarter

        return ContainerStarter(
            self.engine,
            launch,
            self.image,
            console,
            session,
            self.directory,
            self.traits,
            self.holding,
            try_walls,
        )

    def begun(self, session: str, nft: str, ports: str = "") -> ContainerTarget:
        """The same target, with the creation of the session's holder begun. The caller must close
        it."""
        holding = HolderSetup(self.engine, session, self.directory, nft, self.traits, ports)
        return replace(self, holding=holding)

    def close(self) -> None:
        """Remove everything that was begun, also if a runtime has removed it already."""
        if self.holding is not None:
            self.holding.close()


def _notices(traits: EngineTraits, bounds: ResourceLimits) -> Iterator[str]:
    if traits.remaps:
        yield (
            "this engine gives containers other users (userns-remap); a sandbox is not among them, "
            "so that what it writes is its own: it is no root and has no capability all the same"
        )
    missing = [
        text
        for name, text in _UNBOUNDED.items()
        if name not in traits.bounds and not (name == "pids" and traits.counts_by_user)
    ]
    if bounds.cpus and "cpu" not in traits.bounds:
        missing.append("processors (limits.cpus)")
    if missing:
        why = "no control group is delegated to it" if traits.rootless else "it has no controller"
        yield f"this engine cannot bound {' nor '.join(missing)}: {why}"


def prune_engines(env: Mapping[str, str], state: Path) -> list[Orphan]:
    """Remove what killed runs left in every engine of this host. Raises EngineFailed when there is
    no engine, or one does not answer."""
    addresses, failures = [], []
    for name in ("docker", "podman"):
        try:
            addresses.append(address_of(name, env))
        except EngineFailed as failed:
            failures.append(failed)
    if not addresses:
        raise failures[0]
    nft = str(programs.find_programs(contained=True).nft)
    found: list[Orphan] = []
    for address in dict.fromkeys(addresses):
        engine = Engine(address)
        try:
            found += prune_orphans(engine, state / BOXES, nft)
        finally:
            engine.close()
    return found


def find_sandbox_container(env: Mapping[str, str], session: str) -> tuple[Engine, str] | None:
    """The running container of a session, and the engine that has it; None if no engine of this
    host does."""
    for name in ("docker", "podman"):
        with suppress(EngineFailed):
            engine = Engine(address_of(name, env))
            for each in engine.containers():
                found = each.labels.get(LABEL), each.labels.get(SESSION_LABEL)
                if each.running and found == ("sandbox", session):
                    return engine, each.id
            engine.close()
    return None


def _pull(engine: Engine, runtime: str, name: str, pulling: Pulling | None) -> EngineImage:
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


def ensure_image(runtime: str, path: str, name: str, pulling: Pulling) -> None:
    """Pull an image into the engine at this socket unless it is there. Raises Refused."""
    try:
        engine = Engine(path)
        try:
            engine.image(name)
        except NotInEngine:
            _pull(engine, runtime, name, pulling)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def describe(runtime: str, image: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The engine and the image, described for a person. Raises Refused when either is missing."""
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
    """Which of these programs the image has. Raises Refused."""
    try:
        engine = Engine(address_of(runtime, env))
        try:
            return programs_of(engine, engine.image(image), names)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


@contextmanager
def host_image_target(runtime: str, env: Mapping[str, str], state: Path) -> Iterator[str]:
    """The name of an image of this host's programs, which is in the engine while the block
    lasts."""
    try:
        engine = Engine(address_of(runtime, env))
        with build_host_image(engine) as name:
            image = engine.image(name)
            try:
                yield name
            finally:
                forget_image(image, state / _IMAGES)
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def find_container_target(
    sandbox: Sandbox, env: Mapping[str, str], state: Path, pulling: Pulling | None = None
) -> ContainerTarget:
    """The engine and the image that the policy names. Raises Refused, in one line, when either is
    missing.

    A missing image is pulled if `pulling` is given to show the progress.
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
        except NotInEngine:
            image = _pull(engine, sandbox.runtime, name, pulling)
        contents = read_image_contents(engine, image, state / _IMAGES)
        return ContainerTarget(engine, image, contents, state / BOXES, engine.traits())
    except EngineFailed as failed:
        raise Refused(str(failed)) from None
