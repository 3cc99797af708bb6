"""Fetches: a client's requests, and those that Keyhole itself sends (gitprotocol-v2, -pack).

Called by the gateway: for a client's fetch before it goes upstream, and for the questions that a
push raises (where refs are, which commits lie between, what a commit's trees hold). A client's
request is read whole and rebuilt, so that only what was understood is sent (I4).
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, Refused, UpstreamFailed
from keyhole.wire.pkt_line import (
    DELIM,
    FLUSH,
    Marker,
    Packet,
    PacketReader,
    chomp,
    encode,
    read_packets,
)
from keyhole.wire.receive_pack import OID_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_REQUEST = 8 * 1024 * 1024
"""Bytes of a client's fetch, inflated: a mirror of 100,000 refs names each once."""

MAX_SHORT_LINES, OBJECT_LINE = 4096, 45
"""Packets in it that name no object, and bytes at least of one that does: each takes its time, and
a request of nothing but short ones would have eight times as many."""

MAX_REFS = 200_000
"""Branches and tags that are held for judging one push: some 45 MB. Few repositories have half."""

MAX_ERROR = 300
"""Characters that are kept of an origin's error."""

_OID = rb"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_REV = rb"[\x21-\x7e\x80-\xff]{1,1024}"
_NUMBER = rb"[0-9]{1,10}"
_WORDS = re.compile(rb"[\x20-\x7e]*")

_ARGUMENTS = {
    b"ls-refs": re.compile(rb"peel|symrefs|unborn|ref-prefix (?:%b)?" % _REV),
    b"object-info": re.compile(rb"size|oid %b" % _OID),
    b"fetch": re.compile(
        rb"(?:want|have|shallow) %b|done|thin-pack|no-progress|include-tag|ofs-delta"
        rb"|deepen(?:-since)? %b|deepen-relative|deepen-not %b|filter %b|want-ref %b"
        rb"|sideband-all|wait-for-done" % (_OID, _NUMBER, _REV, _REV, _REV)
    ),
}
_V2_CAPABILITIES = frozenset(b"agent object-format session-id".split())
_PACKFILE_URIS = b"packfile-uris "

_OLD_WANT = re.compile(rb"want (?:%b)(?: ([\x20-\x7e]*))?" % _OID)
_OLD_LINE = re.compile(
    rb"(?:have|shallow) %b|done|deepen(?:-since)? %b|deepen-not %b|filter %b"
    % (_OID, _NUMBER, _REV, _REV)
)
_OLD_CAPABILITIES = frozenset(
    b"multi_ack multi_ack_detailed no-done thin-pack side-band side-band-64k ofs-delta shallow"
    b" deepen-since deepen-not deepen-relative no-progress include-tag filter"
    b" allow-tip-sha1-in-want allow-reachable-sha1-in-want agent object-format session-id".split()
)

_NOT_PRINTABLE = re.compile(r"[^ -~]+")
_BAND_DATA = 1
_BAND_PROGRESS = 2
_BAND_ERROR = 3


def _remote_error(said: bytes) -> UpstreamFailed:
    """An origin's error packet, as one line of printable ASCII that the origin chose."""
    text = _NOT_PRINTABLE.sub(" ", said.decode("latin-1")).strip()[:MAX_ERROR]
    return UpstreamFailed(Reason.UPSTREAM_REFUSED, text)


# ── what a client asks ───────────────────────────────────────────────────────────────────────────


