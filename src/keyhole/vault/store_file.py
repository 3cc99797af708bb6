"""One file of the store: a line of JSON that describes the entry, then the secret.

Written and read by `store.py`. The line is authenticated together with the ciphertext, so that a
file under another name, or with another mark, does not open. Nothing here raises, since the secret
may be in scope.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.vault.custody import MAX_SIZE, seal_secret
from keyhole.vault.interface import SecretReading

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.vault.envelope import StoreKey

MAX_HEADER = 512
"""Bytes of the first line, which has about 130."""

MAX_FILE = MAX_HEADER + 2 * MAX_SIZE
"""Bytes of a file: base64 makes the secret longer by a third."""

_LAST_SECOND = 1 << 37
"""The latest date that is accepted: the year 6325, which calendars can still write."""


class StorageForm(enum.StrEnum):
    """How a secret is stored on disk."""

    ENCRYPTED = "encrypted"
    KEYRING = "keyring"
    """In the desktop's keyring; the file has only the first line."""
    PLAIN = "plain"


class StoredSecret(Struct, frozen=True):
    """The public facts of a stored secret: neither its value nor its length."""

    name: str
    kept: StorageForm
    since: int
    """Seconds since the epoch."""


def write_header(entry: StoredSecret, *, insisted: bool) -> bytes:
    """The first line. `insisted`: the secret is short, and the user wants it all the same."""
    document = {
        "version": 1,
        "name": entry.name,
        "kept": entry.kept,
        "since": entry.since,
        "unsafe_short": insisted,
    }
    return json.dumps(document).encode() + b"\n"


def read_entry(name: str, data: bytes) -> StoredSecret | None:
    """Parse the first line; None when it is not one of this name."""
    header = _parse(name, data.partition(b"\n")[0])
    return header[0] if header else None


def read_file(
    name: str, data: bytes, key: StoreKey | None, keyring: Callable[[], SecretReading]
) -> SecretReading:
    """The secret, or why it cannot be used; an encrypted one needs the key.

    `keyring` reads an entry of the keyring.
    """
    line, newline, body = data.partition(b"\n")
    header = _parse(name, line)
    if header is None or len(data) > MAX_FILE:
        return SecretReading(flaw="its file in the store is damaged; set it again")
    entry, insisted = header
    found: bytes | None = body
    if entry.kept is StorageForm.ENCRYPTED:
        found = key.decrypt(body.strip(), line + newline) if key else None
    if found is None:
        return SecretReading(flaw="it does not open with the store's key; set it again")
    reading = keyring() if entry.kept is StorageForm.KEYRING else seal_secret(found)
    return SecretReading(reading.secret, reading.flaw, reading.short, insisted)


def _parse(name: str, line: bytes) -> tuple[StoredSecret, bool] | None:
    if len(line) > MAX_HEADER:
        return None
    try:
        found = json.loads(line)
        since = found["since"]
        if found["version"] != 1 or found["name"] != name or type(since) is not int:
            return None
        if not 0 <= since < _LAST_SECOND:
            return None
        return StoredSecret(name, StorageForm(found["kept"]), since), found["unsafe_short"] is True
    except (ValueError, KeyError, TypeError):
        return None
