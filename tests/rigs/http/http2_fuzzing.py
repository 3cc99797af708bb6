"""Targets for fuzzers of HTTP/2: bytes of the fuzzer become frames, and frames go to a machine.

Each of `TARGETS` takes any bytes and raises only if the machine is wrong; `seeds` are inputs to
begin with. `http2_atheris.py` is the program that a fuzzer runs.

Bytes are read as steps, so that most mutations leave frames whole: the kind, flags and stream of a
frame and the length of its payload, which may stand for a well-known one; or a deed of the gateway.
The targets `…-against-h2` hold our reading of each request or response against that of
python-hyper's h2, frame by frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from hpack import HPACKError

from keyhole.http.frames import ConnectionFault, Kind
from keyhole.http.request import CHUNKED
from tests.rigs.http import http2 as rig
from tests.rigs.http.http2_deeds import DEEDS, take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STREAMS = (0, 1, 1, 1, 3, 3, 5, 7, 2, 9, 11, 2**31 - 1)
KNOWN = (
    rig.section(*rig.request()),
    rig.section(*rig.request(method="POST")),
    rig.section(*rig.request(("content-length", "3"), method="POST")),
    rig.section(*rig.request(("cookie", "a=b"), ("te", "trailers"))),
    rig.section((":status", "200")),
    rig.section((":status", "103")),
    rig.section((":status", "200"), ("content-length", "3")),
    rig.section(("x-sum", "1")),
    b"\x40\x01a\x01b",
    b"\xbe\xbf",
    b"\x3f\xe1\x1f\x82",
    b"\x20",
    bytes(4),
    bytes(8),
    b"abc",
    b"\0\4\0\0\0\0",
    b"\0\4\x7f\xff\xff\xff",
    b"\0\1\0\0\0\0",
    b"\x7f\xff\xff\xff",
    bytes(16384),
)
"""Payloads by number: what a fuzzer would take long to find."""

DEED = 0xF0
"""Kinds from here on are deeds of the gateway."""
LONGEST = 400
"""Bytes of a payload, and steps of an input."""


@dataclass(frozen=True)
class Step:
    """One frame, or one deed."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def frame(self) -> bytes:
        return rig.frame(self.kind, self.flags, self.stream, self.payload)

    @property
    def taken(self) -> bytes | tuple[str, int]:
        """The frame, or the deed and its stream."""
        if self.kind < DEED:
            return self.frame
        return DEEDS[(self.kind - DEED) % len(DEEDS)], self.stream


def read_steps(data: bytes) -> Iterator[Step]:
    at = 0
    for _ in range(LONGEST):
        if at + 5 > len(data):
            return
        kind, flags, stream, known, size = data[at : at + 5]
        at += 5
        if known < len(KNOWN):
            payload = KNOWN[known]
        else:
            payload = data[at : at + size]
            at += len(payload)
        number = STREAMS[stream % len(STREAMS)]
        yield Step(kind if kind >= DEED else kind % 11, flags, number, payload)


def write_step(kind: int, flags: int, stream: int, payload: bytes | int) -> bytes:
    """A step as a fuzzer's input has it; the payload by its number, or as it is."""
    place = STREAMS.index(stream)
    if isinstance(payload, int):
        return bytes((kind, flags, place, payload, 0))
    return bytes((kind, flags, place, 255, len(payload))) + payload


def seeds() -> Iterator[bytes]:
    """Conversations in which something happens."""
    whole, more = rig.END | rig.END_HEADERS, rig.END_HEADERS
    yield write_step(Kind.HEADERS, whole, 1, 0) + write_step(Kind.HEADERS, whole, 3, 3)
    body = write_step(Kind.DATA, rig.END, 1, b"abc")
    yield write_step(Kind.HEADERS, more, 1, 2) + body + write_step(DEED + 3, 0, 1, 0)
    cut = write_step(Kind.HEADERS, rig.END, 1, 1) + write_step(Kind.CONTINUATION, more, 1, 7)
    yield cut + write_step(Kind.RST_STREAM, 0, 1, 12) + write_step(Kind.GOAWAY, 0, 0, 13)
    yield write_step(Kind.SETTINGS, 0, 0, 15) + write_step(Kind.WINDOW_UPDATE, 0, 0, 18)
    answer = write_step(Kind.HEADERS, more, 1, 6) + body + write_step(Kind.PING, 0, 0, 13)
    yield write_step(Kind.HEADERS, more, 1, 5) + answer
    yield write_step(Kind.HEADERS, more, 1, 4) + write_step(Kind.HEADERS, whole, 1, 7)
    for deed in range(len(DEEDS)):
        yield write_step(Kind.HEADERS, more, 1, 1) + write_step(DEED + deed, 0, 1, 0) + body


# ── each side by itself ───────────────────────────────────────────────────────────────────────────


def feed_server(data: bytes) -> None:
    """Whatever a client sends is read or refused, within the bounds (I9)."""
    talk = rig.ServerTalk.greeted()
    for step in read_steps(data):
        take_step(talk, step.taken)


