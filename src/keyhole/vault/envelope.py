"""Encrypts stored secrets with a key that a passphrase opens.

scrypt derives a key from the passphrase; it opens the store's own random key, which encrypts each
secret (AES-256-GCM). So the passphrase is stretched once for all secrets, and can be changed. Used
by the store, and the one module of this room that reveals a secret: it makes the bytes that are
written.
"""

from __future__ import annotations

import base64
import json
import os
import unicodedata
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from keyhole.model.secret import Secret

COST = 17
"""log2 of scrypt's N, with r = 8: 128 MiB and a few tenths of a second for each guess."""
COSTS = range(10, 21)
"""Costs that are accepted from a key file: 1 GiB at most (I9); tests use less."""

_BLOCK = 8
_SALT_BYTES = 16
_KEY_BYTES = 32
_NONCE_BYTES = 12
"""Random for each encryption: NIST SP 800-38D allows 2^32 of them under one key."""

_PURPOSE: Final = b"keyhole store key 1\n"


class StoreKey:
    """The store's key, opened. Its repr shows nothing."""

    __slots__ = ("__cipher",)

    def __init__(self, key: bytes) -> None:
        self.__cipher = AESGCM(key)

    def encrypt(self, secret: Secret, header: bytes) -> bytes:
        """Encrypt, bound to the header: a secret stored under one name cannot be opened under
        another."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self.__cipher.encrypt(nonce, secret.reveal().encode("utf-8"), header)
        return base64.b64encode(nonce + sealed)

    def decrypt(self, body: bytes, header: bytes) -> bytes | None:
        """The characters; None if key, header and body do not belong together."""
        try:
            data = base64.b64decode(body, validate=True)
            return self.__cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], header)
        except (InvalidTag, ValueError):
            return None


def unencrypted(secret: Secret) -> bytes:
    """The bytes unencrypted, on the user's explicit request."""
    return secret.reveal().encode("utf-8")


def make_key(passphrase: Secret, cost: int = COST) -> tuple[StoreKey, bytes]:
    """A new key, and the key file from which the passphrase opens it."""
    salt, nonce, key = (os.urandom(n) for n in (_SALT_BYTES, _NONCE_BYTES, _KEY_BYTES))
    wrapped = _stretched(passphrase, salt, cost).encrypt(nonce, key, _PURPOSE)
    fields = {"salt": salt, "nonce": nonce, "key": wrapped}
    document: dict[str, object] = {k: base64.b64encode(v).decode() for k, v in fields.items()}
    text = json.dumps({"version": 1, "kdf": "scrypt", "cost": cost} | document)
    return StoreKey(key), text.encode() + b"\n"


def open_key(file: bytes, passphrase: Secret) -> StoreKey | None:
    """The store's key; None if the passphrase is wrong. Raises ResourceUnusable."""
    try:
        document = json.loads(file)
        cost = document["cost"]
        salt, nonce, wrapped = (
            base64.b64decode(document[name], validate=True) for name in ("salt", "nonce", "key")
        )
        known = document["version"] == 1 and document["kdf"] == "scrypt" and type(cost) is int
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ResourceUnusable("the store's key file is damaged") from None
    if not known or cost not in COSTS or len(nonce) != _NONCE_BYTES:
        raise ResourceUnusable("the store's key file is damaged")
    try:
        return StoreKey(_stretched(passphrase, salt, cost).decrypt(nonce, wrapped, _PURPOSE))
    except (InvalidTag, ValueError):
        return None


def _stretched(passphrase: Secret, salt: bytes, cost: int) -> AESGCM:
    # One spelling for one passphrase, whichever way a keyboard composes its accents.
    text = unicodedata.normalize("NFC", passphrase.reveal())
    derived = Scrypt(salt=salt, length=_KEY_BYTES, n=1 << cost, r=_BLOCK, p=1)
    return AESGCM(derived.derive(text.encode("utf-8", "surrogatepass")))
