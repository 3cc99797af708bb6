"""A push: its commands, its refusal, and the origin's report (gitprotocol-pack).

Called by the gateway before one byte of a push goes upstream. C git executes far more than it
documents (capabilities on any line, unrequested certificates, two lists in one); here one spelling
is accepted, so that an origin can find nothing that was not judged (I4). Whether a ref may change
is not decided here. Names are only checked so that they cannot break a line; `Ref.parse` judges
them.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed
from keyhole.wire.pkt_line import FLUSH, MAX_DATA, Marker, Packet, PacketReader, chomp, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LIST = 1024 * 1024
"""Bytes before the pack: 256 commands with long names, and the borders of a shallow clone."""

MAX_COMMANDS = 256
"""Refs in one push; people push a handful, and each costs a decision and an audit line."""

MAX_NAME = 1024
"""Bytes of a ref's name here, so that one fits into a report. The policy allows fewer."""

MAX_OPTIONS = 64
"""Push options in one request; forges document some twenty."""

MAX_REASON = 300
"""Characters of a reason in a report: four lines of a terminal."""

MAX_TEXT = 1024
"""Characters of an origin's message about one ref that are kept."""

OK = "ok"
HELD_BACK = "keyhole: held back, another ref was refused"

PLAIN_CAPABILITIES = frozenset(
    b"report-status report-status-v2 delete-refs quiet atomic ofs-delta side-band-64k"
    b" push-options".split()
)
VALUED_CAPABILITIES = frozenset(b"object-format agent session-id".split())
"""Capabilities that a client may request. Others could change the syntax, as `push-options`
does."""

OID_DIGITS = {"sha1": 40, "sha256": 64}

_BAND_DATA = 1
_BAND_PROGRESS = 2
_BANDS = (1, 2, 3)

