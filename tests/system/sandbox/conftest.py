"""`keyhole run` as root and as an ordinary user, and an origin on loopback to be reached."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import tls_for
from tests.rigs.sandbox.origin import GitAndWeb
from tests.rigs.sandbox.people import PEOPLE, Person, open_ground, person_of
from tests.rigs.sandbox.projects import Project
from tests.unit.sandbox.files.conftest import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import trustme

__all__ = ["world"]

NAMES = ("origin.example", "second.example", "*.wild.example")


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("sandbox") as path:
        yield path


@pytest.fixture(scope="session", params=PEOPLE)
def person(request: pytest.FixtureRequest, ground: Path) -> Iterator[Person]:
    """Root, then an ordinary user; when the suite is no root's, the latter alone."""
    with person_of(request.param, ground / str(request.param)) as made:
        yield made


_numbers = itertools.count()


@pytest.fixture(scope="session")
def new_project(person: Person) -> Callable[..., Project]:
    """Makes projects of a person, each with a home of its own."""
    return lambda policy="": Project.make(person, next(_numbers), policy)


@pytest.fixture
def project(new_project: Callable[..., Project]) -> Project:
    """A project that allows nothing."""
    return new_project()


@pytest.fixture(scope="session")
def plain(new_project: Callable[..., Project]) -> Project:
    """One for all tests that change neither its policy nor what is protected in it.

    The walls are tried once for each bind plan, so a project that is used again starts sooner.
    """
    made = new_project()
    assert made.run("true").code == 0
    return made


@pytest.fixture(scope="session")
def origin(authority: trustme.CA, ground: Path) -> Iterator[GitAndWeb]:
    """A TLS origin on loopback that speaks HTTP and serves a git repository."""
    context = tls_for(authority, *NAMES)
    made = GitAndWeb(ground / "served", context)
    yield made
    made.close()


@pytest.fixture(scope="session")
def open_project(
    new_project: Callable[..., Project], origin: GitAndWeb, authority: trustme.CA
) -> Callable[..., Project]:
    """Makes projects whose policy lets them reach the origin; ca.pem is its authority."""

    def make(more: str = "") -> Project:
        made = new_project(origin.policy(*NAMES, more=more))
        made.write("ca.pem", authority.cert_pem.bytes().decode())
        return made

    return make
