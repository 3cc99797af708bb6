"""Encrypts entity tags, so that they reveal no digest and can still be compared (I7).

The gateway makes one for each session and uses it for responses with an `ETag` and for requests
with `If-Match` and its like. Many servers use a hash of the body as its tag. Beside a body from
which a secret was replaced, that hash would let an attacker test guesses at the secret offline. A
client only needs to send a tag back. So the gateway encrypts it, the same tag to the same text for
as long as the session lives, and decrypts the tags that the client sends.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import blake2b, shake_256
from hmac import compare_digest
from typing import NoReturn

MAX_TAG = 1024
"""Bytes of a tag that is sealed; a longer one is left out. Real ones have fewer than 100."""

KEY_BYTES = 32

_MARK = 16
_SEALED = re.compile(rb'"kh\.([A-Za-z0-9_-]{23,1500})"')
_WEAK = b"W/"


class EntityTags:
    """The tags of one session, or of one host in it. Cannot be printed or pickled."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """`key` is random and of this session alone."""
        self._key = key

    def __repr__(self) -> str:
        return "EntityTags()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the key of entity tags cannot be pickled or copied")

    def of(self, host: str) -> EntityTags:
        """The tags of one host. Each host has its own: another host could reveal what it is
        sent."""
        return EntityTags(blake2b(host.encode(), digest_size=KEY_BYTES, key=self._key).digest())

    def seal(self, value: bytes) -> bytes:
        """The value of an `ETag` as the client gets it; empty when it is too long."""
        weak, tag = (_WEAK, value[2:]) if value.startswith(_WEAK) else (b"", value)
        if not 0 < len(tag) <= MAX_TAG:
            return b""
        mark = self._mark(tag)
        text = base64.urlsafe_b64encode(mark + self._crossed(tag, mark)).rstrip(b"=")
        return b'%b"kh.%b"' % (weak, text)

    def open(self, value: bytes) -> bytes:
        """The value of `If-Match` or its like as the origin gets it.

        A tag that was not encrypted here passes unchanged: the client may have it from an upload,
        or from the body of a response.
        """
        return _SEALED.sub(self._opened, value)

    def _opened(self, sealed: re.Match[bytes]) -> bytes:
        text = sealed[1]
        try:
            data = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            return sealed[0]
        mark = data[:_MARK]
        tag = self._crossed(data[_MARK:], mark)
        return tag if compare_digest(self._mark(tag), mark) else sealed[0]

    def _mark(self, tag: bytes) -> bytes:
        return blake2b(tag, digest_size=_MARK, key=self._key).digest()

    def _crossed(self, data: bytes, mark: bytes) -> bytes:
        stream = shake_256(self._key + mark).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))
