"""Conversations with the machines of HTTP/2: frames written by hand, and answers in short words.

Frames are packed here and answers are decoded by hpack, so that a mistake of ours in writing cannot
hide the same mistake in reading.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpack import Decoder

from keyhole.http.frames import Code, ConnectionFault, Kind
from keyhole.http.http2_client import Http2Client
from keyhole.http.http2_server import Http2Server
from keyhole.http.request import OutboundHead, RequestHead, RequestReader, Treatment
from keyhole.http.response import Reply, ResponseHead

if TYPE_CHECKING:
    from keyhole.http.field import Field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
NOPE = Reply(403, "Forbidden", (b"Content-Type: text/plain\r\n",), b"no")
BAD = Reply(400, "Bad Request", (), b"bad")
KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="

END, END_HEADERS, PADDED, PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1

Pair = tuple[str, str]


# ── frames ────────────────────────────────────────────────────────────────────────────────────────


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(
        ">L", stream
    ) + payload  # fmt: skip


def text(value: bytes) -> bytes:
    """A text of HPACK, without Huffman code."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    out = [0x7F]
    while size >= 128:
        out.append(size % 128 + 128)
        size //= 128
    return bytes((*out, size)) + value


def section(*pairs: Pair) -> bytes:
    """Fields that enter no table."""
    return b"".join(
        b"\x00" + text(name.encode("latin-1")) + text(value.encode("latin-1"))
        for name, value in pairs
    )


def request(
    *more: Pair, path: str = "/a", method: str = "GET", authority: str = "ok.example"
) -> list[Pair]:
    return [
        (":method", method),
        (":scheme", "https"),
        (":authority", authority),
        (":path", path),
        *more,
    ]


def headers(stream: int, pairs: Sequence[Pair], *, end: bool = True, flags: int = 0) -> bytes:
    flags |= END_HEADERS | (END if end else 0)
    return frame(Kind.HEADERS, flags, stream, section(*pairs))


def get(stream: int = 1, *more: Pair, path: str = "/a") -> bytes:
    return headers(stream, request(*more, path=path))


def post(stream: int = 1, *more: Pair, path: str = "/a") -> bytes:
    return headers(stream, request(*more, path=path, method="POST"), end=False)


def data(stream: int, payload: bytes, *, end: bool = False, padding: int = -1) -> bytes:
    flags = END if end else 0
    if padding >= 0:
        payload = bytes((padding,)) + payload + bytes(padding)
        flags |= PADDED
    return frame(Kind.DATA, flags, stream, payload)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(Kind.SETTINGS, payload=b"".join(struct.pack(">HL", *pair) for pair in pairs))


def window(stream: int, amount: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream, struct.pack(">L", amount))


def rst(stream: int, code: int = Code.CANCEL) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream, struct.pack(">L", code))


def ping(payload: bytes = b"12345678", flags: int = 0) -> bytes:
    return frame(Kind.PING, flags, 0, payload)


def goaway(last: int, code: int = 0) -> bytes:
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">LL", last, code))


def priority(stream: int, depends_on: int) -> bytes:
    return frame(Kind.PRIORITY, 0, stream, struct.pack(">LB", depends_on, 0))


# ── what a machine sends ──────────────────────────────────────────────────────────────────────────


