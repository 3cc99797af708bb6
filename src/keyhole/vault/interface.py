"""The interface of a source of secrets: what it returns, and how it reports a failure.

Every source reads into a `SecretReading`, never into an exception: the frames of a traceback hold
their locals, so code that raises must not have the characters in scope."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.model.secret import Secret, SecretRef
    from keyhole.vault.secret_lifetime import SecretLifetime


class SecretUnavailable(KeyholeError):
    """A secret that is not available: which one, why and what to do; never its characters."""

    reason = "secret-unavailable"

    def __init__(self, ref: SecretRef, why: str, *others: SecretUnavailable) -> None:
        """`others` are reported with it, so that a person can fix all of them at once."""
        self.ref = ref
        self.why = why
        super().__init__("; ".join((f"{visible(str(ref))}: {why}", *map(str, others))))


class SecretReading(Struct, frozen=True):
    """A secret that a source read, or the flaw for which it cannot be used. The zero value has no
    secret."""

    secret: Secret | None = None
    flaw: str = ""
    short: bool = False
    """Too short to be distinguished from ordinary text in a response."""
    insisted: bool = False
    """The user stored it in spite of that."""
    warning: str = ""
    life: SecretLifetime | None = None
    """The lifetime that its source declared; None: no limit."""
    hidden: tuple[Secret, ...] = ()
    """Secrets beside it that are never sent, such as a refresh token. They must not come back in a
    response."""


class FetchedSecret(Struct, frozen=True):
    """A secret, and notes about it for the person."""

    secret: Secret
    warning: str = ""
    unscrubbed: bool = False
    """Too short to be searched for in responses: the scrubber must leave it out (I7)."""
    life: SecretLifetime | None = None
    mark: object = None
    """The source's mark when it was read; another mark means that the secret may have changed."""
    hidden: tuple[Secret, ...] = ()
    """Responses are searched for these as for the secret itself; no request gets them (I7)."""


def mark_of(path: Path | str) -> object:
    """The mark of the target of a path: its identity, and when it changed."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return "missing"
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class SecretSource(Protocol):
    """One place where secrets are kept."""

    def read(self, ref: SecretRef) -> SecretReading:
        """Read now. Raises SecretUnavailable if there is nothing to read."""

    def mark(self, ref: SecretRef) -> object:
        """A value that changes when the secret may have changed; None: changes cannot be seen.

        Cheap, since it is called several times a second; it opens nothing and raises nothing.
        """
