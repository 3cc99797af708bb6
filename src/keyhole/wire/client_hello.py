"""The first message of TLS, read strictly and incrementally (RFC 8446 §4.1.2, 5.1; RFC 6066 §3).

Called by `client_flight.py`. An ambiguous hello is malformed: a name is smuggled past a gateway
when two parsers read one hello in two ways (I4)."""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Malformed

MAX_HELLO = 64 * 1024
"""Bytes of a hello; post-quantum shares and tickets make honest ones of about 2 to 17 KiB."""

MAX_RECORDS = 64
"""Records that one hello may be cut into; honest clients use one, evasive ones a few."""

_RECORD_HEADER = 5
_HANDSHAKE_HEADER = 4
_MAX_FRAGMENT = 2**14
_HANDSHAKE = 22
_CLIENT_HELLO = 1

_SERVER_NAME = 0
_ALPN = 16
_EARLY_DATA = 42
_SUPPORTED_VERSIONS = 43
_ECH = 0xFE0D

# RFC 6066 §3: "ASCII … without a trailing dot"; literal addresses are not permitted.
_LDH = re.compile(
    rb"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    rb"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_MAX_NAME = 253


class HelloIncomplete(Struct, frozen=True):
    """A hello so far, not whole yet."""


class HelloNotTls(Struct, frozen=True):
    """Some other protocol."""


class HelloMalformed(Struct, frozen=True):
    """TLS by its first byte, but not a ClientHello that has one meaning."""

    reason: str


class ClientHello(Struct, frozen=True):
    """The parts of a ClientHello that the gateway decides by."""

    sni: str | None
    alpn: tuple[bytes, ...] = ()
    ech: bool = False
    versions: tuple[int, ...] = ()
    early_data: bool = False


HelloOutcome = HelloIncomplete | HelloNotTls | HelloMalformed | ClientHello

NEED_MORE = HelloIncomplete()
NOT_TLS = HelloNotTls()


class HelloReader:
    """Joins records until a ClientHello is whole. Any other result is final and is repeated."""

    __slots__ = ("_buffer", "_message", "_outcome", "_records")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()
        self._records = 0
        self._outcome: HelloOutcome = NEED_MORE

    def feed(self, data: bytes) -> HelloOutcome:
        """Take bytes in."""
        self._buffer += data
        while self._outcome is NEED_MORE and self._buffer:
            outcome = self._record()
            if outcome is None:
                break
            self._outcome = outcome
        return self._outcome

    @property
    def rest(self) -> bytes:
        """The bytes after the last record of the hello."""
        return bytes(self._buffer)

    def _record(self) -> HelloOutcome | None:
        """Take one record off the buffer; None while it is not complete."""
        buffer = self._buffer
        if buffer[0] != _HANDSHAKE:
            return HelloMalformed("another record inside the hello") if self._records else NOT_TLS
        if len(buffer) > 1 and buffer[1] != 3:
            return HelloMalformed("record version") if self._records else NOT_TLS
        if len(buffer) < _RECORD_HEADER:
            return None
        length = int.from_bytes(buffer[3:5], "big")
        if buffer[2] > 4:
            return HelloMalformed("record version")
        if not 0 < length <= _MAX_FRAGMENT:
            # RFC 8446 §5.1: "MUST NOT send zero-length fragments of Handshake types".
            return HelloMalformed("record length")
        end = _RECORD_HEADER + length
        if len(buffer) < end:
            return None
        self._records += 1
        if self._records > MAX_RECORDS:
            return HelloMalformed("too many records")
        self._message += buffer[_RECORD_HEADER:end]
        del buffer[:end]
        return self._whole()

    def _whole(self) -> HelloOutcome:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            return HelloMalformed("not a ClientHello")
        if len(message) < _HANDSHAKE_HEADER:
            return NEED_MORE
        end = _HANDSHAKE_HEADER + int.from_bytes(message[1:4], "big")
        if end > MAX_HELLO:
            return HelloMalformed("hello too long")
        if len(message) < end:
            return NEED_MORE
        if len(message) > end:
            # Nothing may follow in the same record: the keys change after a hello.
            return HelloMalformed("trailing bytes after the hello")
        try:
            return _parse_body(_Reader(bytes(message[_HANDSHAKE_HEADER:])))
        except Malformed as error:
            return HelloMalformed(error.message)


class _Reader:
    """Takes length-prefixed vectors off some bytes."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            # A vector is longer than the bytes that contain it.
            raise Malformed("length")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))

    def remains(self) -> bool:
        return self._at < len(self._data)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def _parse_body(body: _Reader) -> ClientHello:
    if body.number(2) >> 8 != 3:
        raise Malformed("legacy version")
    body.take(32)
    if len(body.vector(1).rest()) > 32:
        raise Malformed("session id")
    suites = body.vector(2).rest()
    if not suites or len(suites) % 2:
        raise Malformed("cipher suites")
    if not body.vector(1).remains():
        raise Malformed("compression methods")
    if not body.remains():
        return ClientHello(None)  # RFC 5246: a hello without extensions
    extensions = body.vector(2)
    if body.remains():
        raise Malformed("trailing bytes in the hello")
    found: dict[int, bytes] = {}
    while extensions.remains():
        kind = extensions.number(2)
        if kind in found:
            # RFC 8446 §4.2: "There MUST NOT be more than one extension of the same type".
            raise Malformed("duplicate extension")
        found[kind] = extensions.vector(2).rest()
    return ClientHello(
        sni=_server_name(found.get(_SERVER_NAME)),
        alpn=_protocols(found.get(_ALPN)),
        ech=_ECH in found,
        versions=_versions(found.get(_SUPPORTED_VERSIONS)),
        early_data=_EARLY_DATA in found,
    )


def _server_name(value: bytes | None) -> str | None:
    if value is None:
        return None
    outer = _Reader(value)
    names = outer.vector(2)
    if names.number(1) != 0:
        raise Malformed("server name type")
    name = names.vector(2).rest()
    if outer.remains() or names.remains():
        raise Malformed("several server names")
    if len(name) > _MAX_NAME or not _LDH.fullmatch(name):
        # Attack: `evil\0.allowed.com` was cut at the NUL by one parser and not by the other.
        raise Malformed("server name")
    return name.decode("ascii")


def _protocols(value: bytes | None) -> tuple[bytes, ...]:
    if value is None:
        return ()
    outer = _Reader(value)
    names = outer.vector(2)
    if outer.remains():
        raise Malformed("alpn")
    protocols = []
    while names.remains():
        protocol = names.vector(1).rest()
        if not protocol:
            raise Malformed("alpn")
        protocols.append(protocol)
    return tuple(protocols)


def _versions(value: bytes | None) -> tuple[int, ...]:
    if value is None:
        return ()
    outer = _Reader(value)
    packed = outer.vector(1).rest()
    if outer.remains() or not packed or len(packed) % 2:
        raise Malformed("supported versions")
    return tuple(int.from_bytes(packed[i : i + 2], "big") for i in range(0, len(packed), 2))
