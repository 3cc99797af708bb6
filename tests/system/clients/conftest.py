"""Unmodified clients in a sandbox, real services outside, and the installed command between them.

tests/system/sandbox is about what the walls let through, this about what the gateway makes of it: a
client works as it is, with a credential that it never had.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import CLIENTS, Services
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import PEOPLE, VERSION, Person, open_ground, person_of, this_person
from tests.rigs.sandbox.projects import SEARCH, Project
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count()


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("clients") as path:
        yield path


@pytest.fixture(scope="session")
def stranger() -> trustme.CA:
    """An authority that nobody trusts."""
    return trustme.CA()


@pytest.fixture(scope="session")
def services(ground: Path, stranger: trustme.CA) -> Iterator[Services]:
    """nginx and what is behind it."""
    for name in ("nginx", "curl", "git"):
        if shutil.which(name, path=SEARCH) is None:
            give_up(f"{name} is not installed")
    if not (CLIENTS / "keyhole-locks").exists():
        give_up("the clients are not installed: scripts/setup")
    made = Services(ground / "services", trustme.CA(), stranger)
    yield made
    made.close()


@dataclass(frozen=True)
class Inside:
    """A Python that a person can run, and the clients' packages, as a sandbox is to see them."""

    python: str
    readable: tuple[str, ...]
    packages: str

    @property
    def policy(self) -> str:
        """The table that shows them."""
        trees = ", ".join(f'"{tree}"' for tree in self.readable)
        return (
            f"[sandbox]\nreadable = [{trees}]\n[sandbox.env]\n"
            f'PYTHONPATH = "{self.packages}"\nAWS_DEFAULT_REGION = "eu-west-1"\n'
        )


def inside_for(person: Person) -> Inside:
    """The system's Python where it is of the right version: its packages are compiled for one."""
    own = os.path.realpath(CLIENTS / "bin/python")
    for path in (f"/usr/bin/python{VERSION}", f"/usr/local/bin/python{VERSION}", own):
        if can_run(person, path, "-I", "-c", "import ssl"):
            break
    else:
        give_up(f"no Python {VERSION} that {person.name} can run")
    packages = CLIENTS / f"lib/python{VERSION}/site-packages"
    if not can_run(person, "/bin/ls", str(packages)):
        packages = Path(shutil.copytree(packages, person.directory / "packages"))
    trees = (str(packages),) if path.startswith("/usr/") else (str(packages), sys.base_prefix)
    return Inside(path, trees, str(packages))


def can_run(person: Person, *words: str) -> bool:
    """Whether a program is there for this person."""
    try:
        done = subprocess.run(words, cwd="/", env={}, stdout=subprocess.DEVNULL, check=False,
                              stderr=subprocess.DEVNULL, timeout=PATIENCE,
                              **person.become())  # fmt: skip
    except OSError:
        return False
    return bool(done.returncode == 0)


@pytest.fixture(scope="session")
def me(ground: Path) -> Person:
    """Whoever runs the suite."""
    directory = ground / "me"
    directory.mkdir()
    return this_person(directory)


@pytest.fixture(scope="session", params=PEOPLE)
def somebody(request: pytest.FixtureRequest, ground: Path) -> Iterator[Person]:
    """Root, then an ordinary user; when the suite is no root's, the latter alone."""
    with person_of(request.param, ground / f"somebody-{request.param}") as made:
        yield made


@pytest.fixture(scope="session")
def inside(me: Person) -> Inside:
    """The clients, for whoever runs the suite."""
    return inside_for(me)


@pytest.fixture(scope="session")
def new_project(me: Person) -> Callable[[], Project]:
    """Makes projects of whoever runs the suite."""
    return lambda: Project.make(me, next(_numbers))
