"""The long-lived gateway as a whole, from outside: by the commands that a person types.

This folder mirrors no room. A gateway is up for as many tests as possible; where a suite is root's,
what is promised to everybody is tried as root and as an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.clients.services import random_text
from tests.daemon.homes import Home
from tests.daemon.origin import Origin
from tests.sandbox.people import NoSuchPerson, Person, create_user, remove_user, this_person

if TYPE_CHECKING:
    from collections.abc import Iterator

PEOPLE = ("root", "user") if os.geteuid() == 0 else ("user",)


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="keyhole-daemon-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def ordinary(ground: Path) -> Iterator[Person]:
    """Somebody without rights: whoever runs the suite, or a user who is made for it."""
    directory = ground / "user"
    directory.mkdir()
    if os.geteuid() != 0:
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