@dataclass
class Listener:
    """Reads what a machine sends."""

    decoder: Decoder = field(default_factory=Decoder)
    held: bytes = b""
    section: bytes = b""
    ended: bool = False

    def hears(self, sent: bytes) -> list[str]:
        """A few words for each frame."""
        found: list[str] = []
        sent = self.held + sent
        while len(sent) >= 9:
            size = int.from_bytes(sent[:3], "big")
            payload, rest = sent[9 : 9 + size], sent[9 + size :]
            assert len(payload) == size, "a machine sends whole frames"
            found += self._words(sent[3], sent[4], int.from_bytes(sent[5:9], "big"), payload)
            sent = rest
        assert not sent, "a machine sends whole frames"
        return found

    def _words(self, kind: int, flags: int, stream: int, payload: bytes) -> list[str]:
        ended = " END" if flags & END else ""
        if kind == Kind.DATA:
            return [f"{stream} DATA {payload.decode('latin-1')}{ended}"]
        if kind in (Kind.HEADERS, Kind.CONTINUATION):
            self.section += payload
            if kind == Kind.HEADERS:
                self.ended = bool(ended)
            if not flags & END_HEADERS:
                return []
            pairs = self.decoder.decode(self.section, raw=True)
            self.section = b""
            said = " ".join(f"{n.decode('latin-1')}={v.decode('latin-1')}" for n, v in pairs)
            return [f"{stream} HEADERS {said}{' END' if self.ended else ''}"]
        if kind == Kind.RST_STREAM:
            return [f"{stream} RST {Code(int.from_bytes(payload, 'big')).name}"]
        if kind == Kind.SETTINGS:
            if flags & ACK:
                return ["SETTINGS ACK"]
            values = struct.iter_unpack(">HL", payload)
            return ["SETTINGS " + " ".join(f"{name}={value}" for name, value in values)]
        if kind == Kind.PING:
            return [f"PING {payload.decode('latin-1')}" + (" ACK" if ended else "")]
        if kind == Kind.GOAWAY:
            last, code = struct.unpack(">LL", payload)
            return [f"GOAWAY {last} {Code(code).name}"]
        assert kind == Kind.WINDOW_UPDATE, kind
        return [f"{stream} WINDOW {int.from_bytes(payload, 'big')}"]


