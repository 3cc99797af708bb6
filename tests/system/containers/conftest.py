"""An engine, images in it, and an ordinary user who may ask it, as members of `docker` may."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.rigs.containers.billing import Billing
from tests.rigs.containers.engines import ROOTS, WORKBENCH, NoEngine, OwnEngine, make_image
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import Person, open_ground, ordinary_user
from tests.rigs.sandbox.projects import Project
from tests.system.sandbox.conftest import origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import trustme

__all__ = ["origin"]

ACCOUNTS = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nbuilder:x:9:9::/builder:/bin/sh\n",
    "/etc/group": "root:x:0:\n",
    "/etc/nsswitch.conf": "hosts: files dns\n",
}


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("containers", engine=True) as path:
        yield path


@pytest.fixture(scope="session")
def dockerd(ground: Path) -> Iterator[OwnEngine]:
    """An engine of our own."""
    directory = ground / "engine"
    directory.mkdir()
    try:
        made = OwnEngine(directory)
    except NoEngine as error:
        give_up(f"no engine: {error}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def image(dockerd: OwnEngine) -> str:
    """With a shell, curl, git and Python, laid out as Debian does it."""
    return make_image(
        dockerd.engine,
        "workbench:1",
        WORKBENCH,
        ACCOUNTS | {ROOTS: ""},
        trees=[f"/usr/lib/python3.{sys.version_info[1]}"],
    )


@pytest.fixture(scope="session")
def person(ground: Path, dockerd: OwnEngine) -> Iterator[Person]:
    """An ordinary user who may use the engine, and nothing else of root's."""
    with ordinary_user(ground / "user") as made:
        os.chown(dockerd.socket, 0, made.gid)
        os.chmod(dockerd.socket, 0o660)
        yield made


@dataclass(frozen=True)
class Boxed(Project):
    """A project whose sandbox is a container."""

    @property
    def env(self) -> dict[str, str]:
        """With the engine's address."""
        return super().env | {"DOCKER_HOST": f"unix://{self.home.parent / 'engine.sock'}"}


_numbers = itertools.count()


def _remember_trials(made: Project) -> None:
    """What was tried in another project of this person's need not be tried in each."""
    known = [*made.person.directory.glob("*/home/state/keyhole/selftest.json")]
    if known:
        newest = max(known, key=lambda path: path.stat().st_mtime)
        made.write("../home/state/keyhole/selftest.json", newest.read_text())


@pytest.fixture(scope="session")
def new_project(person: Person, dockerd: OwnEngine, image: str) -> Callable[..., Boxed]:
    """Makes projects; `[sandbox]` says docker and the image."""

    def make(policy: str = "", image: str = image, more: str = "") -> Boxed:
        made = Boxed.make(person, next(_numbers), "")
        _remember_trials(made)
        os.symlink(dockerd.socket, made.home.parent / "engine.sock")
        assert isinstance(made, Boxed)
        made.policy(f'[sandbox]\nruntime = "docker"\nimage = "{image}"\n{more}\n{policy}')
        return made

    return make


@pytest.fixture(scope="session")
def plain(new_project: Callable[..., Boxed]) -> Boxed:
    return new_project()


@pytest.fixture
def service(authority: trustme.CA) -> Iterator[Billing]:
    """A service behind a credential."""
    made = Billing(authority)
    yield made
    made.close()
