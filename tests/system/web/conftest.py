"""A project of this user, `keyhole web` for it, and a browser."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.rigs.chromium import Chromium, chromium
from tests.rigs.sandbox.people import open_ground, this_person
from tests.rigs.sandbox.projects import Project
from tests.rigs.web import WebProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests: it takes seconds to start."""
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with open_ground("web") as path:
        yield path


@pytest.fixture
def project(ground: Path) -> Project:
    """A project that allows nothing."""
    return Project.make(this_person(ground), next(_numbers))


@pytest.fixture
def web(project: Project) -> Iterator[WebProcess]:
    """`keyhole web` in that project."""
    with WebProcess.start(project) as made:
        yield made
