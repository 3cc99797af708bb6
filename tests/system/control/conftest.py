"""A control server for the tests of this room."""

from __future__ import annotations

from tests.rigs.control.fixtures import directory, rig

__all__ = ["directory", "rig"]
