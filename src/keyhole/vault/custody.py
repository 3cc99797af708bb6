"""Bytes become a Secret here and nowhere else, or are refused with a flaw in words.

Called by every source with what it read, and by `keyhole secret set`. Nothing here raises while it
has the characters at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.injection import MAX_PARTS
from keyhole.inject.renderings import MIN_SCRUBBED
from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.vault.interface import Given, Reading, Unavailable

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef

MAX_SIZE = 64 * 1024
"""Bytes of a secret: a service account's key file has 2,500; servers take headers of 16 KiB."""


def seal(data: bytes) -> Reading:
    """The characters as a Secret, without the line end that editors and `echo` add."""
    if len(data) > MAX_SIZE:
        return Reading(flaw=f"the secret is larger than {MAX_SIZE} bytes")
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").strip("\n")
    except UnicodeDecodeError:
        return Reading(flaw="the secret is not UTF-8 text")
    if not text:
        return Reading(flaw="the secret is empty")
    lines = text.split("\n")
    # A line end or NUL in a header's value starts a header, or a request, of its own.
    if not all(line.isprintable() for line in lines):
        return Reading(flaw="the secret has control or invisible characters")
    # Servers trim a header's value: what they reflect would not be what is searched for (I7).
    if text[0] == " " or text[-1] == " ":
        return Reading(flaw="the secret begins or ends with a space")
    return Reading(Secret(text), short=_is_short(lines))


def admit(ref: SecretRef, reading: Reading, *, unsafe_short: bool = False) -> Given:
    """What was read, if it may be used; else Unavailable with the reason."""
    if reading.secret is None:
        raise Unavailable(ref, reading.flaw or "nothing was read")
    if not reading.short:
        return Given(reading.secret, reading.warning, life=reading.life, hidden=reading.hidden)
    if not (unsafe_short or reading.insisted):
        raise Unavailable(
            ref,
            f"the secret, or a line of it, is shorter than {MIN_SCRUBBED} characters, so it cannot "
            "be told from ordinary text when a service sends it back. Use a longer one; if you "
            "must, `keyhole secret set NAME --unsafe-short` keeps it",
        )
    name = visible(str(ref))
    warning = f"{name} is shorter than {MIN_SCRUBBED} characters and is not removed from answers"
    if reading.warning:
        warning = f"{reading.warning}; {warning}"
    return Given(reading.secret, warning, unscrubbed=True, life=reading.life, hidden=reading.hidden)


def _is_short(lines: list[str]) -> bool:
    """Few lines are parts that are written each by itself; many are one document, as JSON is."""
    if len(lines) <= MAX_PARTS:
        return min(map(len, lines)) < MIN_SCRUBBED
    return sum(map(len, lines)) < MIN_SCRUBBED
