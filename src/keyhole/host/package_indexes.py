"""The indexes that the settings of a Python installer name.

Made by `pip` and `uv`, joined by `python`.
"""

from __future__ import annotations

from msgspec import Struct

from keyhole.model.redacted import redacted_repr


class PackageIndex(Struct, frozen=True):
    """One index URL as found, and where. The URL may hold a password, so it is not shown."""

    url: str
    where: str
    name: str = ""
    """Its name in uv's settings; a project picks indexes by this name."""

    __repr__ = redacted_repr("url")


class PackageIndexes(Struct, frozen=True):
    """`main` is None if the installer's built-in default is in use."""

    main: PackageIndex | None = None
    extra: tuple[PackageIndex, ...] = ()
    links: tuple[PackageIndex, ...] = ()
    """Pages with links to files (pip's --find-links)."""
