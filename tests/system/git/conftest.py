"""git against a real server: directly, and through the installed command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.git.server import GitServer, missing
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import open_ground

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RENAMED = {"acme/old-widgets": "acme/widgets", "acme/stray": "acme/vault"}
"""Two that were renamed: into what policies of these tests grant, and out of it."""


@pytest.fixture(scope="session")
def git_ground() -> Iterator[Path]:
    """A directory that everybody may enter, in /var/tmp: a sandbox has a /tmp of its own."""
    with open_ground("git", "/var/tmp") as path:  # noqa: S108 - a name by chance in it
        yield path


@pytest.fixture(scope="session")
def git_server(git_ground: Path) -> Iterator[GitServer]:
    """A forge under the names that the tests' policies have."""
    lacking = missing()
    if lacking:
        give_up(lacking)
    made = GitServer(git_ground / "server", "github.com", "ok.example", renamed=RENAMED)
    yield made
    made.close()
