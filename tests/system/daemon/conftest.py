"""The long-lived gateway as a whole, from outside: by the commands that a person types.

A gateway is up for as many tests as possible. Where a suite is root's, what is promised to all is
tried as root and as an ordinary user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import random_text
from tests.rigs.daemon.homes import Home
from tests.rigs.daemon.origin import Origin
from tests.rigs.sandbox.people import PEOPLE, Person, open_ground, ordinary_user, this_person

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("daemon") as path:
        yield path


@pytest.fixture(scope="session")
def ordinary(ground: Path) -> Iterator[Person]:
    """Somebody without rights: whoever runs the suite, or a user who is made for it."""
    with ordinary_user(ground / "user") as made:
        yield made


@pytest.fixture(scope="session")
def origin() -> Iterator[Origin]:
    """The one service behind all names."""
    made = Origin(trustme.CA())
    yield made
    made.close()


def serve(person: Person, origin: Origin) -> Iterator[Home]:
    """A home with both secrets and a gateway."""
    made = Home(person, origin)
    made.keep("secrets/one", random_text("one-"))
    made.store("two", random_text("two-"), "--plain")
    made.up()
    yield made
    said = made("down")
    assert said.code == 0, said


@pytest.fixture(scope="session")
def quarters(ordinary: Person, origin: Origin) -> Iterator[Home]:
    """An ordinary user's, with a gateway for all tests."""
    yield from serve(ordinary, origin)


@pytest.fixture(scope="session")
def palace(ground: Path, origin: Origin) -> Iterator[Home]:
    """Root's."""
    directory = ground / "root"
    directory.mkdir()
    yield from serve(this_person(directory), origin)


@pytest.fixture(scope="session", params=PEOPLE)
def home(request: pytest.FixtureRequest) -> Home:
    """Root's, then an ordinary user's; when the suite is no root's, the latter alone."""
    found: Home = request.getfixturevalue("palace" if request.param == "root" else "quarters")
    return found
