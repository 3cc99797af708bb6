"""One file of the store: a line of JSON that says what it is, then the secret.

Written and read by `store.py`. The line is authenticated with what is encrypted below it, so that a
file under another name, or with another mark, does not open. Nothing here raises: the secret may be
at hand.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.vault.custody import MAX_SIZE, seal
from keyhole.vault.interface import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.vault.envelope import StoreKey

MAX_HEADER = 512
"""Bytes of the first line, which has about 130."""

MAX_FILE = MAX_HEADER + 2 * MAX_SIZE
"""Bytes of a file: base64 makes the secret longer by a third."""

_LAST_SECOND = 1 << 37
"""No date is later: the year 6325, which calendars still can write."""


class Kept(enum.StrEnum):
    """How a secret lies on the disk."""

    ENCRYPTED = "encrypted"
    KEYRING = "keyring"
    """In the desktop's keyring; the file has the first line alone."""
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Entry:
    """What may be told of a stored secret: neither its value nor its length."""

    name: str
    kept: Kept
    since: int
    """Seconds since the epoch."""


def write_header(entry: Entry, *, insisted: bool) -> bytes:
    """The first line. `insisted`: it is short, and its owner wants it all the same."""
    document = {
        "version": 1,
        "name": entry.name,
        "kept": entry.kept,
        "since": entry.since,
        "unsafe_short": insisted,
    }
    return json.dumps(document).encode() + b"\n"


def read_entry(name: str, data: bytes) -> Entry | None:
    """What the first line says; None where it is not one of this name."""
    header = _parse(name, data.partition(b"\n")[0])
    return header[0] if header else None


def read_file(
    name: str, data: bytes, key: StoreKey | None, keyring: Callable[[], Reading]
) -> Reading:
    """The secret, or why it cannot be used; an encrypted one wants the key.

    `keyring` reads what is kept there.
    """
    line, newline, body = data.partition(b"\n")
    header = _parse(name, line)
    if header is None or len(data) > MAX_FILE:
        return Reading(flaw="its file in the store is damaged; set it again")
    entry, insisted = header
    found: bytes | None = body
    if entry.kept is Kept.ENCRYPTED:
        found = key.decrypt(body.strip(), line + newline) if key else None
    if found is None:
        return Reading(flaw="it does not open with the store's key; set it again")
    reading = keyring() if entry.kept is Kept.KEYRING else seal(found)
    return Reading(reading.secret, reading.flaw, reading.short, insisted)


def _parse(name: str, line: bytes) -> tuple[Entry, bool] | None:
    if len(line) > MAX_HEADER:
        return None
    try:
        found = json.loads(line)
        since = found["since"]
        if found["version"] != 1 or found["name"] != name or type(since) is not int:
            return None
        if not 0 <= since < _LAST_SECOND:
            return None
        return Entry(name, Kept(found["kept"]), since), found["unsafe_short"] is True
    except (ValueError, KeyError, TypeError):
        return None
