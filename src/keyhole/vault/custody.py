"""Makes a Secret of bytes, here and nowhere else, or describes why they cannot be one.

Called by every source with the bytes that it read, and by `keyhole secret set`. Nothing here raises
while the characters are in scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.injection import MAX_PARTS
from keyhole.inject.renderings import MIN_SCRUBBED
from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.vault.interface import FetchedSecret, SecretReading, SecretUnavailable

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef

MAX_SIZE = 64 * 1024
"""Bytes of a secret: a service account's key file has 2,500; servers accept headers of 16 KiB."""


def seal_secret(data: bytes) -> SecretReading:
    """The characters as a Secret, without the line end that editors and `echo` add."""
    if len(data) > MAX_SIZE:
        return SecretReading(flaw=f"the secret is larger than {MAX_SIZE} bytes")
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").strip("\n")
    except UnicodeDecodeError:
        return SecretReading(flaw="the secret is not UTF-8 text")
    if not text:
        return SecretReading(flaw="the secret is empty")
    lines = text.split("\n")
    # A line end or NUL in a header's value starts a header, or a request, of its own.
    if not all(line.isprintable() for line in lines):
        return SecretReading(flaw="the secret has control or invisible characters")
    # Servers trim a header's value: the reflected text would differ from the needle (I7).
    if text[0] == " " or text[-1] == " ":
        return SecretReading(flaw="the secret begins or ends with a space")
    return SecretReading(Secret(text), short=_is_short(lines))


def admit_reading(
    ref: SecretRef, reading: SecretReading, *, unsafe_short: bool = False
) -> FetchedSecret:
    """The secret, if it may be used. Raises SecretUnavailable with the reason otherwise."""
    if reading.secret is None:
        raise SecretUnavailable(ref, reading.flaw or "nothing was read")
    if not reading.short:
        return FetchedSecret(
            reading.secret, reading.warning, life=reading.life, hidden=reading.hidden
        )
    if not (unsafe_short or reading.insisted):
        raise SecretUnavailable(
            ref,
            f"the secret, or a line of it, is shorter than {MIN_SCRUBBED} characters, so it cannot "
            "be told from ordinary text when a service sends it back. Use a longer one; if you "
            "must, `keyhole secret set NAME --unsafe-short` keeps it",
        )
    name = visible(str(ref))
    warning = f"{name} is shorter than {MIN_SCRUBBED} characters and is not removed from answers"
    if reading.warning:
        warning = f"{reading.warning}; {warning}"
    return FetchedSecret(
        reading.secret, warning, unscrubbed=True, life=reading.life, hidden=reading.hidden
    )


def _is_short(lines: list[str]) -> bool:
    """Whether it is too short. A few lines are parts, each of which must be long enough; many lines
    are one document, such as JSON."""
    if len(lines) <= MAX_PARTS:
        return min(map(len, lines)) < MIN_SCRUBBED
    return sum(map(len, lines)) < MIN_SCRUBBED
