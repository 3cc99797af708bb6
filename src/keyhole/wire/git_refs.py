"""Rewrites the advertisement of a git server before the client reads it (gitprotocol-http, -pack,
-v2).

Called by the gateway between an origin's response to `info/refs` and the search for secrets. It
removes capabilities that would be refused later, so that an honest client fails early and with its
own message, and capabilities that would send a client to other hosts (I2). Refs pass one by one:
only a packet is held, since a repository may have 100,000 refs.
"""

from __future__ import annotations

import enum
import re

from keyhole.model.errors import Malformed
from keyhole.wire.pkt_line import FLUSH, Marker, Packet, PacketReader, chomp, encode
from keyhole.wire.receive_pack import PLAIN_CAPABILITIES, VALUED_CAPABILITIES

UPLOAD_PACK = "git-upload-pack"
RECEIVE_PACK = "git-receive-pack"

ADVERTISEMENT_TYPES = {
    UPLOAD_PACK: b"application/x-git-upload-pack-advertisement",
    RECEIVE_PACK: b"application/x-git-receive-pack-advertisement",
}
REQUEST_TYPES = {
    UPLOAD_PACK: b"application/x-git-upload-pack-request",
    RECEIVE_PACK: b"application/x-git-receive-pack-request",
}
RESULT_TYPES = {
    UPLOAD_PACK: b"application/x-git-upload-pack-result",
    RECEIVE_PACK: b"application/x-git-receive-pack-result",
}
"""Media types by service. Servers compare them byte by byte; so do we."""

# bundle-uri, promisor-remote and packfile-uris name other hosts; a server-option is free text to
# the server. A capability of a later git is offered only after it was reviewed and listed here.
_V2_CAPABILITIES = frozenset(b"agent ls-refs fetch object-format object-info session-id".split())
_V2_FETCH = frozenset(b"shallow wait-for-done filter ref-in-want sideband-all".split())

# A name in an advertisement: also `HEAD`, `refs/tags/v1^{}`, `.have`, `capabilities^{}`.
_REF = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([^\x00-\x20\x7f]+)")
_SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_WORDS = re.compile(rb"[\x20-\x7e]*")
_FORKS = b".have"
_NO_REFS = b"capabilities^{}"


class _State(enum.Enum):
    FIRST = 0
    SERVICE = 1
    VERSION = 2
    FIRST_REF = 3
    REFS = 4
    V2 = 5
    DONE = 6
    FAILED = 7


class AdvertisementRewriter:
    """Rewrites the advertisement of one service as it is fed."""

    __slots__ = ("_options", "_packets", "_pending", "_push", "_service", "_state")

    def __init__(self, service: str, *, options: bool = False) -> None:
        """`options`: whether the policy allows push options.

        Deletes are always offered: without the capability git gives no reason, a report does.
        """
        self._service = service.encode()
        self._push = service == RECEIVE_PACK
        self._options = options
        self._packets = PacketReader()
        self._state = _State.FIRST
        self._pending: tuple[bytes, bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return those that go to the client."""
        return b"".join([self._packet(packet) for packet in self._packets.feed(data)])

    def end(self) -> bytes:
        """The response has ended."""
        failed = self._state is _State.FAILED
        if not failed and (self._state is not _State.DONE or self._packets.held):
            raise Malformed("an advertisement ends before its last packet")
        return b""

    def _packet(self, packet: Packet) -> bytes:
        state = self._state
        if state is _State.DONE:
            raise Malformed("something follows an advertisement")
        if state is _State.FAILED:
            # The client has ended at the error.
            return b""
        if isinstance(packet, Marker):
            return self._marker(packet)
        line = chomp(packet)
        if state is _State.FIRST and line.startswith(b"# service="):
            if line != b"# service=" + self._service:
                raise Malformed("an advertisement is of another service")
            self._state = _State.SERVICE
            return encode(packet)
        if state is _State.SERVICE:
            raise Malformed("the line with the service is not followed by a flush packet")
        if state in (_State.FIRST, _State.VERSION):
            return self._start(line, packet)
        if state is _State.V2:
            return self._capability(line)
        return self._ref(line, packet)

    def _marker(self, marker: Marker) -> bytes:
        state = self._state
        if marker is not Marker.FLUSH or state is _State.FIRST:
            raise Malformed("a flush packet is missing, or another marker stands in its place")
        if state is _State.SERVICE:
            self._state = _State.VERSION
            return FLUSH
        if self._push and state is not _State.REFS:
            raise Malformed("an advertisement has no capabilities")
        # An old server sends this for an empty repository.
        self._state = _State.DONE
        return self._unsaid() + FLUSH

    def _start(self, line: bytes, packet: bytes) -> bytes:
        """The first line of the list, which names the protocol."""
        if line.startswith(b"ERR "):
            self._state = _State.FAILED
            return encode(packet)
        if line == b"version 2" and not self._push:
            self._state = _State.V2
            return encode(packet)
        if self._state is _State.FIRST:
            raise Malformed("an advertisement does not begin with its service")
        self._state = _State.FIRST_REF
        if line == b"version 1":
            return encode(packet)
        return self._ref(line, packet)

    def _capability(self, line: bytes) -> bytes:
        if _WORDS.fullmatch(line) is None:
            raise Malformed("a capability is not printable")
        name, equals, value = line.partition(b"=")
        if name not in _V2_CAPABILITIES:
            return b""
        if name == b"fetch":
            value = b" ".join([word for word in value.split(b" ") if word in _V2_FETCH])
            equals = b"=" if value else b""
        return encode(b"%b%b%b\n" % (name, equals, value))

    def _ref(self, line: bytes, packet: bytes) -> bytes:
        named, nul, capabilities = line.partition(b"\0")
        found = _REF.fullmatch(named)
        if found is None:
            if self._state is not _State.REFS or _SHALLOW.fullmatch(line) is None:
                raise Malformed("a line of an advertisement is not `OID NAME`")
            return self._unsaid() + encode(packet)
        oid, name = found.groups()
        if nul:
            if self._state is not _State.FIRST_REF or _WORDS.fullmatch(capabilities) is None:
                # Clients differ in which of two lists they take.
                raise Malformed("capabilities are not printable, or not on the first ref")
            self._state = _State.REFS
            self._pending = (oid, self._offered(capabilities))
        elif self._state is _State.FIRST_REF:
            raise Malformed("the first ref has no capabilities")
        if self._push and name == _FORKS:
            # Objects of forks: a commit that builds on them cannot be proven to be in this
            # repository.
            return b""
        if self._pending is not None:
            _, offered = self._pending
            self._pending = None
            return encode(b"%b %b\0%b\n" % (oid, name, offered))
        return encode(packet)

    def _unsaid(self) -> bytes:
        """Capabilities of a line that was dropped, when no ref is left to carry them.

        They are written as a server without refs does.
        """
        if self._pending is None:
            return b""
        oid, offered = self._pending
        self._pending = None
        return encode(b"%b %b\0%b\n" % (b"0" * len(oid), _NO_REFS, offered))

    def _offered(self, capabilities: bytes) -> bytes:
        if not self._push:
            return capabilities
        words = [word for word in capabilities.split(b" ") if self._may_offer(word)]
        # A thin pack's bases would have to be fetched before it can be judged.
        return b" ".join([*words, b"no-thin"])

    def _may_offer(self, word: bytes) -> bool:
        name, equals, _ = word.partition(b"=")
        if name == b"push-options":
            return self._options
        return name in (VALUED_CAPABILITIES if equals else PLAIN_CAPABILITIES)
