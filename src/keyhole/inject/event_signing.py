"""The signed messages of an AWS event stream: each of the client's is checked, then signed again.

Bidirectional streams (Bedrock's `invoke-with-bidirectional-stream`) sign their body message by
message, in a chain that begins with the signature of the request. A message that the client signed
with its placeholder goes on with the signature of the real key, which is as long, so nothing else
of it changes but its checksum. Used by the gateway for requests whose `X-Amz-Content-Sha256` is
`EVENTS`; `sigv4.py` signs their heads. Reads no clock; `now` is seconds since 1970.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from typing import TYPE_CHECKING

from keyhole.inject.sigv4 import END, MAX_SKEW, scope_keys
from keyhole.inject.stamp import stamp_of
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.inject.sigv4 import SigningKey, VerifiedSignature

MAX_EVENT = 2 << 20
"""Bytes of one message, which is held until it is whole: Bedrock takes at most 1,000,000 bytes in
an event, and what carries them in JSON writes them in Base64 (I9)."""

FEW_EVENTS, SMALL_EVENT = 64, 512
"""Events that may come at once, and one more for each so many bytes: sound in small pieces has 700
in an event. Attack: a read of empty events, each of which takes two signatures, stalls the loop for
a tenth of a second (I12)."""

_ALGORITHM = "AWS4-HMAC-SHA256-PAYLOAD"
_PRELUDE, _CHECKSUM = 12, 4
"""Two lengths and their checksum; the checksum of all."""
_DATE, _SIGNATURE = b":date", b":chunk-signature"
_BYTES, _TIMESTAMP = 6, 8
"""Types of a header's value."""
_SIGNATURE_SIZE = 32


class EventSigner:
    """The events of one request."""

    __slots__ = ("_held", "_keys", "_own", "_scope", "_scoped", "_second", "_signing", "_theirs")

    def __init__(self, signing: SigningKey, checked: VerifiedSignature, signature: str) -> None:
        """`checked` is of the client's head; `signature` is the one that its head goes on with."""
        self._signing = signing
        self._scoped = f"{checked.region}/{checked.service}"
        self._theirs = checked.signature
        self._own = signature
        self._held = bytearray()
        self._second = (0, "")
        """The second of the last event, and how signatures write it."""
        self._scope = ""
        self._keys = (b"", b"")
        """The keys of that scope, which has the day in it: the placeholder's and the real one."""

    def feed(self, data: bytes | memoryview, now: float) -> bytes:
        """The messages that are whole, signed again. Raises Malformed."""
        self._held += data
        return b"".join(self._messages(now))

    def finish(self) -> None:
        """The body has ended. Raises Malformed in the middle of a message."""
        if self._held:
            raise Malformed("the body ends in the middle of an event")

    def _messages(self, now: float) -> Iterator[bytes]:
        held = self._held
        most = FEW_EVENTS + len(held) // SMALL_EVENT
        while len(held) >= _PRELUDE:
            size = int.from_bytes(held[:4], "big")
            # Before it is waited for: a length that is none must not have bytes collected.
            if not _PRELUDE + _CHECKSUM <= size <= MAX_EVENT or not _is_summed(held[:_PRELUDE]):
                raise Malformed("not an event of AWS's event stream")
            if len(held) < size:
                return
            most -= 1
            if most < 0:
                raise Malformed("too many small events come at once")
            message = bytes(held[:size])
            del held[:size]
            yield self._sign_again(message, now)

    def _sign_again(self, message: bytes, now: float) -> bytes:
        if not _is_summed(message):
            raise Malformed("an event's checksum is wrong")
        headers = int.from_bytes(message[4:8], "big")
        end = _PRELUDE + headers
        if end > len(message) - _CHECKSUM:
            raise Malformed("an event's headers are longer than it is")
        date, moment, at = _read_headers(message, end)
        if abs(now - moment) > MAX_SKEW:
            raise Malformed("an event was signed at another time")
        signature = message[at : at + _SIGNATURE_SIZE]
        if self._second[0] != int(moment):
            self._second = (int(moment), stamp_of(moment))
        stamp = self._second[1]
        scope = f"{stamp[:8]}/{self._scoped}"
        before = f"{_ALGORITHM}\n{stamp}\n{scope}/{END}\n"
        after = f"\n{_digest(date)}\n{_digest(message[end:-_CHECKSUM])}"
        placeholder, real = self._keys_of(scope)
        expected = hmac.digest(placeholder, f"{before}{self._theirs}{after}".encode(), "sha256")
        if not hmac.compare_digest(expected, signature):
            raise Malformed("an event's signature is not that of the placeholder key")
        own = hmac.digest(real, f"{before}{self._own}{after}".encode(), "sha256")
        self._theirs, self._own = signature.hex(), own.hex()
        signed = message[:at] + own + message[at + _SIGNATURE_SIZE : -_CHECKSUM]
        return signed + zlib.crc32(signed).to_bytes(4, "big")

    def _keys_of(self, scope: str) -> tuple[bytes, bytes]:
        if scope != self._scope:
            self._keys = scope_keys(self._signing, scope)
            self._scope = scope
        return self._keys


def _is_summed(data: bytes | bytearray) -> bool:
    return zlib.crc32(data[:-_CHECKSUM]) == int.from_bytes(data[-_CHECKSUM:], "big")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_headers(message: bytes, end: int) -> tuple[bytes, float, int]:
    """The header with the date as it is written, its moment, and where the signature is.

    A signed message has these two headers alone; what it carries is an event of its own.
    """
    date, moment, signature, at = b"", 0.0, 0, _PRELUDE
    while at < end:
        start, name_end = at, at + 1 + message[at]
        if name_end >= end:
            raise Malformed("an event's headers are cut")
        name, kind = message[at + 1 : name_end], message[name_end]
        if name == _DATE and kind == _TIMESTAMP and not date:
            at = name_end + 9
            date = message[start:at]
            moment = int.from_bytes(date[-8:], "big", signed=True) / 1000
        elif name == _SIGNATURE and kind == _BYTES and not signature:
            signature = name_end + 3
            at = signature + _SIGNATURE_SIZE
            if int.from_bytes(message[name_end + 1 : signature], "big") != _SIGNATURE_SIZE:
                raise Malformed("an event's signature is of another length")
        else:
            raise Malformed("a signed event has another header than its date and signature")
    if at != end or not date or not signature:
        raise Malformed("a signed event has its date and its signature as headers")
    return date, moment, signature
