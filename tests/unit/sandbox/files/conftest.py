"""The world that these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.worlds import World, a_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A host with an empty project."""
    return a_world(tmp_path)
