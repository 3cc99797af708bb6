"""A Podman that an ordinary user runs, and an image in it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rigs.containers.engines import ROOTS, WORKBENCH, NoEngine, make_image
from tests.rigs.containers.rootless import RootlessPodman
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import Person, ordinary_user
from tests.rigs.sandbox.projects import Project
from tests.system.containers.conftest import ACCOUNTS, ground

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ground"]


@pytest.fixture(scope="session")
def person(ground: Path) -> Iterator[Person]:
    """An ordinary user with subordinate ids, as useradd gives them."""
    with ordinary_user(ground / "user") as made:
        yield made


@pytest.fixture(scope="session")
def podman(person: Person) -> Iterator[RootlessPodman]:
    try:
        made = RootlessPodman(person)
    except NoEngine as error:
        give_up(f"no rootless Podman: {error}")
    yield made
    made.close()


@dataclass(frozen=True)
class Theirs(Project):
    """A project of whoever runs the engine, who finds it where a session has it."""

    runtime: Path = Path("/nonexistent")

    @property
    def env(self) -> dict[str, str]:
        """With the session's directory."""
        return super().env | {"XDG_RUNTIME_DIR": str(self.runtime)}


_numbers = itertools.count()

FIRST_SECONDS = 240.0
"""How long the first run may take where much else runs as well."""


@pytest.fixture(scope="session")
def new_project(person: Person, podman: RootlessPodman) -> Callable[..., Theirs]:
    """Makes projects; `[sandbox]` says podman and the image."""
    image = make_image(
        podman.engine,
        "workbench:1",
        WORKBENCH,
        ACCOUNTS | {ROOTS: ""},
        trees=[f"/usr/lib/python3.{sys.version_info[1]}"],
    )

    def make(policy: str = "") -> Theirs:
        bare = Project.make(person, next(_numbers), "")
        made = Theirs(person, bare.directory, bare.home, podman.runtime)
        made.policy(f'[sandbox]\nruntime = "podman"\nimage = "{image}"\n{policy}')
        return made

    # The first run has the engine make our volume, and copy each image for the person's ids.
    first = make().start("run", "--trust", "--", "sh", "-c", ":", stdout=None, stderr=None)
    assert first.wait(FIRST_SECONDS) == 0
    return make


@pytest.fixture(scope="session")
def plain(new_project: Callable[..., Theirs]) -> Theirs:
    return new_project()