class _Talk:
    """One machine, and the peer that is played: frames go in, reports and frames come out."""

    machine: Http2Server | Http2Client
    listener: Listener
    said: list[str]

    def gets(self, *pieces: bytes) -> list[str]:
        """What is reported of these bytes."""
        for piece in pieces:
            self.machine.receive(memoryview(piece))
        return self.reported()

    def reported(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def sent(self, more: bytes = b"") -> list[str]:
        """What the peer is told, `more` first."""
        return self.listener.hears(more + self.machine.take())

    def fails(self, *pieces: bytes) -> str:
        """The code that the connection ends with."""
        try:
            for piece in pieces:
                self.machine.receive(memoryview(piece))
        except ConnectionFault as fault:
            goodbye = self.sent(self.machine.fail(fault))[-1]
            assert goodbye.startswith("GOAWAY")
            assert self.machine.closed
            return goodbye.split()[-1]
        return ""


# ── a client that is played, and the machine of the server ────────────────────────────────────────


@dataclass
class ServerTalk(_Talk):
    """The server's machine; `do` is done at each head. Frames of the played client go in."""

    do: Callable[[ServerTalk, int], object] = lambda talk, stream: None
    said: list[str] = field(default_factory=list)
    heads: dict[int, RequestHead] = field(default_factory=dict)
    at_data: Callable[[ServerTalk, int], object] = lambda talk, stream: None
    at_catching_up: Callable[[ServerTalk, int], object] = lambda talk, stream: None
    refuse: bool = True
    first: list[str] = field(default_factory=list)
    """What the machine begins with."""
    machine: Http2Server = field(init=False)

    def __post_init__(self) -> None:
        reader = RequestReader("ok.example", 443, _treat, {})
        self.machine = Http2Server(reader, self, lambda: KEY)
        self.listener = Listener()
        self.first = self.sent()

    @classmethod
    def greeted(cls, do: Callable[[ServerTalk, int], object] | None = None) -> ServerTalk:
        """Preface and settings are exchanged."""
        talk = cls(do) if do is not None else cls()
        talk.gets(PREFACE + settings())
        assert talk.sent() == ["SETTINGS ACK"]
        return talk

    def request_begun(self, stream: int, head: RequestHead) -> StreamOfServer:
        self.said.append(f"{stream} {head.method} {head.path}")
        self.heads[stream] = head
        self.do(self, stream)
        return StreamOfServer(self, stream)

    def request_refused(self, stream: int, why: str, size: int) -> None:
        self.said.append(f"{stream} refused: {why}")
        if self.refuse:
            self.machine._out.append(self.machine.reject(stream, BAD))

    def stream_refused(self) -> None:
        self.said.append("one refused")

    def stream_lost(self, stream: int, why: str) -> None:
        self.said.append(f"{stream} lost" + (f": {why}" if why else ""))

    def stream_caught_up(self, stream: int) -> None:
        self.said.append(f"{stream} caught up")
        self.at_catching_up(self, stream)

    def respond(self, stream: int, body: bytes = b"hi") -> list[str]:
        machine = self.machine
        out = machine.begin_response(stream, OK, [], len(body))
        out += machine.send_data(stream, body)
        return self.sent(out + machine.end_response(stream))


@dataclass
class StreamOfServer:
    talk: ServerTalk
    number: int

    def request_data(self, data: bytes | memoryview) -> None:
        self.talk.said.append(f"{self.number} data {bytes(data).decode('latin-1')}")
        self.talk.at_data(self.talk, self.number)

    def request_ended(self, trailers: Sequence[Field]) -> None:
        names = "".join(f" {each.name.decode()}" for each in trailers)
        self.talk.said.append(f"{self.number} end{names}")


# ── an origin that is played, and the machine of the client ───────────────────────────────────────


@dataclass
class ClientTalk(_Talk):
    """The client's machine. Frames of the played origin go in."""

    said: list[str] = field(default_factory=list)
    heads: list[ResponseHead] = field(default_factory=list)
    at_begin: Callable[[ClientTalk, int], object] = lambda talk, stream: None
    at_data: Callable[[ClientTalk, int], object] = lambda talk, stream: None
    first: list[str] = field(default_factory=list)
    machine: Http2Client = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Http2Client({})
        self.listener = Listener()
        begun = self.machine.take()
        assert begun.startswith(PREFACE)
        self.first = self.listener.hears(begun.removeprefix(PREFACE))

    @classmethod
    def greeted(cls) -> ClientTalk:
        talk = cls()
        talk.gets(settings())
        assert talk.sent() == ["SETTINGS ACK"]
        return talk

    def asks(
        self, method: str = "GET", path: str = "/a", length: int = 0, *lines: bytes
    ) -> list[str]:
        """Begin a request; what the origin is told."""
        head = OutboundHead(method, path, "ok.example", list(lines), length)
        return self.begins(head)

    def begins(self, head: OutboundHead) -> list[str]:
        receiver = StreamOfClient(self)
        receiver.number, sent = self.machine.send_request(head, receiver)
        return self.sent(sent)


@dataclass
class StreamOfClient:
    talk: ClientTalk
    number: int = 0

    def _say(self, words: str) -> None:
        self.talk.said.append(f"{self.number} {words}")

    def response_interim(self, head: ResponseHead) -> None:
        self._say(f"interim {head.status}")

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        self.talk.heads.append(head)
        self._say(f"{head.status}" + ("" if body is None else f" whole {body.decode('latin-1')}"))
        self.talk.at_begin(self.talk, self.number)

    def response_data(self, data: bytes | memoryview) -> None:
        self._say(f"data {bytes(data).decode('latin-1')}")
        self.talk.at_data(self.talk, self.number)

    def response_ended(self, trailers: Sequence[Field]) -> None:
        self._say("end" + "".join(f" {each.name.decode()}" for each in trailers))

    def response_lost(self, why: str, *, unread: bool) -> None:
        self._say("lost" + (f": {why}" if why else "") + (" unread" if unread else ""))

    def request_caught_up(self) -> None:
        self._say("caught up")


def status(stream: int, *more: Pair, code: str = "200", end: bool = False) -> bytes:
    """The head of a response."""
    return headers(stream, [(":status", code), *more], end=end)


def _treat(name: bytes) -> Treatment:
    return Treatment.DROP if name == b"authorization" else Treatment.KEEP
