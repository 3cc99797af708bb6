"""Reads the output of an `exec:` command: a secret, or a secret with its lifetime.

Nothing here raises: the characters are in scope.
"""

from __future__ import annotations

import json

from msgspec.structs import replace

from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretReading
from keyhole.vault.secret_lifetime import MAX_LIFE, SecretLifetime

FORM = '{"secret": "…", "expires_in": SECONDS}'

_KEYS = {"secret", "expires_in"}


def read_printed(data: bytes, asked: float) -> SecretReading:
    """Read the secret alone, or the one form that declares a lifetime, which counts from `asked`.

    An object without `secret` is a secret itself, such as a service account's key file.
    """
    document = _document(data)
    if document is None or "secret" not in document:
        return seal_secret(data)
    secret, seconds = document["secret"], document.get("expires_in")
    if set(document) != _KEYS or not isinstance(secret, str):
        return SecretReading(
            flaw=f"the command printed an object with 'secret' in it, but not {FORM}"
        )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        seconds = 0
    if not 0 < seconds <= MAX_LIFE:
        return SecretReading(flaw=f"'expires_in' is a number of seconds, {MAX_LIFE:.0f} at most")
    reading = seal_secret(secret.encode("utf-8", "surrogatepass"))
    return (
        replace(reading, life=SecretLifetime(asked, asked + seconds)) if reading.secret else reading
    )


def _document(data: bytes) -> dict[str, object] | None:
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
