"""Authorities for the tests of this room."""

from __future__ import annotations

from tests.rigs.certs.fixtures import authority, neighbour

__all__ = ["authority", "neighbour"]