def feed_client(data: bytes) -> None:
    """The same of an origin; a response that has ended says nothing further."""
    talk = rig.ClientTalk.greeted()
    for number in range(4):
        talk.asks("POST", "/", CHUNKED if number < 2 else 0)
    for step in read_steps(data):
        take_step(talk, step.taken)
    ended = [words.split()[0] for words in talk.reported() if words.split()[1] == "end"]
    assert len(ended) == len(set(ended))


# ── against another implementation ────────────────────────────────────────────────────────────────


@dataclass
class Heard:
    """What one reader has made of the messages of a connection."""

    heads: dict[int, str] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def take(self, words: list[str]) -> set[int]:
        """What our machine reported; the streams that it took something of."""
        touched = set()
        for each in words:
            stream, what = int(each.split(" ", 1)[0]), each.split(" ", 1)[1]
            if what.startswith(("refused", "lost", "interim", "caught")):
                continue
            touched.add(stream)
            if what.startswith("data "):
                before = self.bodies.get(stream, b"")
                self.bodies[stream] = before + what[5:].encode("latin-1")
            elif what == "end" or what.startswith("end "):
                self.ended.add(stream)
            else:
                self.heads[stream], whole, body = what.partition(" whole ")
                if whole:
                    self.bodies[stream] = body.encode("latin-1")
                    self.ended.add(stream)
        return touched


def is_compared(step: Step) -> bool:
    """Not a priority, which RFC 9113 has ignored and h2 checks, and no end: h2 reads no further."""
    return step.kind not in (Kind.PRIORITY, Kind.GOAWAY) and not (
        step.kind == Kind.HEADERS and step.flags & rig.PRIORITY
    )


def compare(data: bytes, talk: rig.ServerTalk | rig.ClientTalk, theirs: H2Connection) -> None:
    """Each frame to both: what ours takes for a message, theirs takes for the same."""
    ours, others = Heard(), Heard()
    for step in read_steps(data):
        if step.kind >= DEED or not is_compared(step):
            continue
        try:
            talk.machine.receive(memoryview(step.frame))
            while talk.machine.behind:
                talk.machine.read_on()
        except ConnectionFault:
            return
        touched = ours.take(talk.reported())
        talk.sent()
        try:
            events = theirs.receive_data(step.frame)
        except (ProtocolError, HPACKError):
            if step.stream in touched:
                raise
            return
        theirs.data_to_send()
        reset = set()
        for event in events:
            number = getattr(event, "stream_id", 0)
            if isinstance(event, RequestReceived | ResponseReceived):
                found = {str(name): str(value) for name, value in event.headers}
                words = (found.get(":method"), found.get(":path"), found.get(":status"))
                others.heads[number] = " ".join(word for word in words if word)
            elif isinstance(event, DataReceived):
                others.bodies[number] = others.bodies.get(number, b"") + event.data
                theirs.acknowledge_received_data(event.flow_controlled_length, number)
            elif isinstance(event, StreamEnded):
                others.ended.add(number)
            elif isinstance(event, StreamReset):
                reset.add(number)
        assert not reset & touched or step.kind == Kind.RST_STREAM, "h2 resets what is taken here"
        for number in ours.ended & others.ended:
            assert ours.heads[number] == others.heads[number]
            assert ours.bodies.get(number, b"") == others.bodies.get(number, b"")


def another_reader(*, client_side: bool) -> H2Connection:
    """h2, but it does not join cookies: of empty ones it refuses the spaces that it adds."""
    return H2Connection(
        H2Configuration(
            client_side=client_side, header_encoding="latin-1", normalize_inbound_headers=False
        )
    )


def compare_servers(data: bytes) -> None:
    """Requests (I4)."""
    theirs = another_reader(client_side=False)
    theirs.initiate_connection()
    theirs.receive_data(rig.PREFACE + rig.settings())
    compare(data, rig.ServerTalk.greeted(), theirs)


def compare_clients(data: bytes) -> None:
    """Responses."""
    theirs = another_reader(client_side=True)
    theirs.initiate_connection()
    theirs.receive_data(rig.settings())
    talk = rig.ClientTalk.greeted()
    for number in (1, 3, 5, 7):
        talk.asks("GET", "/a")
        theirs.send_headers(number, rig.request(), end_stream=True)
    compare(data, talk, theirs)


def find_request(data: bytes) -> None:
    """The control of a fuzzer: it finds a request with a body."""
    talk = rig.ServerTalk.greeted()
    for step in read_steps(data):
        if step.kind < DEED and talk.fails(step.frame):
            return
    assert not any(words.endswith(" end") for words in talk.said), "a request with a body"


TARGETS: dict[str, Callable[[bytes], None]] = {
    "server": feed_server,
    "client": feed_client,
    "server-against-h2": compare_servers,
    "client-against-h2": compare_clients,
    "control": find_request,
}
