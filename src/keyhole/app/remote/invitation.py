"""The code of an invitation: it names the gateway by its fingerprint, and works once.

Printed by `keyhole invite`, and typed or handed to `keyhole door`. The gateway keeps only a digest
of the secret half.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

from msgspec import Struct

from keyhole.model.errors import Refused

PREFIX = "keyhole-"
"""The beginning of every code, so that scanners and people know it."""

SECRET = 16
FINGERPRINT = 16
_LENGTH = 52

LIFETIME_SECONDS = 600
"""How long an invitation can be used: long enough for a CI job to start."""

NO_CODE = "that is no code of `keyhole invite`"


class Invitation(Struct, frozen=True):
    """A gateway's fingerprint and a secret that it takes once."""

    fingerprint: bytes
    secret: bytes

    @classmethod
    def make(cls, fingerprint: bytes) -> Invitation:
        """A new one."""
        return cls(fingerprint, secrets.token_bytes(SECRET))

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """Read a code. Raises Refused, which does not repeat it."""
        words = text.strip().removeprefix(PREFIX).upper()
        try:
            data = base64.b32decode(words + "=" * (-len(words) % 8))
        except (ValueError, binascii.Error):
            raise Refused(NO_CODE) from None
        if len(words) != _LENGTH or len(data) != SECRET + FINGERPRINT:
            raise Refused(NO_CODE)
        return cls(data[:FINGERPRINT], data[FINGERPRINT:])

    @property
    def code(self) -> str:
        """The code, for a person or a CI job."""
        data = base64.b32encode(self.fingerprint + self.secret).decode("ascii")
        return PREFIX + data.rstrip("=").lower()

    @property
    def digest(self) -> str:
        """The form in which a gateway keeps it."""
        return invitation_digest(self.secret.hex())


def invitation_digest(secret: str) -> str:
    """The digest of a secret half in hexadecimal."""
    return hashlib.sha256(b"keyhole invitation " + secret.encode()).hexdigest()
