"""Authorities, and a server for clients that are programs."""

from __future__ import annotations

from tests.rigs.certs.fixtures import authority, neighbour, serve

__all__ = ["authority", "neighbour", "serve"]
