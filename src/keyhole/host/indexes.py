"""What the settings of a Python installer name: its main index and the ones beside it.

Made by `pip` and `uv`, joined by `python`.
"""

from __future__ import annotations

from keyhole.model.value import dataclass, field


@dataclass(frozen=True, slots=True)
class Index:
    """One index URL as found, and where. The URL may hold a password, so it is not shown."""

    url: str = field(repr=False)
    where: str
    name: str = ""
    """What uv calls it; a project picks indexes by this name."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """`main` is None where the installer's built-in default is in use."""

    main: Index | None = None
    extra: tuple[Index, ...] = ()
    links: tuple[Index, ...] = ()
    """Pages with links to files (pip's --find-links)."""