def read_fetch(body: bytes, version: int) -> bytes:
    """Check the inflated body of a client's fetch and return the body to send upstream."""
    if body == FLUSH:
        # With which git tries the way before a large request.
        return body
    if len(body) > MAX_REQUEST:
        raise Malformed(f"a fetch has at most {MAX_REQUEST} bytes")
    packets = read_packets(body, MAX_SHORT_LINES + len(body) // OBJECT_LINE)
    return _read_v2(packets) if version == 2 else _read_old(packets)


def _read_v2(packets: list[Packet]) -> bytes:
    if len(packets) < 2 or packets[-1] is not Marker.FLUSH:
        raise Malformed("a request does not end with a flush packet")
    ended = packets.index(Marker.DELIM) if Marker.DELIM in packets else len(packets) - 1
    head, arguments = _lines(packets[:ended]), _lines(packets[ended + 1 : -1])
    command = head[0].removeprefix(b"command=") if head else b""
    if not command or head[0] == command:
        raise Malformed("a request does not begin with its command")
    known = _ARGUMENTS.get(command)
    if known is None:
        raise Refused("only ls-refs, fetch and object-info are allowed")
    written = [encode(head[0] + b"\n")]
    for line in head[1:]:
        if _WORDS.fullmatch(line) is None or line.startswith(b"command="):
            raise Malformed("a capability is not printable, or is a second command")
        if line.partition(b"=")[0] not in _V2_CAPABILITIES:
            raise Refused("a capability is used that was not offered")
        written.append(encode(line + b"\n"))
    if ended < len(packets) - 1:
        written.append(DELIM)
    for line in arguments:
        if command == b"fetch" and line.startswith(_PACKFILE_URIS):
            # The answer would name other hosts for the client to go to.
            continue
        if known.fullmatch(line) is None:
            raise Refused("an argument is not known, or not as git writes it")
        written.append(encode(line + b"\n"))
    return b"".join(written) + FLUSH


def _lines(packets: list[Packet]) -> list[bytes]:
    lines = [chomp(packet) for packet in packets if not isinstance(packet, Marker)]
    if len(lines) != len(packets):
        # C git executes the first command and ignores what follows; another server may not.
        raise Malformed("a request has more than one list of arguments")
    return lines


def _read_old(packets: list[Packet]) -> bytes:
    """Protocol 0 and 1: `want`s with capabilities on the first, then rounds of `have`."""
    written: list[bytes] = []
    for packet in packets:
        if packet is Marker.FLUSH and written:
            written.append(FLUSH)
            continue
        line = b"" if isinstance(packet, Marker) else chomp(packet)
        want = _OLD_WANT.fullmatch(line)
        if want is None:
            if _OLD_LINE.fullmatch(line) is None or not written:
                raise Malformed("a line of a fetch is not as git writes it")
        elif want[1] is not None:
            if written:
                raise Malformed("capabilities stand on the first want only")
            names = {word.partition(b"=")[0] for word in want[1].split(b" ") if word}
            if not names <= _OLD_CAPABILITIES:
                raise Refused("a capability is used that was not offered")
        written.append(encode(line + b"\n"))
    if not written:
        raise Malformed("a fetch asks for nothing")
    return b"".join(written)


# ── what Keyhole asks ────────────────────────────────────────────────────────────────────────────


class ServerAbilities(Struct, frozen=True):
    """Capabilities of a server that Keyhole's own requests depend on."""

    version: int
    object_format: str
    filters: bool
    unborn: bool = False
    """The server can report where HEAD points before the first commit."""


def read_abilities(advertisement: bytes) -> ServerAbilities:
    """Read the answer to `info/refs?service=git-upload-pack` with `Git-Protocol: version=2`."""
    reader = PacketReader()
    reader.add(advertisement)
    version, words = 0, list[bytes]()
    while (packet := reader.take()) is not None:
        if isinstance(packet, Marker):
            if version == 2:
                break
            continue
        line = chomp(packet)
        if line.startswith(b"ERR "):
            raise _remote_error(line[4:])
        if line in (b"version 1", b"version 2"):
            version = int(line[-1:])
        elif version == 2:
            words.append(line)
        elif not line.startswith(b"# service="):
            words = line.partition(b"\0")[2].split(b" ")
            break
    if packet is None:
        raise Malformed("an advertisement ends before its capabilities do")
    named = {word.partition(b"=")[0]: word.partition(b"=")[2] for word in words}
    object_format = named.get(b"object-format", b"sha1").decode("latin-1")
    if object_format not in OID_DIGITS:
        raise Malformed("the object format is unknown")
    fetch = named.get(b"fetch", b"").split(b" ") if version == 2 else named
    unborn = version == 2 and b"unborn" in named.get(b"ls-refs", b"").split(b" ")
    return ServerAbilities(version, object_format, b"filter" in fetch, unborn)


def _request(command: bytes, object_format: str, arguments: Iterable[str]) -> bytes:
    # A server that is older than the second format does not know the capability.
    format_line = b"" if object_format == "sha1" else encode(b"object-format=sha256\n")
    lines = b"".join([encode(b"%b\n" % line.encode()) for line in arguments])
    return encode(b"command=%b\n" % command) + format_line + DELIM + lines + FLUSH


def ls_refs_request(object_format: str, *, unborn: bool = False) -> bytes:
    """A request for the values of HEAD, the branches and the tags. `unborn` as in
    `ServerAbilities`."""
    prefixes = ["ref-prefix HEAD", "ref-prefix refs/heads/", "ref-prefix refs/tags/"]
    asked = ["peel", "symrefs", *(["unborn"] if unborn else []), *prefixes]
    return _request(b"ls-refs", object_format, asked)


def fetch_request(
    wants: Iterable[str],
    haves: Iterable[str],
    *,
    object_format: str,
    alone: bool,
    filtered: bool,
) -> bytes:
    """Ask for a pack, by protocol 2. `filtered` says that the server knows filters.

    `alone=False`: the commits that `wants` reach and `haves` do not, without trees. A `have` that
    the server does not know counts for nothing.

    `alone=True`: the commits, tags (with the commit they end at) and trees that are named, and
    nothing below; no `haves`. git leaves out a tree that it also meets below another object of the
    same request: ask for commits and trees apart, and again for what did not come. Each answer has
    at least the first that was asked for.

    Without filters, all trees and files below come along.
    """
    arguments = ["no-progress", "ofs-delta"]
    if filtered:
        arguments.append("filter tree:0")
    if alone:
        arguments.append("deepen 1")
    digits = re.compile(rf"[0-9a-f]{{{OID_DIGITS[object_format]}}}")
    for word, oids in (("want", wants), ("have", () if alone else haves)):
        for oid in dict.fromkeys(oids):
            if digits.fullmatch(oid) is None:
                # The judge asks, and it has read a hostile pack: its words must not add a line.
                raise Malformed("an object that is asked for is not named in hex")
            arguments.append(f"{word} {oid}")
    return _request(b"fetch", object_format, [*arguments, "done"])


# ── what an origin answers ───────────────────────────────────────────────────────────────────────


class RemoteRefs(Struct, frozen=True):
    """The refs of an origin. Names are full, read as latin-1."""

    head: str | None
    """The ref that HEAD points at; None when it points at none or the origin does not report it."""
    symbolic: frozenset[str]
    """Refs that point at other refs."""
    tips: Mapping[str, str]
    """The object of each branch and tag."""
    peeled: Mapping[str, str]
    """The object that each annotated tag ends at."""


_REF_LINE = re.compile(
    rb"(%b|unborn) ([^\x00-\x20\x7f]+)"
    rb"(?: symref-target:([^\x00-\x20\x7f]+))?(?: peeled:(%b))?" % (_OID, _OID)
)


class RefsReader:
    """Reads the answer to `ls_refs_request`."""

    __slots__ = ("_done", "_head", "_packets", "_peeled", "_symbolic", "_tips")

    def __init__(self) -> None:
        self._packets = PacketReader()
        self._head: str | None = None
        self._symbolic: set[str] = set()
        self._tips: dict[str, str] = {}
        self._peeled: dict[str, str] = {}
        self._done = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the answer."""
        for packet in self._packets.feed(data):
            if self._done:
                raise Malformed("something follows a list of refs")
            if packet is Marker.FLUSH:
                self._done = True
            elif isinstance(packet, Marker):
                raise Malformed("a list of refs ends with another marker than a flush packet")
            else:
                self._line(chomp(packet))

    def end(self) -> RemoteRefs:
        """The refs, once all were read."""
        if not self._done or self._packets.held:
            raise Malformed("a list of refs is cut")
        return RemoteRefs(self._head, frozenset(self._symbolic), self._tips, self._peeled)

    def _line(self, line: bytes) -> None:
        if line.startswith(b"ERR "):
            raise _remote_error(line[4:])
        found = _REF_LINE.fullmatch(line)
        if found is None:
            raise Malformed("a line of a list of refs is not as git writes it")
        oid, name, target, peeled = ((part or b"").decode("latin-1") for part in found.groups())
        if name == "HEAD":
            self._head = target or None
        elif name.startswith(("refs/heads/", "refs/tags/")):
            if name in self._tips or oid == "unborn":
                raise Malformed("a ref is told twice, or has no object")
            if len(self._tips) >= MAX_REFS:
                raise Malformed(f"a repository has at most {MAX_REFS} branches and tags here")
            self._tips[name] = oid
            if target:
                self._symbolic.add(name)
            if peeled:
                self._peeled[name] = peeled


class _Section(enum.Enum):
    NONE = 0
    SKIPPED = 1
    PACK = 2


class PackReader:
    """Reads the answer to `fetch_request`: the pack in it."""

    __slots__ = ("_packets", "_section", "done")

    def __init__(self) -> None:
        self._packets = PacketReader()
        self._section = _Section.NONE
        self.done = False
        """Whether the pack is whole, by its framing."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return those that belong to the pack."""
        return b"".join([self._packet(packet) for packet in self._packets.feed(data)])

    def _packet(self, packet: Packet) -> bytes:
        if self.done:
            raise Malformed("something follows a pack")
        if self._section is _Section.PACK:
            return self._band(packet)
        if isinstance(packet, Marker):
            if packet is not Marker.DELIM or self._section is _Section.NONE:
                raise Malformed("an answer to a fetch has no pack")
            self._section = _Section.NONE
        elif packet.startswith(b"ERR "):
            raise _remote_error(packet[4:])
        elif self._section is _Section.NONE:
            name = chomp(packet)
            if name == b"packfile":
                self._section = _Section.PACK
            elif name in (b"acknowledgments", b"shallow-info"):
                self._section = _Section.SKIPPED
            else:
                raise Malformed("an answer to a fetch has a part that was not asked for")
        return b""

    def _band(self, packet: Packet) -> bytes:
        if packet is Marker.FLUSH:
            self.done = True
            return b""
        band = 0 if isinstance(packet, Marker) or not packet else packet[0]
        if isinstance(packet, Marker) or band not in (_BAND_DATA, _BAND_PROGRESS, _BAND_ERROR):
            raise Malformed("a pack comes in an unknown band")
        if band == _BAND_ERROR:
            raise _remote_error(packet[1:])
        return packet[1:] if band == _BAND_DATA else b""
