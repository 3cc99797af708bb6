"""`keyhole run` as root and as an ordinary user, and an origin on loopback to be reached."""

from __future__ import annotations

import itertools
import os
import shutil
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.sandbox.origin import GitAndWeb
from tests.sandbox.people import NoSuchPerson, Person, create_user, remove_user, this_person
from tests.sandbox.projects import Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEOPLE = ("root", "user") if os.geteuid() == 0 else ("user",)
NAMES = ("origin.example", "second.example", "*.wild.example")


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="keyhole-sandbox-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session", params=PEOPLE)
def person(request: pytest.FixtureRequest, ground: Path) -> Iterator[Person]:
    """Root, then an ordinary user; when the suite is no root's, the latter alone."""
    directory = ground / str(request.param)
    directory.mkdir()
    if request.param == "root" or os.geteuid() != 0:
        yield this_person(directory)
        return
    try:
        made = create_user(directory)
    except NoSuchPerson as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no ordinary user: {error}")
        pytest.skip(f"no ordinary user: {error}")
    yield made
    remove_user(made)


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
def authority() -> trustme.CA:
    """Who signs the origin's certificate."""
    return trustme.CA()


@pytest.fixture(scope="session")
def origin(authority: trustme.CA, ground: Path) -> Iterator[GitAndWeb]:
    """A TLS origin on loopback that speaks HTTP and serves a git repository."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*NAMES).configure_cert(context)
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
