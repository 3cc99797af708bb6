"""What a source of secrets is, what it hands out, and how it says that it cannot.

Every source reads into a `Reading`, never into an exception: the frames of a traceback hold their
locals, so whoever raises must not have the characters at hand.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.model.secret import Secret, SecretRef
    from keyhole.vault.lives import Life


class Unavailable(Exception):
    """A secret that cannot be had: which one, why and what to do; never what was read."""

    def __init__(self, ref: SecretRef, why: str) -> None:
        super().__init__(f"{visible(str(ref))}: {why}")


class SeveralUnavailable(Unavailable):
    """More than one, told together, so that a person mends them at one go."""

    def __init__(self, errors: tuple[Unavailable, ...]) -> None:
        Exception.__init__(self, "; ".join(map(str, errors)))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source read, or the flaw for which it cannot be used; no secret is the zero."""

    secret: Secret | None = None
    flaw: str = ""
    short: bool = False
    """Too short to be told from ordinary text in an answer."""
    insisted: bool = False
    """The person who stored it wants it all the same."""
    warning: str = ""
    life: Life | None = None
    """As its source declared it; None: as long as whoever asked wants it."""
    hidden: tuple[Secret, ...] = ()
    """What lies beside it and is never sent, such as a refresh token: it must not come back."""


@dataclass(frozen=True, slots=True)
class Given:
    """A secret, and what the person should know of it."""

    secret: Secret
    warning: str = ""
    unscrubbed: bool = False
    """Too short to be searched for in answers: the one who scrubs must leave it out (I7)."""
    life: Life | None = None
    mark: object = None
    """Its source's mark when it was read; another one means that the secret may have changed."""
    hidden: tuple[Secret, ...] = ()
    """Searched for in answers like the secret itself, and written into no request (I7)."""


def mark_of(path: Path | str) -> object:
    """Of the file that a path leads to, over links: which one it is, and when it changed."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return "missing"
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class SecretSource(Protocol):
    """One place where secrets are kept."""

    def read(self, ref: SecretRef) -> Reading:
        """Read anew; Unavailable where there is nothing to read."""

    def mark(self, ref: SecretRef) -> object:
        """What is another value once the secret may have changed; None: that cannot be seen.

        Cheap, since it is asked for several times a second; it opens nothing and raises nothing.
        """
