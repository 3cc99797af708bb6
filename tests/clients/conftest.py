"""Unmodified clients in a sandbox, real services outside, and the installed command between them.

This folder mirrors no room: what it holds to is the promise of them all together (I10), which no
room's own tests can see. tests/sandbox is about what the walls let through, this about what the
gateway makes of it: that a client works as it is, with a credential that it never had.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import trustme

from tests.clients.services import CLIENTS, Services
from tests.sandbox.people import (
    PATIENCE,
    VERSION,
    NoSuchPerson,
    Person,
    create_user,
    remove_user,
    this_person,
)
from tests.sandbox.projects import SEARCH, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEOPLE = ("root", "user") if os.geteuid() == 0 else ("user",)

_numbers = itertools.count()


def give_up(why: str) -> NoReturn:
    """What `make test` sees to is there in CI; elsewhere a test may do without."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="keyhole-clients-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


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
    directory = ground / f"somebody-{request.param}"
    directory.mkdir()
    if request.param == "root" or os.geteuid() != 0:
        yield this_person(directory)
        return
    try:
        made = create_user(directory)
    except NoSuchPerson as error:
        give_up(f"no ordinary user: {error}")
    yield made
    remove_user(made)


@pytest.fixture(scope="session")
def inside(me: Person) -> Inside:
    """The clients, for whoever runs the suite."""
    return inside_for(me)


@pytest.fixture(scope="session")
def new_project(me: Person) -> Callable[[], Project]:
    """Makes projects of whoever runs the suite."""
    return lambda: Project.make(me, next(_numbers))