# The name is checked as far as a line or a report could be misread: no space, control or DEL.
_OID = rb"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_COMMAND = re.compile(rb"(%b) (%b) ([^\x00-\x20\x7f]{1,%d})" % (_OID, _OID, MAX_NAME))
_SHALLOW = re.compile(rb"shallow (%b)" % _OID)
# git splits capabilities at tab, LF and CR too: `agent=x<TAB>push-options` is two of them.
_CAPABILITIES = re.compile(rb"[\x20-\x7e]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_PRINTABLE = re.compile(r"[^ -~]+")


class RefCommand(Struct, frozen=True):
    """One requested ref update. `ref` is the name's bytes read as latin-1."""

    old: str
    new: str
    ref: str

    @property
    def is_delete(self) -> bool:
        """Whether the ref is deleted: new is zero, whatever old is. Servers do not compare old
        here."""
        return not self.new.strip("0")

    @property
    def is_create(self) -> bool:
        """Whether the command claims that the ref does not exist yet."""
        return not self.is_delete and not self.old.strip("0")


class PushRequest(Struct, frozen=True):
    """The part of a push before its pack."""

    commands: tuple[RefCommand, ...]
    capabilities: tuple[str, ...]
    shallow: tuple[str, ...]
    options: tuple[str, ...]
    object_format: str

    @property
    def is_probe(self) -> bool:
        """Whether the body is `0000` alone, by which git tests the connection before a large
        push."""
        return not self.commands

    @property
    def has_pack(self) -> bool:
        """Whether a pack follows: unless every command deletes."""
        return any(not command.is_delete for command in self.commands)

    @property
    def wants_report(self) -> bool:
        """Whether the client reads a report for each ref."""
        return "report-status" in self.capabilities or "report-status-v2" in self.capabilities

    @property
    def wants_sideband(self) -> bool:
        """Whether the report travels in side-band packets."""
        return "side-band-64k" in self.capabilities


class _State(enum.Enum):
    SHALLOW = 0
    COMMANDS = 1
    OPTIONS = 2
    DONE = 3


class PushReader:
    """Reads the body of a push up to its pack."""

    __slots__ = (
        "_capabilities",
        "_commands",
        "_options",
        "_packets",
        "_refs",
        "_request",
        "_shallow",
        "_state",
        "rest",
        "size",
    )

    def __init__(self) -> None:
        self._packets = PacketReader()
        self._state = _State.SHALLOW
        self._shallow: list[str] = []
        self._commands: list[RefCommand] = []
        self._refs: set[str] = set()
        self._capabilities: dict[str, str] = {}
        self._options: list[str] = []
        self._request: PushRequest | None = None
        self.rest = b""
        """The part of the last bytes that follows the list: the pack."""
        self.size = 0
        """Bytes that the list takes; the pack starts there."""

    def feed(self, data: bytes) -> PushRequest | None:
        """Take the next bytes. Returns the request when its list is complete, None while it is not.

        Later calls return the same request, and `rest` is all of their bytes. Bytes after a list
        that allows no pack are refused.
        """
        request = self._request
        if request is not None:
            self.rest = data
        else:
            self._packets.add(data)
            request = self._list()
            if request is None:
                return None
            self.rest = self._packets.held
        if self.rest and not request.has_pack:
            # C git would not read it; another server may take it for a second list.
            raise Malformed("something follows a push that has no pack")
        return request

    def end(self) -> None:
        """The body has ended."""
        if self._request is None:
            raise Malformed("a push ends before its command list does")

    def _list(self) -> PushRequest | None:
        while (packet := self._packets.take()) is not None:
            self._read(packet)
            if self._state is _State.DONE:
                self._request = self._whole()
                break
        return self._request

    def _read(self, packet: Packet) -> None:
        self.size += 4 if isinstance(packet, Marker) else 4 + len(packet)
        if self.size > MAX_LIST:
            raise Malformed(f"the command list of a push has at most {MAX_LIST} bytes")
        if packet is Marker.FLUSH:
            self._flush()
        elif isinstance(packet, Marker):
            # C git ends the list at any of the three.
            raise Malformed("only a flush packet ends a list of a push")
        elif self._state is _State.OPTIONS:
            self._option(chomp(packet))
        elif packet.startswith(b"push-cert"):
            # C git executes it though it never offered to, beside plain commands as well.
            raise Malformed("push certificates are not accepted")
        elif packet.startswith(b"shallow "):
            self._border(chomp(packet))
        else:
            self._command(packet)

    def _flush(self) -> None:
        if self._state is _State.SHALLOW and self._shallow:
            raise Malformed("a push has shallow lines and no command")
        if self._state is _State.COMMANDS and "push-options" in self._capabilities:
            self._state = _State.OPTIONS
        else:
            self._state = _State.DONE

    def _whole(self) -> PushRequest:
        named = self._capabilities
        return PushRequest(
            tuple(self._commands),
            tuple(f"{name}={value}" if value else name for name, value in named.items()),
            tuple(self._shallow),
            tuple(self._options),
            named.get("object-format", "sha1"),
        )

    def _border(self, line: bytes) -> None:
        found = _SHALLOW.fullmatch(line)
        if found is None or self._state is not _State.SHALLOW:
            raise Malformed("a shallow line is not `shallow OID` before the first command")
        self._shallow.append(found[1].decode())

    def _command(self, packet: bytes) -> None:
        line, nul, named = chomp(packet).partition(b"\0")
        if self._state is _State.SHALLOW:
            self._state = _State.COMMANDS
            self._capabilities = _read_capabilities(named)
            self._check_digits(self._shallow)
        elif nul:
            # C git honours them on every line.
            raise Malformed("capabilities stand on the first command only")
        found = _COMMAND.fullmatch(line)
        if found is None:
            raise Malformed("a command is not `OLD NEW REF` in lower-case hex and a plain name")
        command = RefCommand(found[1].decode(), found[2].decode(), found[3].decode("latin-1"))
        self._check_digits((command.old, command.new))
        if command.old == command.new:
            # Zero to zero deletes past the server's own rules against deleting.
            raise Malformed("a command does not change its ref")
        if command.ref in self._refs:
            # C git executes both in order: the second may undo what the first was allowed for.
            raise Malformed("a ref is named by two commands")
        if len(self._commands) >= MAX_COMMANDS:
            raise Malformed(f"a push has at most {MAX_COMMANDS} commands")
        self._refs.add(command.ref)
        self._commands.append(command)

    def _check_digits(self, oids: list[str] | tuple[str, ...]) -> None:
        digits = OID_DIGITS[self._capabilities.get("object-format", "sha1")]
        if any(len(oid) != digits for oid in oids):
            raise Malformed("an object's name is not as long as the object format says")

    def _option(self, line: bytes) -> None:
        if len(self._options) >= MAX_OPTIONS:
            raise Malformed(f"a push has at most {MAX_OPTIONS} options")
        try:
            option = line.decode()
        except UnicodeDecodeError:
            option = ""
        if not option or _CONTROL.search(option):
            raise Malformed("a push option is empty or is not plain text")
        self._options.append(option)


def _read_capabilities(text: bytes) -> dict[str, str]:
    """Read the list behind the NUL, in which names stand once; a name without a value gives ""."""
    if _CAPABILITIES.fullmatch(text) is None:
        raise Malformed("capabilities are not printable words between spaces")
    found: dict[str, str] = {}
    for word in text.split(b" "):
        if not word:
            continue
        name, equals, value = word.partition(b"=")
        # git takes `push-options=no` for `push-options`.
        if name not in (VALUED_CAPABILITIES if equals else PLAIN_CAPABILITIES) or (
            equals and not value
        ):
            raise Malformed("a capability is asked for that was not offered")
        if name.decode() in found:
            raise Malformed("a capability is asked for twice")
        found[name.decode()] = value.decode()
    if found.get("object-format", "sha1") not in OID_DIGITS:
        raise Malformed("the object format is unknown")
    return found


def refusal_report(request: PushRequest, reasons: Mapping[str, str], hint: str = "") -> bytes:
    """The body that refuses every command of a push, as git shows it for each ref.

    A ref that `reasons` does not name is said to be held back. `hint` is shown above, where the
    client has side-band. A client that asked for no report reads none of it.
    """
    lines = [encode(b"unpack ok\n")]
    for command in request.commands:
        # git takes a bare `ng REF` for no answer.
        reason = _printable(reasons.get(command.ref, HELD_BACK))[:MAX_REASON] or HELD_BACK
        name = command.ref.encode("latin-1")
        lines.append(encode(b"ng %b %b\n" % (name, reason.encode())))
    body = b"".join(lines) + FLUSH
    if not request.wants_sideband:
        return body
    packets = [
        encode(b"%c%b\n" % (_BAND_PROGRESS, _printable(line)[:MAX_REASON].encode()))
        for line in hint.splitlines()
    ]
    step = MAX_DATA - 1
    packets += [
        encode(b"%c%b" % (_BAND_DATA, body[at : at + step])) for at in range(0, len(body), step)
    ]
    return b"".join(packets) + FLUSH


def _printable(text: str) -> str:
    """One line of printable ASCII."""
    return _NOT_PRINTABLE.sub(" ", text).strip()


class ReportReader:
    """Reads an origin's report on a push, for the audit. Unexpected input ends it without an error.

    Nothing is decided by it: the response goes to the client unchanged.
    """

    __slots__ = ("_ended", "_outer", "_report", "_results", "_sideband")

    def __init__(self) -> None:
        self._outer = PacketReader()
        self._report = PacketReader()
        self._sideband: bool | None = None
        self._results: dict[str, str] = {}
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the answer."""
        if self._ended:
            return
        try:
            self._outer.add(data)
            while (packet := self._outer.take()) is not None:
                self._packet(packet)
        except Malformed:
            self._ended = True

    def results(self) -> Mapping[str, str]:
        """The report so far for each ref: `ok`, or why the origin refused it."""
        return self._results

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Marker) or not packet:
            return
        if self._sideband is None:
            self._sideband = packet[0] in _BANDS
        if not self._sideband:
            self._line(packet)
        elif packet[0] == _BAND_DATA:
            # One line may come in pieces, and several in one packet: band 1 is a stream.
            self._report.add(packet[1:])
            while (line := self._report.take()) is not None:
                self._line(line)

    def _line(self, packet: Packet) -> None:
        if isinstance(packet, Marker):
            return
        kind, _, said = chomp(packet).decode("latin-1").partition(" ")
        ref, _, why = said.partition(" ")
        if kind not in ("ok", "ng") or len(ref) > MAX_NAME:
            return
        if ref in self._results or len(self._results) < MAX_COMMANDS:
            why = _printable(why)[:MAX_TEXT]
            # A refusal never reads as its opposite.
            self._results[ref] = (
                OK if kind == "ok" else (f"ng {why}".strip() if why in ("", OK) else why)
            )
