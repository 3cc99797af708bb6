"""git against a real server: directly, and through the installed command."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.git.server import GitServer, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

RENAMED = {"acme/old-widgets": "acme/widgets", "acme/stray": "acme/vault"}
"""Two that were renamed: into what policies of these tests grant, and out of it."""


def give_up(why: str) -> NoReturn:
    """What `make test` sees to is there in CI; elsewhere a test may do without."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def git_ground() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are closed to others.

    In /var/tmp: a sandbox has a /tmp of its own.
    """
    path = Path(tempfile.mkdtemp(prefix="keyhole-git-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def git_server(git_ground: Path) -> Iterator[GitServer]:
    """A forge under the names that the tests' policies have."""
    lacking = missing()
    if lacking:
        give_up(lacking)
    made = GitServer(git_ground / "server", "github.com", "ok.example", renamed=RENAMED)
    yield made
    made.close()
