"""A run's sandbox by an engine of containers: which engine, which image, and whether they will do.

Imported only for a policy, or a command line, that says docker or podman.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from keyhole.app.kit import Stores
from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox import programs
from keyhole.sandbox.containers.engine import (
    Engine,
    EngineFailed,
    NoSuchThing,
    Progress,
    address_of,
)
from keyhole.sandbox.containers.image import look
from keyhole.sandbox.containers.orphans import Orphan, prune
from keyhole.sandbox.containers.start import Containers
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.files.generated import Accounts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.policy.policy import Sandbox
    from keyhole.sandbox.containers.console import Console, Unattended
    from keyhole.sandbox.containers.engine import Image
    from keyhole.sandbox.containers.image import Contents
    from keyhole.sandbox.launch import Launch


Pulling = Callable[[str, Iterator[Progress]], None]
"""Shows somebody how an image of this name is pulled, to the end."""

BOXES = "boxes"
"""Where the files of sandboxes are, in the state directory."""


@dataclass(frozen=True, slots=True)
class Berth:
    """An engine, and an image in it."""

    engine: Engine
    image: Image
    contents: Contents
    directory: Path
    """Where the files of its sandboxes are, for as long as they live."""

    @property
    def accounts(self) -> Accounts:
        """Whom the image knows."""
        return Accounts(self.contents.passwd, self.contents.group)

    @property
    def stores(self) -> Stores:
        """Where the image's programs look for authorities."""
        return Stores(self.contents.bundles, self.contents.truststores)

    def refuse_unfit(self) -> None:
        """Refuse an engine by which what the sandbox writes would be somebody else's."""
        try:
            options = self.engine.options()
        except EngineFailed as failed:
            raise Refused(str(failed)) from None
        for name in ("rootless", "userns"):
            if any(f"name={name}" in option for option in options):
                raise Refused(
                    f"this engine maps users ({name}), so that what the sandbox writes would not "
                    "be yours; that is not yet in this version"
                )

    def runtime(self, launch: Launch, console: Console | Unattended, session: str) -> Containers:
        """What makes a sandbox of it."""
        return Containers(self.engine, launch, self.image, console, session, self.directory)


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
        return Berth(engine, image, look(engine, image, state / "images"), state / BOXES)
    except EngineFailed as failed:
        raise Refused(str(failed)) from None
