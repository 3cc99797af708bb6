"""The code of an invitation: the gateway's fingerprint, and a secret that works once.

`keyhole invite` prints it, and a person types it or a file passes it to `keyhole door`. The gateway
keeps only a digest of the secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

from msgspec import Struct

from keyhole.model.errors import Refused

PREFIX = "keyhole-"
"""The beginning of every code, so that people and secret scanners recognise it."""

SECRET = 16
FINGERPRINT = 16
_LENGTH = 52

LIFETIME_SECONDS = 600
"""Seconds for which an invitation can be used: long enough for a CI job to start."""

MAX_INVITATIONS = 256
"""Invitations of a gateway that are open at a time: as many as it has remote sandboxes."""

NO_CODE = "that is no code of `keyhole invite`"


class Invitation(Struct, frozen=True):
    """A gateway's fingerprint, and a secret that this gateway accepts once."""

    fingerprint: bytes
    secret: bytes

    @classmethod
    def make(cls, fingerprint: bytes) -> Invitation:
        """A new invitation."""
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
        """The digest of the secret, which the gateway keeps."""
        return invitation_digest(self.secret.hex())


def invitation_digest(secret: str) -> str:
    """The digest of an invitation's secret, in hexadecimal."""
    return hashlib.sha256(b"keyhole invitation " + secret.encode()).hexdigest()
