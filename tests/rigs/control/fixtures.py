"""What the tests of the control socket share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.rigs.control.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the socket goes; pytest may make its own directories wider."""
    os.chmod(tmp_path, 0o700)
    return tmp_path / "keyhole"


@pytest.fixture
def rig(directory: Path) -> Iterator[Rig]:
    made = Rig(directory)
    yield made
    made.close()
