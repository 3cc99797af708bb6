"""What a source of secrets is, what it hands out, and how it says that it cannot.

Every source reads into a `Reading`, never into an exception: the frames of a traceback hold their
locals, so whoever raises must not have the characters at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.secret import Secret, SecretRef


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


@dataclass(frozen=True, slots=True)
class Given:
    """A secret, and what the person should know of it."""

    secret: Secret
    warning: str = ""
    unscrubbed: bool = False
    """Too short to be searched for in answers: the one who scrubs must leave it out (I7)."""


class SecretSource(Protocol):
    """One place where secrets are kept."""

    def read(self, ref: SecretRef) -> Reading:
        """Read anew; Unavailable where there is nothing to read."""
