"""I9, I12: whatever reads bytes of a sandbox or an origin takes linear time, and little of it.

`ATTACKS` has the worst inputs that are known for each function; it is compared with the source, so
that a new one must be entered. A reader of a stream is fed at once and byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from graphql import GraphQLError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from keyhole.app.remote.carriage import Carriage
from keyhole.app.setup.catalogue import FileModelApis
from keyhole.gateway.door.gate import HttpGate, OpenGate, TlsGate
from keyhole.gateway.door.published_gate import PublishedGate
from keyhole.gateway.git.bands import BandWatch
from keyhole.gateway.git.batch import BatchRewriter, ErrorRewriter, Instant
from keyhole.gateway.git.lfs import LargeFiles, Repo
from keyhole.gateway.git.push_report import PushReport
from keyhole.gateway.hello import HelloJudge
from keyhole.gateway.http.websocket import FrameCanary, FrameScan
from keyhole.http import field as httpfield
from keyhole.http.body import ChunkedReader, may_follow_body
from keyhole.http.client import Http1Client
from keyhole.http.crossing import request_head
from keyhole.http.frames import PADDED, Kind, unpadded
from keyhole.http.hpack import FieldDecoder
from keyhole.http.http2_client import Http2Client
from keyhole.http.http2_server import Http2Server
from keyhole.http.huffman import decode_huffman
from keyhole.http.named_host import named_host
from keyhole.http.plain import PlainRequestReader, field_names
from keyhole.http.request import OutboundHead, RequestHead, RequestReader, Treatment
from keyhole.http.response import is_unreadable, parse_response
from keyhole.http.server import Http1Server
from keyhole.http.states import State
from keyhole.inject.agent_profile import SettingsFormat
from keyhole.inject.agent_settings import read_settings
from keyhole.inject.canary import CanaryScanner
from keyhole.inject.canonical import SignedRequest, canonical_form, read_headers
from keyhole.inject.credential_stripper import CredentialStripper
from keyhole.inject.encoded_scanner import EncodedScanner
from keyhole.inject.entity_tags import KEY_BYTES, EntityTags
from keyhole.inject.escaped_secret import EscapedSecret, unescape
from keyhole.inject.event_scanner import EventScanner
from keyhole.inject.kept_settings import keep_changes
from keyhole.inject.message_scanner import MessageScanner
from keyhole.inject.renderings import searchable
from keyhole.inject.response_fields import ResponseFields
from keyhole.inject.scrub import Needles, Scrubber
from keyhole.inject.service_account import read_token
from keyhole.inject.stub_files import StubFile
from keyhole.inject.token_usage import UsageFormat, UsageReader
from keyhole.inject.transfer_secrets import transfer_secrets
from keyhole.model.decision import Decision, Verdict
from keyhole.model.errors import (
    CredentialUnusable,
    Malformed,
    Refused,
    RequestUnfit,
    ResponseUnfit,
    Unparsable,
    UpstreamFailed,
)
from keyhole.model.glob import fold
from keyhole.model.host import Host
from keyhole.model.https_url import HttpsUrl
from keyhole.model.path import RequestPath
from keyhole.model.query import parse_query
from keyhole.model.ref import Ref
from keyhole.model.repository import Forge, Repository
from keyhole.model.text import check_marks, visible
from keyhole.model.toml import parse_toml
from keyhole.policy.body import BodyFacts, find_flaw, read_facts
from keyhole.policy.explain import explain
from keyhole.policy.forge_search import SearchAnswer
from keyhole.policy.forge_writes import find_write
from keyhole.policy.graphql.answer import GraphqlAnswer
from keyhole.policy.graphql.document import parse_bounded, read_operation
from keyhole.policy.graphql.learnt_ids import LearntIds
from keyhole.policy.graphql.selection import FieldSelection, SelectionResolver
from keyhole.policy.graphql.table import github_table
from keyhole.policy.mcp.answers import McpAnswer
from keyhole.policy.mcp.capabilities import strip_capabilities
from keyhole.policy.mcp.memory import McpMemory
from keyhole.policy.mcp.messages import Message, MessageKind, check_names
from keyhole.policy.mcp.mirrored_fields import check_mirrored
from keyhole.policy.mcp.raw_messages import (
    RawMessage,
    read_list,
    read_part,
    read_table,
    read_value,
)
from keyhole.policy.mcp.raw_messages import check_marks as check_json_marks
from keyhole.policy.mcp.server_messages import ServerFilter
from keyhole.policy.mcp_grant import McpGrant, ToolGrant, read_resource
from keyhole.policy.model_lengths import AnswerLength
from keyhole.policy.model_paths import find_api
from keyhole.policy.model_rules import RuleNode, compile_rules, fold_name
from keyhole.policy.operations import find_table
from keyhole.policy.policy import GitGrant
from keyhole.policy.recorded_use import read_use
from keyhole.policy.request import decide_query
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import RequestTarget, parse_target
from keyhole.system.https import AnswerReader
from keyhole.system.symlinks import follow
from keyhole.system.walk import LinkInPath
from keyhole.wire import dns
from keyhole.wire.carried_frames import CarriedFrame, CarriedFrameReader, FrameKind
from keyhole.wire.client_flight import ClientFlight
from keyhole.wire.client_hello import HelloReader
from keyhole.wire.client_messages import ClientMessages, write_text
from keyhole.wire.event_stream import EventStreamReader, escape_breaks
from keyhole.wire.git_delta import apply_delta, read_size
from keyhole.wire.git_object import ObjectKind, parse_commit, parse_tag, parse_tree
from keyhole.wire.git_refs import AdvertisementRewriter
from keyhole.wire.lfs_json import is_lfs_json, read_json
from keyhole.wire.lfs_request import (
    BatchRequest,
    LargeObject,
    LfsOperation,
    read_batch_request,
    read_lock_request,
    read_object,
)
from keyhole.wire.lfs_response import (
    StorageAddress,
    TransferAction,
    read_batch_answer,
    rewrite_error,
)
from keyhole.wire.pack import MemorySource, Pack
from keyhole.wire.parameters import folded as fold_parameter
from keyhole.wire.parameters import read_parameters
from keyhole.wire.pkt_line import PacketReader, read_packets
from keyhole.wire.receive_pack import PushReader, ReportReader
from keyhole.wire.signable_commit import parse_signable
from keyhole.wire.strict_json import is_quick, read_json_in_slices
from keyhole.wire.strict_json import read_json as read_strict_json
from keyhole.wire.upload_pack import PackReader, RefsReader, read_abilities, read_fetch
from keyhole.wire.websocket import (
    ClientFrames,
    FrameReader,
    read_client_head,
    read_frame_length,
    unmask,
    valid_key,
)
from tests.rigs.bounded import growth
from tests.rigs.bounded.entries import entries
from tests.rigs.git.github_escapes import WIDGETS
from tests.rigs.http import http2 as frames2
from tests.rigs.inject.events import NOON, chain, event_signer
from tests.rigs.models.requests import facts_of, model_service
from tests.rigs.policies import book
from tests.rigs.policy.trying import try_all, update
from tests.rigs.wire.hellos import extension, hello, plain_body, vector
from tests.rigs.wire.packing import History, PackWriter, Upstream, copy, insert, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.http.http2 import Http2Machine
    from keyhole.policy.policy import Service, ServiceHost

    Attack = tuple[int, Callable[[int], Callable[[], object]], float]
    """Bytes of the smallest input, what is done with an input of a size, and the seconds that a
    byte of it may take."""

REFUSALS = (
    Malformed, Unparsable, Refused, RequestUnfit, ResponseUnfit, UpstreamFailed, CredentialUnusable,
    LinkInPath,
)  # fmt: skip

PER_BYTE = 2e-6
"""Seconds: 256 KiB, which is about what the loop reads at once, take half a second at the very most
on a slow machine. Most take a tenth of that."""

PER_READ = 60e-6
"""Seconds for a byte that comes alone: the read itself takes about as long."""

PER_COMMIT = 5e-3
"""Seconds for a commit, a file or a level of a push, with the upstream that the test plays."""

AT_LEAST = 0.2
"""Seconds that anything may take, so that a busy machine does not fail it."""

K = 1024
EMPTY = gzip.compress(b"")
SECRET = "sk-test-0123456789abcdefghijklmnopqrstuv"
NEEDLES = Needles.of(SECRET, "sk-test-placeholder0placeholder0placehol")
SPELLED = EscapedSecret(SECRET, searchable(SECRET))
TAGS = EntityTags(b"k" * KEY_BYTES)
OID = "0123456789abcdef" * 4
REPO = Repo(Host("git.example"), 443, "forge", Forge.GITHUB, Repository(("acme", "widgets")))


class Heard:
    """A machine of HTTP as a reader, and what it reports to."""

    def __init__(self, machine: Http1Client | Http1Server) -> None:
        self._machine = machine

    def feed(self, data: bytes) -> None:
        self._machine.receive(memoryview(data))
        while isinstance(self._machine, Http1Server) and self._machine.behind:
            self._machine.resume()


class Skips:
    """Lets every request through, and reads no response."""

    machine: Http1Server

    def request_begun(self, stream: int, head: object) -> Skips:
        self.request_ended(())
        return self

    def request_data(self, data: bytes | memoryview) -> None: ...

    def request_ended(self, trailers: object) -> None:
        if self.machine.request is State.DONE:
            self.machine.skip_response(self.machine.stream)

    def response_interim(self, head: object) -> None: ...
    def response_begun(self, head: object, body: bytes | None) -> None: ...
    def response_data(self, data: bytes | memoryview) -> None: ...
    def response_ended(self, trailers: object) -> None: ...


def _client() -> Http1Server:
    handler = Skips()
    handler.machine = Http1Server(_requests(), handler)
    return handler.machine


def _origin() -> Http1Client:
    machine = Http1Client({})
    machine.send_request(OutboundHead("GET", "/", "ok.example", []), Skips())
    return machine


class Heard2:
    """A machine of HTTP/2 as a reader, whose peer's waste is forgiven: floods go on."""

    def __init__(self, machine: Http2Machine) -> None:
        self._machine = machine

    def feed(self, data: bytes) -> None:
        machine = self._machine
        machine.receive(memoryview(data))
        while machine.behind:
            machine.refill()
            machine.read_on()
        machine.refill()
        machine.take()


class Answers2:
    """Answers requests of path /now; has others wait, with a response of 64 KiB and no window."""

    machine: Http2Server

    def request_begun(self, stream: int, head: RequestHead) -> Skips:
        if head.path == "/now":
            self.machine.reset(stream)
        elif head.path == "/hold":
            self.machine.pause(stream)
        else:
            self.machine.begin_response(stream, b"HTTP/1.1 200 OK\r\n", [], -1)
            self.machine.send_data(stream, bytes(64 * K))
        return Skips()

    def request_refused(self, stream: int, why: str, size: int) -> None:
        self.machine.reset(stream)

    def stream_refused(self) -> None: ...
    def stream_lost(self, stream: int, why: str) -> None: ...
    def stream_caught_up(self, stream: int) -> None: ...


class Asks2(Skips):
    def response_lost(self, why: str, *, unread: bool) -> None: ...
    def request_caught_up(self) -> None: ...


def _client2(*before: bytes) -> Heard2:
    """A client of HTTP/2 that has sent these frames."""
    handler = Answers2()
    handler.machine = Http2Server(_requests(), handler, lambda: b"key")
    heard = Heard2(handler.machine)
    for each in (frames2.PREFACE + frames2.settings((4, 0)), *before):
        heard.feed(each)
    return heard


def _origin2(*before: bytes) -> Heard2:
    machine = Http2Client({})
    for _ in range(3):
        machine.send_request(OutboundHead("GET", "/", "ok.example", []), Asks2())
    heard = Heard2(machine)
    for each in (frames2.settings(), *before):
        heard.feed(each)
    return heard


def _requests2(path: str, step: int = 2) -> Callable[[int], bytes]:
    """Heads of one stream after the other."""
    size = len(frames2.get(1, path=path))
    return lambda n: b"".join(
        frames2.get(number, path=path) for number in range(1, 1 + step * (n // size), step)
    )


def _sections(unit: bytes, before: bytes = b"") -> Callable[[int], bytes]:
    """A field section of such fields in frames that are full."""

    def make(n: int) -> bytes:
        whole = before + unit * (min(n, 60 * K) // len(unit))
        cuts = [whole[i : i + 2**14] for i in range(0, len(whole), 2**14)]
        kinds = [Kind.HEADERS] + [Kind.CONTINUATION] * (len(cuts) - 1)
        ends = [0] * (len(cuts) - 1) + [4]
        return b"".join(
            frames2.frame(kind, end, 1, cut)
            for kind, end, cut in zip(kinds, ends, cuts, strict=True)
        )

    return make


def _cross(more: list[tuple[str, str]]) -> bytes:
    pairs = [(name.encode(), value.encode()) for name, value in (*frames2.request(), *more)]
    return request_head(pairs, ended=True, websocket_key=b"")


def _coded(n: int) -> bytes:
    """A value in Huffman code, of the shortest letters."""
    code = b"\x18\xc6\x31\x8c\x63" * (n // 5)
    return b"\x00\x01a\xff" + _varint(len(code) - 127) + code


ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def _varint(number: int) -> bytes:
    out = []
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes((*out, number))


MANY = b"".join(frames2.get(number) for number in range(1, 200, 2))
HUNDRED = b"".join(frames2.post(number, path="/hold") for number in range(1, 200, 2))
FEED2 = (
    frames2.ping(),
    frames2.frame(0xBB),
    frames2.settings(*[(4, 1), (4, 0)] * 16),
    frames2.window(0, 1),
    frames2.priority(1, 3),
    frames2.goaway(0),
)
"""Frames that a peer may send as many of as it likes."""


def at_once(
    read: Callable[[Any], object],
    make: Callable[[int], Any],
    size: int = 8 * K,
    per_byte: float = PER_BYTE,
) -> Attack:
    """Something that is handed all of an input."""

    def prepare(n: int) -> Callable[[], object]:
        data = make(n)

        def work() -> None:
            with contextlib.suppress(*REFUSALS):
                read(data)

        return work

    return size, prepare, per_byte


def whole(
    read: Callable[[Any], object],
    *makes: Callable[[int], Any],
    size: int = 8 * K,
    per_byte: float = PER_BYTE,
) -> tuple[Attack, ...]:
    """Each of them handed over at once."""
    return tuple(at_once(read, make, size, per_byte) for make in makes)


def fed(
    reader: Callable[[], Any], make: Callable[[int], bytes], size: int = 8 * K, step: int = 0
) -> Attack:
    """A reader of a stream; with a `step`, fed so many bytes at a time."""

    def prepare(n: int) -> Callable[[], object]:
        data = make(n)

        def work() -> None:
            feed = reader().feed
            with contextlib.suppress(*REFUSALS):
                for at in range(0, len(data), step or len(data)):
                    feed(data[at : at + (step or len(data))])

        return work

    return size, prepare, PER_READ / step if step else PER_BYTE


def both(
    reader: Callable[[], Any], *makes: Callable[[int], bytes], size: int = 8 * K
) -> tuple[Attack, ...]:
    """Fed at once, and byte by byte."""
    return tuple(fed(reader, make, size, step) for make in makes for step in (0, 1))


def repeated(unit: bytes, before: bytes = b"", after: bytes = b"") -> Callable[[int], bytes]:
    return lambda n: before + unit * (n // len(unit)) + after


def text(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda n: before + unit * (n // len(unit)) + after


def kept_json(left: str) -> str:
    return keep_changes(StubFile(".a", "{}", fixed={"a": ["b"]}), left.encode())


def kept_toml(left: str) -> str:
    file = StubFile(".a", "", fixed={"b": 1}, format=SettingsFormat.TOML)
    return keep_changes(file, left.encode())


def _escaped(plain: str) -> bytes:
    """Each character as JSON may write it."""
    return "".join(f"\\u{ord(c):04x}" for c in plain).encode()


def packet(data: bytes) -> bytes:
    return b"%04x%b" % (len(data) + 4, data)


def _rows(unit: bytes, count: int = 100) -> Callable[[int], bytes]:
    """A head of so many fields."""
    return lambda n: (
        b"HTTP/1.1 200 OK"
        + b"".join(b"\r\n" + unit * (n // count // len(unit)) for _ in range(count))
    )


def _hello(n: int) -> bytes:
    found = [extension(1000 + i, b"") for i in range(min(n, 60 * K) // 4)]
    message = b"\x01" + vector(3, plain_body() + vector(2, b"".join(found)))
    cuts = [message[i : i + 2**14] for i in range(0, len(message), 2**14)]
    return b"".join(b"\x16\x03\x01" + vector(2, cut) for cut in cuts)


def _question(n: int) -> bytes:
    """A name of many labels, and records that all point to it."""
    name = b"\x01a" * 126 + b"\0"
    question = name + b"\0\1\0\1"
    records = (n - 12 - len(question)) // 12
    head = b"\0\1\1\0\0\1\0\0\0\0" + max(0, records).to_bytes(2, "big")
    return head + question + b"\xc0\x0c\0\x10\0\1\0\0\0\0\0\0" * records


def _trial(make: Callable[[History, int], tuple[bytes, bytes]]) -> Callable[[int], Any]:
    """Judge a push of a size: `make` gives the tip upstream and the commit that is pushed."""

    def prepare(n: int) -> Any:  # noqa: ANN401
        history = History()
        tip, new = make(history, n)
        return update(tip, new), history.push([new], [tip]), Upstream(history, tip)

    return prepare


def _line(history: History, n: int) -> tuple[bytes, bytes]:
    tip = new = history.commit({"a": "0"})
    for i in range(n):
        new = history.commit({"a": f"{i}"}, new)
    return tip, new


def _wide(history: History, n: int) -> tuple[bytes, bytes]:
    tip = history.commit({"a": "0"})
    return tip, history.commit({f"f{i}": f"{i}" for i in range(n)}, tip)


def _deep(history: History, n: int) -> tuple[bytes, bytes]:
    """Levels of entries that all name one tree."""
    tip = history.commit({"a": "0"})
    below = history.tree({"a": "1"})
    for _ in range(n):
        below = history.put(
            ObjectKind.TREE, b"".join(b"40000 %d\0%b" % (i, below) for i in range(10))
        )
    return tip, history.commit(below, tip)


def _marks(history: History, n: int) -> tuple[bytes, bytes]:
    tip = history.commit({"a": "0"})
    name = "a" + "\u0301\u0323" * (n // 2)
    oid = history.put(ObjectKind.BLOB, b"x")
    tree = history.put(ObjectKind.TREE, b"100644 %b\0%b" % (name.encode(), oid))
    return tip, history.commit(tree, tip)


class CarriedFrames:
    """A remote door's bytes, read to the end of each piece."""

    def __init__(self) -> None:
        self._reader = CarriedFrameReader()

    def feed(self, data: bytes) -> None:
        for _ in self._reader.feed(data):
            """Each frame is made."""


class CarriedHere:
    """The end of a remote door's connection, with a stream that is connected nowhere yet."""

    def __init__(self) -> None:
        self.feed = asyncio.run(self._open()).data_received

    async def _open(self) -> Carriage:
        made = Carriage(lambda *_: None, lambda _: None, lambda _: None)
        made.open(1)
        return made


def _parse_toml(sent: str) -> None:
    with contextlib.suppress(ValueError):
        parse_toml(sent)


def judge(case: Any) -> object:  # noqa: ANN401
    command, pushed, upstream = case
    return try_all([command], pushed, upstream)


def _pack(kind: int, contents: Callable[[int], Iterable[bytes]]) -> Callable[[int], bytes]:
    def make(n: int) -> bytes:
        writer = PackWriter()
        pieces = [
            bytes([kind << 4 | 0x80 | len(c) & 15, len(c) >> 4]) + zlib.compress(c)
            for c in contents(n)
        ]
        writer.body, writer.count = b"".join(pieces), len(pieces)
        return writer.done()

    return make


def _chain(n: int) -> bytes:
    """Deltas on one another, as deep as is allowed, again and again."""
    writer = PackWriter()
    place, content = 0, b""
    for i in range(n // 32):
        if i % 200 == 0:
            content = b"some bytes %d " % i * 4
            place = writer.add(ObjectKind.BLOB, content)
        else:
            place = writer.on_place(
                place, number(len(content)) + number(len(content)) + copy(0, len(content))
            )
    return writer.done()


def _batch(n: int) -> bytes:
    objects = [{"oid": hashlib.sha256(b"%d" % i).hexdigest(), "size": i} for i in range(n // 90)]
    return json.dumps({"operation": "download", "objects": objects}).encode()


def _read_fetch(version: int, body: bytes) -> object:
    return read_fetch(body, version)


def _requests() -> RequestReader:
    return RequestReader("ok.example", 443, lambda _: Treatment.KEEP, {})


def _request(*rows: bytes) -> bytes:
    return b"\r\n".join((b"GET / HTTP/1.1", b"Host: ok.example", *rows))


NESTED = (
    repeated(b"["),
    repeated(b'{"a":'),
    repeated(b"[],", b"[", b"0]"),
    lambda n: json.dumps(dict.fromkeys(map(str, range(n // 12)), 0)).encode(),
)
JSON_ATTACKS = (
    *NESTED,
    repeated(b"0,", b"[", b"0]"),
    repeated(b"1" * 64 + b",", b"[", b"0]"),
    repeated(b"1"),
    repeated(b"1e", b"["),
    repeated(b" ", b"["),
    repeated(b"a", b'"', b'"'),
    repeated(b"a", b'"'),
    repeated(b"\\"),
    repeated(b'\\"', b'"', b'"'),
    repeated(b"\\ud83d\\ude00", b'"', b'"'),
    repeated(b"\\ud83d", b'"', b'"'),
    repeated(b"\xf0\x9f\x98\x80", b'"', b'"'),
    repeated(b'"",', b"[", b'""]'),
    repeated(b'"%b",' % (b"a" * 1025), b"[", b'""]'),
    repeated(b'"\\n",', b"[", b'""]'),
    repeated(b'"a":0,', b"{", b'"b":0}'),
)


def in_slices(data: bytes) -> None:
    for _ in read_json_in_slices(data):
        pass


class Messages:
    """A client's WebSocket, each message of which is taken."""

    def __init__(self) -> None:
        self._messages = ClientMessages(1 << 24)

    def feed(self, data: bytes) -> None:
        self._messages.feed(data)
        while self._messages.take() is not None:
            pass


@cache
def _facts() -> BodyFacts:
    return facts_of(model_service("openai"), "/v1/responses")


def _find_api(path: str) -> object:
    return find_api(_facts().host, "POST", RequestPath.parse(path))


@cache
def _chat_message() -> RuleNode:
    """The place of a message in a chat, at which other members are looked at in any depth."""
    return compile_rules(FileModelApis()["openai-chat"]).child("messages")


@cache
def _queues() -> ServiceHost:
    policy = "[services.queues]\nhosts = ['queues.corp.example']\nsecret = 'store:q'\n"
    return book(policy).policy.services[0].hosts[0]


def _parse_graphql(document: str) -> None:
    with contextlib.suppress(GraphQLError):
        parse_bounded(document)


def _search_answer(data: bytes) -> object:
    answer = SearchAnswer(GitGrant(Forge.GITHUB, ""))
    return answer.feed(data), answer.end()


def _find_table(path: str) -> object:
    return find_table(_queues(), "PUT", RequestPath.parse(path))


@cache
def _model() -> tuple[Rulebook, RequestTarget]:
    target = parse_target(("https://api.openai.com/v1/responses",), "POST")
    assert isinstance(target, RequestTarget)
    return Rulebook(msgspec.structs.replace(book("").policy, services=(_service(),))), target


def _service() -> Service:
    return model_service("openai", 'models = ["a*b*c"]\nmax_tokens = 9')


def _explain(body: bytes) -> object:
    return explain(*_model(), body=body)


def _model_body(unit: str, before: str, after: str) -> Callable[[int], bytes]:
    """A body for a model, of which such parts are a list."""
    return lambda n: (before + ",".join([unit] * (n // len(unit))) + after).encode()


ISSUES = f"{{ {WIDGETS} {{ id issues(first:100) {{ nodes {{ id title parent {{ id }} }} }} }} }}"
ACTORS = f"{{ {WIDGETS} {{ issues(first:100) {{ nodes {{ author {{ login }} }} }} }} }}"


@cache
def _tree(document: str) -> FieldSelection:
    operation = read_operation(github_table(), {"query": document})
    return SelectionResolver(github_table(), operation).resolve()


def _graphql(document: str = ISSUES) -> GraphqlAnswer:
    granted = {Repository.parse(Forge.GITHUB, "acme/widgets")}
    answer = GraphqlAnswer(github_table(), _tree(document), granted, LearntIds())
    answer.begin(200, {})
    return answer


def _answered(data: bytes) -> bytes:
    answer = _graphql()
    return answer.feed(data) + answer.end()


def _nodes(node: Callable[[int], object], size: int) -> Callable[[int], bytes]:
    """An answer with nodes that have about this size each."""

    def make(n: int) -> bytes:
        issues = {"nodes": [node(i) for i in range(n // size)]}
        repository = {"keyhole_name": "acme/widgets", "issues": issues}
        return json.dumps({"data": {"repository": repository}}).encode()

    return make


def _issue(number: int) -> dict[str, Any]:
    within = {"keyhole_name": f"acme/{'widgets' if number % 2 else number}"}
    return {"id": f"I_{number}", "title": "t", "keyhole_in": within, "parent": None}


def _read_answer(document: str) -> Callable[[bytes], object]:
    """Decodes it each time: an answer is changed where it is read."""
    return lambda data: _graphql(document).read(msgspec.json.decode(data))


def _actor(number: int) -> dict[str, Any]:
    author = {"keyhole_type": f"Type{number}", "login": "x"}
    return {"keyhole_in": {"keyhole_name": "acme/widgets"}, "author": author}


@cache
def _interface() -> FieldSelection:
    below = _tree(ACTORS).fields["repository"].below
    for name in ("issues", "nodes", "author"):
        assert below is not None
        below = below.fields[name].below
    assert below is not None
    return below


MCP_GRANT = McpGrant(
    tools=(ToolGrant("*a*b"), ToolGrant("list_*")),
    resources=(read_resource("docs://guide/**"), read_resource("**")),
    prompts=("*a*b",),
)
PARAMS = frozenset({"name"})


def _filter_messages(data: bytes) -> bytes:
    return ServerFilter(MCP_GRANT, McpMemory(MCP_GRANT), lambda _: None).filter(data)


def _mcp(media: str) -> McpAnswer:
    memory = McpMemory(MCP_GRANT)
    answer = McpAnswer(ServerFilter(MCP_GRANT, memory, lambda _: None), memory, ())
    answer.begin(200, {"content-type": media})
    return answer


def _mirrored(case: tuple[dict[str, str], dict[str, Any]]) -> None:
    fields, arguments = case
    params: dict[str, Any] = {"name": "a", "arguments": arguments}
    check_mirrored(fields, [Message(MessageKind.REQUEST, 1, "tools/call", params)])


MCP_RESULT = '{"jsonrpc":"2.0","id":1,"result":{'
MCP_ATTACKS = (
    repeated(b"["),
    repeated(b"{},", b"[", b"{}]"),
    repeated(b'{"jsonrpc":"2.0","id":1,"result":'),
    repeated(b" "),
    *(
        _model_body(unit, f'{MCP_RESULT}"{kind}":[', "]}}")
        for kind, unit in (
            ("tools", '{"name":"list_x","inputSchema":{"b":1,"a":[[]]}}'),
            ("tools", '{"name":"%s"}' % ("a" * 1000)),
            ("tools", "{}"),
            ("prompts", '{"name":"%s"}' % ("a" * 1000)),
            ("resources", '{"uri":"docs://guide%s"}' % ("/a" * 480)),
            ("resourceTemplates", '{"uriTemplate":"docs://guide%s"}' % ("/{a}" * 15)),
            ("resourceTemplates", '{"uriTemplate":"%s"}' % ("{" * 1000)),
            ("resourceTemplates", '{"uriTemplate":"%s"}' % ("*/" * 30)),
        )
    ),
    lambda n: f'{MCP_RESULT}"tools":[{{"name":"list_x","description":"{"a" * n}"}}]}}}}'.encode(),
    lambda n: json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"inputRequests": {str(i): {"method": "x"} for i in range(n // 22)}},
        }
    ).encode(),
)

PLAIN = b"POST / HTTP/1.1\r\nHost: ok.example\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = BatchRequest(LfsOperation.DOWNLOAD, (LargeObject(OID, 5),))
SURGERY = CredentialStripper((), ())
GZIP_HEAD = gzip.compress(b"")[:10]
V2 = packet(b"command=fetch") + b"0001"
PUSH_HEAD = packet(b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/a\0 report-status")
PUSH_ROW = b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/"

ATTACKS: dict[str, tuple[Attack, ...]] = {
    # ── wire ──────────────────────────────────────────────────────────────────────────────────
    "wire.client_flight.ClientFlight.feed": both(
        lambda: ClientFlight(lambda _: Decision(Verdict.ALLOW)),
        _hello,
        repeated(b"\x14\x03\x03\x00\x01\x01", hello()),
        repeated(b"\x15\x03\x03\x00\x00", hello()),
        repeated(b"\x17\x03\x03\x00\x00", hello(extensions=[(42, b"")])),
        size=12 * K,
    ),
    "wire.client_hello.HelloReader.feed": both(
        HelloReader,
        _hello,
        repeated(b"\x16\x03\x01\x00\x01\x01"),
        lambda n: hello(extensions=[(16, vector(2, b"\x01a" * (n // 2)))]),
        lambda n: hello(sni="a." * 120, extensions=[(99, bytes(min(n, 2**15)))], pieces=4),
        size=4 * K,
    ),
    "wire.client_messages.ClientMessages.feed": both(
        Messages,
        repeated(b"\x82\x81maska"),
        repeated(b"\x82\x80mask"),
        repeated(b"\x00\x81maska", b"\x01\x81maska"),
        repeated(b"\x00\xfe\x00\x7emask" + b"a" * 126, b"\x01\x81maska"),
        repeated(b"\x89\x81maska", b"\x01\x81maska"),
        repeated(b"\x89\xfdmask" + b"a" * 125),
        repeated(b"a", b"\x82\xff\x00\x00\x00\x00\x00\xff\xff\xffmask"),
        size=4 * K,
    ),
    "wire.client_messages.write_text": whole(write_text, repeated(b"a")),
    "wire.event_stream.EventStreamReader.feed": both(
        lambda: EventStreamReader(1 << 24),
        repeated(b"\n"),
        repeated(b"\r"),
        repeated(b"\r\n"),
        repeated(b"a"),
        repeated(b"data:\n"),
        repeated(b"data:a\n\n"),
        repeated(b"id:a\rretry:1\r\r"),
        repeated(b":\n"),
        repeated(b"a", b"id:"),
        repeated(b"data:" + b"a" * 500 + b"\n"),
    ),
    "wire.event_stream.escape_breaks": whole(
        escape_breaks,
        repeated("\u2028".encode()),
        repeated("\x85".encode()),
        repeated(b"\xe2\x80"),
        repeated(b"\xff", b"\xe2\x80"),
    ),
    "wire.strict_json.is_quick": whole(is_quick, repeated(b"["), repeated(b"a")),
    "wire.strict_json.read_json": whole(read_strict_json, *JSON_ATTACKS),
    "wire.strict_json.read_json_in_slices": whole(in_slices, *JSON_ATTACKS),
    "wire.dns.parse": whole(
        dns.parse,
        _question,
        lambda n: b"\0\1\1\0\0\1\0\0\0\0\0\1" + b"\xc0\x0c" * (n // 2),
        lambda n: b"\0\1\1\0\0\1\0\0\0\0\0\0" + b"\x01a" * (n // 2),
        size=K,
    ),
    "wire.git_delta.apply_delta": (
        *whole(
            lambda d: apply_delta(bytes(256), d, 1 << 24),
            lambda n: number(256) + number(n // 2) + copy(0, 1) * (n // 2),
        ),
        *whole(
            lambda d: apply_delta(b"", d, 1 << 24),
            lambda n: number(0) + number(n // 2) + insert(b"a") * (n // 2),
            repeated(b"\xff", number(0)),
        ),
    ),
    "wire.git_delta.read_size": whole(lambda d: read_size(d, 0), repeated(b"\xff")),
    "wire.git_object.parse_commit": whole(
        lambda d: parse_commit(d, 20),
        repeated(b"parent %b\n" % (b"1" * 40), b"tree %b\n" % (b"1" * 40)),
        repeated(b"\ntre\nparen", b"tree %b\nauthor x" % (b"1" * 40)),
        repeated(b"tree " + b"1" * 39),
    ),
    "wire.git_object.parse_tag": whole(
        lambda d: parse_tag(d, 20), repeated(b"a", b"object %b\ntype commit\n" % (b"1" * 40))
    ),
    "wire.git_object.parse_tree": whole(
        lambda d: parse_tree(d, 20),
        repeated(b"40000 a"),
        repeated(b"40000 "),
        repeated(b"100644 a\0" + b"1" * 20),
        repeated(b"100644 a\0" + b"1" * 20, after=b"40000 x"),
        lambda n: b"".join(
            b"100644 %b%08d\0%b" % (b"a" * 200, i, b"1" * 20) for i in range(n // 240, 0, -1)
        ),
    ),
    "wire.git_refs.AdvertisementRewriter.feed": both(
        lambda: AdvertisementRewriter("git-receive-pack"),
        repeated(
            packet(b"1" * 40 + b" a"),
            packet(b"# service=git-receive-pack\n") + b"0000" + packet(b"1" * 40 + b" b\0x"),
        ),
        lambda n: (
            packet(b"# service=git-receive-pack\n")
            + b"0000"
            + packet(b"1" * 40 + b" b\0" + b"a " * (min(n, 65000) // 2))
        ),
        repeated(b"0004"),
        size=12 * K,
    ),
    "http.body.ChunkedReader.feed": both(
        lambda: ChunkedReader(None),
        repeated(b"1\r\na\r\n"),
        repeated(b"000000000001\r\na\r\n"),
        repeated(b"a: b\r\n", b"0\r\n"),
        lambda n: b"0\r\na: " + b"b" * min(n, 16000),
        lambda n: b"%x\r\n" % n + b"a" * n,
        repeated(b"1\r\na\r"),
    ),
    "http.field.overrides_method": whole(
        httpfield.overrides_method, repeated(b"method-"), repeated(b"-")
    ),
    "http.field.split_field": whole(
        httpfield.split_field,
        repeated(b" ", b"a:", b"x"),
        repeated(b":"),
        repeated(b"\xff", b"a:", b"\0"),
    ),
    "http.field.check_name": whole(httpfield.check_name, repeated(b"a", after=b" ")),
    "http.field.parse_field": whole(httpfield.parse_field, repeated(b" ", b"a:")),
    "http.field.values_of": whole(
        lambda d: httpfield.values_of(d.split(b"\n"), b"a"), repeated(b"a:b\n")
    ),
    "http.field.find_end": (
        *whole(httpfield.find_end, repeated(b"\r\n\r"), repeated(b"\n\r"), size=12 * K),
        *whole(
            lambda d: [httpfield.find_end(d[:i], i - 1) for i in range(1, len(d), 64)],
            repeated(b"\r\n\r"),
            size=K,
        ),
    ),
    "http.field.split_head": whole(httpfield.split_head, repeated(b"\r\n"), size=12 * K),
    "http.field.parse_length": whole(httpfield.parse_length, repeated(b"9")),
    "http.field.check_chunked": whole(
        lambda d: httpfield.check_chunked(d, False, False), repeated(b"chunked,")
    ),
    "http.field.parse_tokens": whole(
        httpfield.parse_tokens,
        repeated(b","),
        lambda n: b",".join(b"%d" % i for i in range(n // 6)),
        repeated(b" ,\t"),
    ),
    "http.field.without": whole(
        lambda d: httpfield.without(d.split(b"\n"), {b"a"}), repeated(b"b: a\n")
    ),
    "http.field.folded": whole(httpfield.folded, repeated(b"_a")),
    "http.client.Http1Client.receive": both(
        lambda: Heard(_origin()),
        repeated(b"1\r\na\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        repeated(b"HTTP/1.1 103 E\r\n\r\n"),
        repeated(b"a", b"HTTP/1.1 200 OK\r\na:"),
        repeated(b"a", b"HTTP/1.1 200 OK\r\n\r\n"),
    ),
    "http.body.may_follow_body": (
        at_once(lambda d: may_follow_body(d, lambda _: Treatment.KEEP), repeated(b"_a")),
    ),
    "http.crossing.request_head": tuple(
        at_once(_cross, make, 4 * K)
        for make in (
            lambda n: [("a", "b" * n)],
            lambda n: [("a", " " * n + "b")],
            lambda n: [("a" * n + ":", "b")],
            lambda n: [("cookie", "a")] * (n // 7),
            lambda n: [("host", "ok.example")] * (n // 14),
            lambda n: [("a", "b")] * (n // 4),
        )
    ),
    "http.frames.unpadded": (
        at_once(lambda d: unpadded(memoryview(d), PADDED), repeated(b"\x10")),
    ),
    "http.hpack.FieldDecoder.decode": tuple(
        at_once(lambda d: FieldDecoder().decode(d), make, 4 * K)
        for make in (
            _coded,
            repeated(b"\x82"),
            repeated(b"\x20"),
            repeated(b"\x3f\xe1\x1f\x20"),
            repeated(b"\x40\x01a\x01b"),
            repeated(b"\x40\x00\x00"),
            repeated(b"\xbe", b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000),
            repeated(b"\x00\x81\xff\x80"),
            repeated(b"\xff\x80\x80\x80\x00"),
            lambda n: b"\x00\x01a" + frames2.text(b"x" * n),
        )
    ),
    "http.huffman.decode_huffman": whole(
        decode_huffman,
        repeated(b"\x18\xc6\x31\x8c\x63"),
        repeated(b"\xff\xff\xea"),
        lambda n: ENCODER.encode(bytes(range(256)) * (n // 512)),
        size=4 * K,
    ),
    "http.http2.Http2Machine.receive": tuple(
        attack
        for attack in both(
            lambda: _origin2(frames2.status(1)),
            repeated(frames2.data(1, b"x")),
            repeated(frames2.data(1, b"", padding=0)),
            repeated(frames2.status(3, code="103")),
            repeated(frames2.data(3, b"x")),
            repeated(frames2.frame(9, 0, 3)),
            repeated(frames2.data(1, bytes(1000))),
            *map(repeated, FEED2),
        )
    ),
    "http.http2_server.Http2Server.receive": (
        *both(lambda: _client2(MANY), *map(repeated, FEED2), repeated(frames2.window(1, 1))),
        *both(
            lambda: _client2(HUNDRED),
            repeated(frames2.data(1, b"x")),
            repeated(frames2.data(1, b"", padding=1)),
            repeated(b"".join(frames2.data(number, b"x") for number in range(1, 200, 2))),
            repeated(frames2.settings((4, 1), (4, 0))),
        ),
        *both(
            _client2,
            _requests2("/now"),
            _requests2("/hold"),
            _sections(b"\x82"),
            _sections(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x9f"),
            _sections(b"\x40\x01a\x01b"),
            _sections(b"\x20"),
            repeated(frames2.get(2)),
            repeated(b"\x00"),
            repeated(b"a"),
        ),
    ),
    "http.plain.PlainRequestReader.parse": whole(
        PlainRequestReader("ok.example").parse,
        repeated(b"a", b"GET http://", b" HTTP/1.1\r\nHost: a"),
        repeated(b"/", b"GET http://a", b" HTTP/1.1\r\nHost: a"),
        repeated(b"a", b"", b" / HTTP/1.1"),
        repeated(b"a", b"CONNECT ", b" HTTP/1.1"),
        repeated(b" ", b"GET / HTTP/1.1\r\na:", b"\0"),
        repeated(b"\r\na:", b"GET / HTTP/1.1\r\nHost: ok.example"),
        size=12 * K,
    ),
    "http.plain.field_names": whole(field_names, repeated(b"\r\na:")),
    "http.named_host.named_host": whole(
        named_host,
        repeated(b"a", b"GET /", b" HTTP/1.1\r\nHost: a"),
        repeated(b"\r\na:", b"GET / HTTP/1.1"),
        repeated(b" ", b"GET / HTTP/1.1\r\na:", b"\0"),
        repeated(b"a", b"GET / HTTP/1.1\r\n"),
    ),
    "http.server.Http1Server.receive": both(
        lambda: Heard(_client()),
        repeated(b"1\r\na\r\n", PLAIN),
        repeated(b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"),
        repeated(b"a", b"GET /"),
        repeated(b"\r\n\r", b"GET /"),
    ),
    "http.request.RequestReader.parse": whole(
        lambda d: _requests().parse(d),
        lambda n: _request(b"a: " + b"b " * (n // 2) + b" "),
        lambda n: _request(b"a:" + b" " * n + b"b"),
        lambda n: _request(b"Connection: " + b"a," * (n // 2)),
        lambda n: _request(*(b"Connection: " + b"," * (n // 50) for _ in range(50))),
        lambda n: _request(*(b"a%d: b" % i for i in range(n // 30))),
        lambda n: _request(b"Accept: " + b' "\t' * (n // 3)),
        lambda n: b"GET https://" + b"a" * n + b" HTTP/1.1",
        lambda n: b"GET /" + b"?" * n + b" HTTP/1.1\r\nHost: ok.example",
        lambda n: b"a" * n + b" / HTTP/1.1",
        lambda n: _request(b"a" * n + b": b"),
        size=3 * K,
    ),
    "http.response.parse_response": whole(
        lambda d: parse_response(d, "GET", {}),
        lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: charset=" + b" " * n,
        lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: " + b"charset =" * (n // 9),
        lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: " + b'charset="' * (n // 9),
        lambda n: b"HTTP/1.1 200 " + b" " * n,
        lambda n: b"HTTP/1.1 200 OK\r\nConnection: " + b"a," * (n // 2),
        _rows(b"Connection:a,"),
        _rows(b"Content-Encoding:a,"),
        _rows(b"a:b"),
        size=3 * K,
    ),
    "http.response.is_unreadable": whole(
        is_unreadable, repeated(b" ", b"charset=", b"x"), repeated(b"charset = ")
    ),
    "wire.lfs_request.read_batch_request": (
        *whole(read_batch_request, _batch, size=2 * K),
        *whole(read_batch_request, repeated(b"[", b'{"objects":')),
    ),
    "wire.lfs_request.read_lock_request": whole(
        lambda d: read_lock_request(d, "path"), repeated(b"a", b'{"path":"', b'"}')
    ),
    "wire.lfs_request.read_object": whole(read_object, repeated(b"a", b'{"oid":"', b'","size":1}')),
    "wire.lfs_response.StorageAddress.parse": whole(
        StorageAddress.parse,
        text("a", "https://", "!"),
        text("%41", "https://a/", "%"),
        text("/", "https://a/", "#"),
        text("?", "https://a/?", "#"),
        text("a.", "https://", "/"),
        text("9", "https://a:", "/"),
        size=2 * K,
    ),
    "wire.lfs_response.read_batch_answer": whole(
        lambda d: read_batch_answer(d, ANSWER),
        _batch,
        repeated(b'{"a":', b'{"objects":'),
        lambda n: json.dumps(
            {
                "objects": [
                    {
                        "oid": OID,
                        "actions": {
                            "download": {
                                "href": "https://a/",
                                "header": {f"a{i}": "b" for i in range(n // 12)},
                            }
                        },
                    }
                ]
            }
        ).encode(),
    ),
    "wire.lfs_response.rewrite_error": whole(
        rewrite_error, repeated(b"a ", b'{"message":"', b'"}')
    ),
    "wire.lfs_json.read_json": whole(
        lambda d: read_json(d, 1 << 20),
        repeated(b"[", b'{"a":'),
        repeated(b'{"a":'),
        repeated(b"9", b'{"a":', b"}"),
        repeated(b"\\u0061", b'{"a":"', b'"}'),
        repeated(b" ", b"{"),
        lambda n: json.dumps({f"a{i}": i for i in range(n // 12)}).encode(),
        repeated(b"\\", b'{"a":"'),
    ),
    "wire.lfs_json.is_lfs_json": (
        *whole(
            lambda d: is_lfs_json([d]),
            repeated(b" ", b"Content-Type: application/vnd.git-lfs+json", b";x"),
        ),
        *whole(lambda d: is_lfs_json(d.split(b"\n")), repeated(b"content-type: x\n")),
    ),
    "wire.pack.Pack.kind": whole(
        lambda d: Pack(MemorySource(d), "sha1"),
        _pack(2, lambda n: (b"%d" % i for i in range(n // 24))),
        repeated(b"\xff", b"PACK\0\0\0\2\0\xff\xff\xff"),
        _pack(3, lambda n: (b"" for _ in range(n // 12))),
    ),
    "wire.pack.Pack.is_blob": whole(
        lambda d: Pack(MemorySource(d), "sha1").is_blob(b""),
        _pack(3, lambda n: (b"%d" % i for i in range(n // 24))),
        _chain,
    ),
    "wire.pkt_line.read_packets": whole(read_packets, repeated(b"0000"), repeated(b"0005a")),
    "wire.pkt_line.PacketReader.feed": both(
        PacketReader,
        repeated(b"0000"),
        repeated(b"0005a"),
        lambda n: b"fff0" + b"a" * min(n, 65516),
    ),
    "wire.receive_pack.PushReader.feed": both(
        PushReader,
        repeated(packet(PUSH_ROW + b"b"), PUSH_HEAD),
        repeated(b"0004"),
        repeated(packet(b"shallow " + b"1" * 40)),
        lambda n: packet(PUSH_ROW + b"b\0" + b"a " * (min(n, 65000) // 2)),
        repeated(packet(b"a"), packet(PUSH_ROW + b"b\0 report-status push-options") + b"0000"),
    ),
    "wire.receive_pack.ReportReader.feed": both(
        ReportReader,
        repeated(packet(b"\x01" + packet(b"ok refs/heads/a\n"))),
        repeated(packet(b"\x02a")),
        repeated(packet(b"\x01a")),
        repeated(packet(b"ng refs/heads/a x")),
    ),
    "wire.upload_pack.read_fetch": tuple(
        at_once(partial(_read_fetch, version), make)
        for version, make in (
            (2, repeated(packet(b"want " + b"1" * 40), V2, b"0000")),
            (2, repeated(packet(b"done"), V2, b"0000")),
            (2, repeated(b"0001", V2)),
            (2, lambda n: V2 + packet(b"ref-prefix " + b"a" * min(n, 65000)) + b"0000"),
            (0, repeated(packet(b"have " + b"1" * 40), packet(b"want " + b"1" * 40))),
            (0, lambda n: packet(b"want " + b"1" * 40 + b" " + b"a " * (min(n, 65000) // 2))),
        )
    ),
    "wire.upload_pack.read_abilities": whole(
        read_abilities,
        repeated(packet(b"a=b"), packet(b"version 2")),
        lambda n: packet(b"x\0" + b"a " * (min(n, 65000) // 2)),
        repeated(b"0000"),
    ),
    "wire.upload_pack.RefsReader.feed": both(
        RefsReader,
        lambda n: b"".join(packet(b"1" * 40 + b" refs/heads/%d" % i) for i in range(n // 60)),
        lambda n: packet(b"1" * 40 + b" " + b"a" * min(n, 65000) + b" symref-target:" + b" "),
    ),
    "wire.upload_pack.PackReader.feed": both(
        PackReader,
        repeated(packet(b"\x01a"), packet(b"packfile\n")),
        repeated(packet(b"\x02a"), packet(b"packfile\n")),
        repeated(packet(b"ACK"), packet(b"acknowledgments\n")),
    ),
    "wire.carried_frames.CarriedFrameReader.feed": both(
        CarriedFrames,
        repeated(CarriedFrame(FrameKind.BEAT).written()),
        repeated(CarriedFrame(FrameKind.DATA, 1, b"a").written()),
        repeated(CarriedFrame(FrameKind.DATA, 1, b"a" * 4096).written()),
        repeated(CarriedFrame(FrameKind.CREDIT, 1, b"\0\0\0\1").written()),
    ),
    "app.remote.carriage.Carriage.data_received": both(
        CarriedHere,
        repeated(CarriedFrame(FrameKind.BEAT).written()),
        repeated(CarriedFrame(FrameKind.DATA, 1, b"a").written()),
        repeated(CarriedFrame(FrameKind.DATA, 99, b"of no stream").written()),
        lambda n: CarriedFrame(FrameKind.WORD, 0, b'{"a":' + b"[" * min(n, 30000)).written(),
        repeated(CarriedFrame(FrameKind.WORD, 0, b'{"note": "x"}').written()),
    ),
    "wire.websocket.valid_key": whole(valid_key, repeated(b"A")),
    "wire.websocket.read_frame_length": whole(
        lambda d: read_frame_length(d, 0), repeated(b"\x7f"), repeated(b"\x01")
    ),
    "wire.websocket.read_client_head": whole(
        lambda d: read_client_head(d, 0), repeated(b"\x82"), repeated(b"\x82\xff")
    ),
    "wire.websocket.unmask": whole(lambda d: unmask(d, b"mask"), repeated(b"a"), repeated(b"\0")),
    "wire.websocket.ClientFrames.feed": both(
        ClientFrames,
        repeated(b"\x82\x81mask" + b"a"),
        repeated(b"\x82\x80mask"),
        repeated(b"\x89\x80mask"),
        repeated(b"\x82\xfe\x00\x7emask" + b"a" * 126),
        repeated(b"a", b"\x82\xff\x00\x00\x00\x00\x00\xff\xff\xffmask"),
        size=4 * K,
    ),
    "wire.websocket.FrameReader.feed": both(
        FrameReader,
        repeated(b"\x82\x01a"),
        repeated(b"\x00\x01a", b"\x02\x01a"),
        repeated(b"\x89\x00"),
        repeated(b"\x89\x7d" + b"a" * 125),
        repeated(b"\x82\x7e\x00\x7e" + b"a" * 126),
    ),
    # ── inject ────────────────────────────────────────────────────────────────────────────────
    "wire.signable_commit.parse_signable": whole(
        parse_signable,
        repeated(b"parent %b\n" % (b"1" * 40), b"tree %b\n" % (b"1" * 40)),
        repeated(b"a", b"tree %b\nauthor " % (b"1" * 40)),
    ),
    "inject.canary.CanaryScanner.found_in": whole(
        lambda data: CanaryScanner((b"a" * 19 + b"b",)).found_in(data), repeated(b"a")
    ),
    "inject.canonical.read_headers": (
        *whole(lambda d: read_headers(d.split(b"\n")), repeated(b"a:b\n")),
        *whole(lambda d: read_headers([d]), repeated(b" ", b"a:")),
    ),
    "inject.canonical.canonical_form": whole(
        lambda q: canonical_form(SignedRequest("a", "GET", "/", q, []), "s3", {}, ""),
        text("a&"),
        text("%41"),
    ),
    "inject.encoded_scanner.EncodedScanner.feed": both(
        lambda: EncodedScanner(NEEDLES, b"gzip"),
        repeated(gzip.compress(b"")),
        repeated(b"\x00\x00\x00\xff\xff", GZIP_HEAD),
        lambda n: gzip.compress(b"a b " * n),
    ),
    "inject.message_scanner.MessageScanner.feed": both(
        lambda: MessageScanner(NEEDLES, b"gzip"),
        repeated(b"\x00" * 5),
        repeated(b"\x00\x00\x00\x00\x01a"),
        repeated(b"\x01" + len(EMPTY).to_bytes(4, "big") + EMPTY),
        repeated(b"a", b"\x00\x7f\xff\xff\xff"),
    ),
    "inject.transfer_secrets.transfer_secrets": (
        *whole(
            lambda t: transfer_secrets(
                TransferAction(StorageAddress.parse("https://a/"), (("X-A", t),)), OID
            ),
            text("; "),
            size=2 * K,
        ),
        *whole(
            lambda t: transfer_secrets(
                TransferAction(StorageAddress.parse("https://a/"), (("Authorization", t),)), OID
            ),
            text("Basic "),
            size=2 * K,
        ),
    ),
    "inject.scrub.Needles.found_in": whole(
        NEEDLES.found_in,
        repeated(b"sk-test-"),
        repeated(b"sk-test-0123456789abcdefghijklmnopqrstu"),
    ),
    "inject.scrub.Needles.replace": whole(
        NEEDLES.replace, repeated(b"sk-test-0123456789abcdefghijklmnopqrstuv")
    ),
    "inject.scrub.Scrubber.feed": both(
        lambda: Scrubber(NEEDLES),
        repeated(b"a"),
        repeated(b" "),
        repeated(b"sk-test-0123456789abcdefghijklmnopqrstuv"),
        size=8 * K,
    ),
    "inject.scrub.Scrubber.replace": whole(
        lambda d: Scrubber(NEEDLES).replace(d),
        repeated(b"a"),
        repeated(b"sk-test-0123456789abcdefghijklmnopqrstuv"),
    ),
    "inject.scrub.Scrubber.pass_on": (
        *whole(lambda d: Scrubber(NEEDLES).pass_on(memoryview(d)), repeated(b"a")),
        *whole(
            lambda d: [
                s.pass_on(memoryview(d)[i : i + 9])
                for s in [Scrubber(NEEDLES)]
                for i in range(0, len(d), 9)
            ],
            repeated(b"a"),
            size=8 * K,
        ),
    ),
    "inject.service_account.read_token": whole(
        lambda d: read_token(200, d), repeated(b"a", b'{"access_token":"', b'"}'), repeated(b"[")
    ),
    "inject.entity_tags.EntityTags.open": whole(
        TAGS.open,
        repeated(b'"kh.'),
        repeated(b"a", b'"kh.'),
        repeated(TAGS.seal(b'"a tag"') + b", "),
        repeated(b'"kh.' + b"a" * 40 + b'"'),
    ),
    "inject.entity_tags.EntityTags.seal": whole(TAGS.seal, repeated(b"a")),
    "inject.response_fields.ResponseFields.treat": whole(
        ResponseFields((), TAGS).treat, repeated(b"a-"), repeated(b"_")
    ),
    "inject.escaped_secret.EscapedSecret.may_be_in": whole(SPELLED.may_be_in, repeated(b"s")),
    "inject.escaped_secret.unescape": whole(
        unescape,
        repeated(b"\\"),
        repeated(b"&amp;"),
        repeated(b"&#0"),
        repeated(b"0", b"&#", b"115;"),
        repeated(b"\\u0073"),
        repeated(b"&#115;"),
    ),
    "inject.escaped_secret.EscapedSecret.find": whole(
        SPELLED.find,
        repeated(b"s"),
        repeated(b"\\"),
        repeated(b"&amp;"),
        repeated(b"&#0", after=b"115;"),
        repeated(b"0", b"&#", b"115;"),
        repeated(b"\\u0073"),
        repeated(b"&#115;"),
        repeated(b"&#x73;k-test-"),
        repeated(_escaped(SECRET)),
        repeated(_escaped(SECRET[:-1])),
        repeated(_escaped(SECRET[:20])),
    ),
    "inject.credential_stripper.CredentialStripper.treat": whole(SURGERY.treat, repeated(b"a-")),
    "inject.credential_stripper.CredentialStripper.cookies": (
        *whole(CredentialStripper((), (), ("cookie",)).cookies, repeated(b"a=b;")),
        *whole(SURGERY.cookies, repeated(b";"), repeated(b" ", b"a=b", b"\0")),
    ),
    "inject.credential_stripper.CredentialStripper.protocols": whole(
        SURGERY.protocols,
        repeated(b"aaa-", b"", b"!!" * 10),
        repeated(b"a9a.", b"", b"A" * 20),
        repeated(b"a", b"", b"A"),
        repeated(b"a,"),
        repeated(b"-"),
        repeated(b"a1"),
    ),
    "inject.credential_stripper.CredentialStripper.query": whole(
        SURGERY.query, text("a&"), text(";"), text("token=1&"), text("%5B", "a", "=1"), text("[")
    ),
    "inject.token_usage.UsageReader.feed": both(
        lambda: UsageReader(tuple(UsageFormat)),
        repeated(b'"usage"'),
        repeated(b'"usage":{'),
        repeated(b'"usage" '),
        repeated(b"{", b'"usage":'),
        repeated(b'\\"', b'"usage":{"'),
        repeated(b'"usage":{"output_tokens":1}'),
    ),
    # ── model ─────────────────────────────────────────────────────────────────────────────────
    "model.glob.fold": (
        *whole(lambda t: fold(t), text("a" + "\u0301\u0323" * 15)),
        *whole(lambda t: fold(t), text("\ufdfa"), size=2 * K),
    ),
    "model.host.Host.parse": whole(Host.parse, text("a."), text("a-"), text("\u0301")),
    "model.https_url.HttpsUrl.parse": whole(
        HttpsUrl.parse,
        text("a.", "https://"),
        text("/a", "https://a.example"),
        text("%", "https://"),
    ),
    "model.path.RequestPath.parse": whole(
        lambda t: RequestPath.parse(t).folded(),
        text("/a"),
        text("%41", "/"),
        text("/"),
        text("%"),
        text("%CC%81%CC%A3", "/a"),
        text("%EF%B7%BA", "/"),
        text("a", "/", "#"),
        size=2 * K,
    ),
    "model.query.parse_query": whole(
        parse_query, text("a&"), text("%41"), text("a", after="\0"), text("%")
    ),
    "model.ref.Ref.parse": whole(
        Ref.parse, text("a/", "refs/heads/"), text("a.", "refs/heads/", "\0")
    ),
    "model.repository.Repository.parse": (
        *whole(lambda t: Repository.parse(Forge.GITLAB, t), text("a/")),
        *whole(lambda t: Repository.parse(Forge.GENERIC, t), text("a/")),
        *whole(lambda t: Repository.parse(Forge.GITHUB, t), text("a", "https://", ":")),
    ),
    "model.text.visible": whole(visible, text("\u202e"), text("a\n")),
    "model.text.check_marks": whole(check_marks, text("a\u0301")),
    # ── policy ────────────────────────────────────────────────────────────────────────────────
    "policy.request.decide_query": whole(decide_query, text("dns="), text("%64ns&")),
    "policy.body.read_facts": whole(lambda d: read_facts(_facts(), d), *NESTED),
    "policy.explain.explain": whole(
        _explain,
        _model_body('{"type":"function"}', '{"model":"abc","tools":[', "]}"),
        _model_body('{"type":"message","content":[{"type":"x"}]}', '{"input":[', "]}"),
        _model_body("[[]]", '{"input":[', "]}"),
        _model_body('"a"', '{"model":[', "]}"),
        repeated(b"ab", b'{"model":"', b'"}'),
        repeated(b"a", b'{"tools":[{"type":"', b'"}]}'),
        lambda n: json.dumps({f"{'_' * 40}{i}": 0 for i in range(n // 50)}).encode(),
        lambda n: json.dumps({"include": [f"a{i}" for i in range(n // 9)]}).encode(),
    ),
    "policy.forge_writes.find_write": whole(
        lambda t: find_write(Forge.GITHUB, "POST", tuple(t.split("/"))), text("a/"), text("a")
    ),
    "policy.collected_answer.CollectedAnswer.feed": (
        *whole(
            _search_answer,
            repeated(b"{},", b'{"items":[', b"{}]}"),
            repeated(b'{"repository_url":"/repos/a/b"},', b'{"items":[', b"{}]}"),
            repeated(b"/repos/", b'{"items":[{"repository_url":"', b'"}]}'),
        ),
        *both(_graphql, repeated(b"[")),
        *whole(
            _answered,
            repeated(b"["),
            repeated(b'{"data":'),
            repeated(b"a", b'{"data":"', b'"}'),
            repeated(b"[],", b'{"data":{"repository":[', b"[]]}}"),
            repeated(b'{"message":""},', b'{"data":{},"errors":[', b"{}]}"),
            _nodes(_issue, 90),
        ),
    ),
    "policy.graphql.document.parse_bounded": whole(
        _parse_graphql, text("a ", "{", "}"), text("{a"), text("#\n"), text('"""'), text("a")
    ),
    "policy.graphql.answer.GraphqlAnswer.read": (
        *whole(_read_answer(ISSUES), _nodes(_issue, 90), _nodes(lambda _: {}, 30)),
        *whole(_read_answer(ACTORS), _nodes(_actor, 90)),
    ),
    "policy.graphql.selection.FieldSelection.read_of": (
        *whole(lambda name: _interface().read_of(name), text("a")),
        *whole(
            lambda names: [_interface().read_of(name) for name in names],
            lambda n: [f"Type{i}" for i in range(n // 8)],
        ),
    ),
    "policy.mcp.answers.McpAnswer.feed": (
        *both(
            lambda: _mcp("text/event-stream"),
            repeated(b"a"),
            repeated(b"\n"),
            repeated(b"id:a\n\n"),
            repeated(b"event:x\ndata:a\n\n"),
            repeated(b'data:{"jsonrpc":"2.0","id":1,"method":"x"}\n\n'),
        ),
        *both(lambda: _mcp("application/json"), repeated(b"[")),
    ),
    "policy.mcp.capabilities.strip_capabilities": whole(
        lambda d: strip_capabilities(d, ()),
        repeated(b"["),
        repeated(b"{},", b"[", b"{}]"),
        repeated(b'{"params":'),
        lambda n: json.dumps(
            {"params": {"capabilities": dict.fromkeys(map(str, range(n // 12)), 0)}}
        ).encode(),
    ),
    "policy.mcp.messages.check_names": whole(
        lambda params: check_names(params, PARAMS),
        lambda n: dict.fromkeys((f"{i * 7919 % 99991:06}" for i in range(n // 8)), None),
        lambda n: {"a" * n: None},
    ),
    "policy.mcp.mirrored_fields.check_mirrored": whole(
        _mirrored,
        lambda n: ({"mcp-name": f"=?base64?{'A' * n}?="}, {}),
        lambda n: ({"mcp-name": f"=?base64?{'=' * n}"}, {}),
        lambda n: ({f"mcp-param-{i}": "x" for i in range(n // 16)}, {"a": "x"}),
        lambda n: ({"mcp-param-a": "x"}, {"a": ["y"] * (n // 4)}),
        lambda n: ({"mcp-param-a": "x"}, {str(i): {"a": [i]} for i in range(n // 16)}),
    ),
    "policy.mcp.raw_messages.check_marks": whole(
        lambda d: check_json_marks(d, 1 << 24), repeated(b","), repeated(b"[{")
    ),
    "policy.mcp.raw_messages.read_list": whole(read_list, *NESTED),
    "policy.mcp.raw_messages.read_part": whole(
        lambda d: read_part(d, RawMessage),
        *JSON_ATTACKS,
        repeated(b'"id":1,', b"{", b'"id":1}'),
        repeated(b"[", b'{"params":'),
    ),
    "policy.mcp.raw_messages.read_table": whole(read_table, *NESTED),
    "policy.mcp.raw_messages.read_value": whole(read_value, *NESTED),
    "policy.mcp.server_messages.ServerFilter.filter": whole(_filter_messages, *MCP_ATTACKS),
    "policy.body.find_flaw": whole(
        lambda media: find_flaw({"content-type": media}, empty=False),
        text("a", "application/"),
        text(" ", "application/json"),
        text(";", "application/json"),
    ),
    "policy.operations.find_table": whole(
        _find_table, text("/a"), text("/store"), text("/"), text("%CC%81", "/a"), size=2 * K
    ),
    "wire.parameters.folded": whole(fold_parameter, text("_"), text("a"), text("\ufdfa")),
    "wire.parameters.read_parameters": whole(
        lambda found: list(read_parameters(found)),
        text("&"),
        text("a=1&"),
        text("%41"),
        text("="),
        text("a;"),
        text("a[", "", "=1"),
        size=4 * K,
    ),
    "policy.model_lengths.AnswerLength.read_tokens": whole(
        lambda given: AnswerLength(9).read_tokens(given, "max_tokens"), text("9"), text("é")
    ),
    "policy.model_lengths.AnswerLength.read_number": whole(
        lambda given: AnswerLength(9).read_number(given, "n"), text("9"), text("é")
    ),
    "policy.model_lengths.AnswerLength.read_prompts": whole(
        lambda given: AnswerLength(9).read_prompts(given, "prompt"), text("9"), lambda n: [1] * n
    ),
    "policy.model_paths.find_api": whole(
        _find_api, text("/a"), text("/v1"), text("/"), text("%CC%81", "/a"), size=2 * K
    ),
    "policy.model_rules.fold_name": (
        *whole(fold_name, text("_"), text("\ufdfa")),
        *whole(
            lambda names: [fold_name(name) for name in names],
            lambda n: [f"{'_' * 50}\ufdfa{i}" for i in range(n // 60)],
        ),
    ),
    "policy.model_rules.RuleNode.find": (
        *whole(_chat_message().find, text("_"), text("\ufdfa")),
        *whole(
            lambda names: [_chat_message().find(name) for name in names],
            lambda n: [f"{'_' * 50}\ufdfa{i}" for i in range(n // 60)],
        ),
    ),
    "policy.denied_paths.DeniedPaths.compare": (
        *whole(judge, _trial(_line), size=40, per_byte=PER_COMMIT),
        *whole(judge, _trial(_wide), size=200, per_byte=PER_COMMIT),
        *whole(judge, _trial(_deep), size=40, per_byte=PER_COMMIT),
        *whole(judge, _trial(_marks), size=4 * K, per_byte=PER_COMMIT),
    ),
    "inject.agent_settings.read_settings": (
        *whole(
            lambda sent: read_settings(sent, SettingsFormat.JSON),
            text("[", '{"a":'),
            text('{"a":'),
            text('"a",', "[", "0]"),
            text(" ", "{", "}"),
        ),
        *whole(
            lambda sent: read_settings(sent, SettingsFormat.TOML),
            text("[", "a = "),
            text("a = 1\n"),
            text("[[a]]\n"),
            text(".a", "a"),
            text('."a"', "[a"),
        ),
    ),
    "inject.kept_settings.keep_changes": (
        *whole(
            kept_json,
            text("[", '{"a":'),
            text('"c",', '{"a":[', '"d"]}'),
            text("/*"),
            text('{"a":'),
        ),
        *whole(
            kept_toml,
            text("a."),
            text("[", "a = "),
            text("[[a]]\n"),
            text(f"{'a.' * 60}a = 1\n"),
        ),
    ),
    "model.toml.parse_toml": whole(
        _parse_toml, text(".a", "a"), text(". 'a'", "a"), text("a", "a = "), text('"""', "a = ")
    ),
    "inject.event_scanner.EventScanner.feed": both(
        lambda: EventScanner(NEEDLES), chain, repeated(b"\0"), repeated(b"\0\0\0\x10")
    ),
    "inject.event_signing.EventSigner.feed": whole(
        lambda sent: event_signer().feed(sent, NOON), chain, repeated(b"\0"), size=8 * K
    ),
    # ── gateway ───────────────────────────────────────────────────────────────────────────────
    "gateway.git.bands.BandWatch.feed": both(
        lambda: BandWatch(NEEDLES),
        repeated(packet(b"\x02a")),
        repeated(packet(b"\x02")),
        repeated(packet(b"\x02sk-test-0123456789abcdefghijklmnopqrstuv")),
        size=8 * K,
    ),
    "gateway.git.batch.BatchRewriter.feed": both(
        lambda: BatchRewriter(LargeFiles(), REPO, "/", ANSWER, NEEDLES, Instant(0, 0)),
        repeated(b"["),
    ),
    "gateway.git.batch.ErrorRewriter.feed": both(ErrorRewriter, repeated(b"[")),
    "gateway.door.gate.HttpGate.feed": both(
        lambda: HttpGate(Host("ok.example")),
        repeated(b"1\r\na\r\n", PLAIN),
        repeated(b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"),
        repeated(b"a", b"GET /"),
    ),
    "gateway.door.gate.OpenGate.feed": both(OpenGate, repeated(b"a")),
    "gateway.door.published_gate.PublishedGate.feed": both(
        lambda: PublishedGate(Host("a.localhost"), 3000, 3000),
        repeated(b"a", b"GET /"),
        repeated(b"\r\n", b"GET / HTTP/1.1"),
        repeated(b"\x14\x03\x03\x00\x01\x01", hello()),
    ),
    "gateway.door.gate.TlsGate.feed": both(
        lambda: TlsGate(Host("ok.example"), required=True),
        repeated(b"\x14\x03\x03\x00\x01\x01", hello()),
    ),
    "gateway.hello.HelloJudge.feed": both(
        lambda: HelloJudge(Host("ok.example")),
        _hello,
        repeated(b"\x16\x03\x01\x00\x01\x01"),
        size=4 * K,
    ),
    "gateway.git.push_report.PushReport.feed": both(
        lambda: PushReport(lambda *_: None, NEEDLES),
        repeated(packet(b"\x01" + packet(b"ok refs/heads/a"))),
    ),
    "gateway.http.websocket.FrameCanary.found_in": whole(
        lambda data: FrameCanary((b"a" * 19 + b"b",)).found_in(data),
        repeated(b"\x82\x81maska"),
        repeated(b"\x89\x81maska"),
        repeated(b"a", b"\x82\xff\x00\x00\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00"),
    ),
    "gateway.http.websocket.FrameScan.feed": both(
        lambda: FrameScan(NEEDLES),
        repeated(b"\x82\x01a"),
        repeated(b"\x00\x01a", b"\x02\x01a"),
        repeated(b"\x00\x01 ", b"\x02\x01a"),
        repeated(b"\x89\x00"),
        repeated(b"\x89\x01a"),
        size=8 * K,
    ),
    # ── system ────────────────────────────────────────────────────────────────────────────────
    "system.https.AnswerReader.feed": both(
        lambda: AnswerReader("POST", 1 << 30),
        repeated(b"a: b\r\n", b"HTTP/1.1 200 OK\r\n"),
        repeated(b"1\r\na\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        repeated(b"a", b"HTTP/1.1 200 OK\r\n\r\n"),
        repeated(b"a", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"),
        repeated(b"\r\n\r"),
    ),
    "policy.recorded_use.read_use": (
        *whole(lambda host: read_use("connect", host, {"port": 443}), text("a.", "a"), text("a")),
        *whole(
            lambda path: read_use("request", "a.example", {"method": "GET", "path": path}),
            text("a/", "/"),
        ),
        *whole(
            lambda name: read_use("ref", "a.example", {"repository": name, "ref": "refs/heads/a"}),
            text("a/", "a"),
            text("%41", "a"),
        ),
    ),
    "system.symlinks.follow": (
        *whole(
            lambda path: follow(path, lambda _: None),
            text("a/", "/"),
            text("../", "/"),
            text("a/../", "/"),
        ),
        *whole(lambda target: follow("/a", lambda _: target), text("../", after="a")),
    ),
}

ELSEWHERE: dict[str, str] = {
    name: reason
    for reason, names in {
        "the policy of a person, or what is made of it": """
            inject.catalogue.parse_template inject.injection.parse_injection
            inject.model_api.parse_judged inject.model_api.parse_model_api
            inject.operations.parse_operations
            policy.mcp_grant.read_endpoint policy.mcp_grant.read_prompt
            policy.mcp_grant.read_resource policy.service_login.parse_client
            policy.service_login.parse_client_secret policy.service_login.parse_scope
            inject.agent_profile.parse_profile inject.quiet_refusals.QuietRefusal.parse
            inject.table_values.read_at inject.table_values.read_each
            inject.table_values.read_optional
            inject.placeholder.TokenShape.parse inject.placeholder.TokenShape.placeholder
            inject.sigv4.read_keys inject.slots.Slot.parse inject.slots.parse_returned
            model.host.HostPattern.parse system.proxy.parse system.programs.find_program
            system.syscalls.load_filter system.syscalls.name_process model.path.parse_path_glob
            model.commit_identity.CommitIdentity.parse model.quantity.parse_duration
            model.money.parse_money inject.prices.parse_price
            model.quantity.parse_size model.ref.parse_ref_glob model.rule.AccessRule.parse
            model.secret.SecretRef.parse policy.document.parse_document policy.kinds.read_variable
            policy.schema.read_service_name policy.target.parse_repository_url
            policy.target.parse_target model.host.parse_port
            policy.ports.PublishedPort.parse policy.inbound.InboundRule.parse
            policy.bounds.read_bounds""",
        "addresses that the kernel gave": """
            system.socket_diag.find_connection""",
        "a model's name, which `UsageReader` has cut at 128 characters": """
            inject.prices.PriceList.find""",
        "a path that the kernel reads; what a link says is tried above": """
            system.symlinks.read_link system.walk.read_no_links""",
        "part of a trial, which is tried as a whole": """
            policy.ancestry.Ancestry.ends policy.ancestry.Ancestry.loose_ends
            policy.ancestry.Ancestry.trusts policy.ancestry.Ancestry.walk
            policy.new_commits.NewCommits.is_disordered policy.new_commits.NewCommits.touched
            policy.pushed_objects.PushedObjects.commit policy.pushed_objects.PushedObjects.has
            policy.pushed_objects.PushedObjects.is_file
            policy.pushed_objects.PushedObjects.is_other policy.pushed_objects.PushedObjects.shows
            policy.pushed_objects.PushedObjects.tag policy.pushed_objects.PushedObjects.tree
            wire.pack.Pack.read""",
        "looks a value up that was read before, or compares it": """
            policy.egress.decide_dns policy.signing.decide_signature
            wire.signable_commit.SignableCommit.signed_id policy.forge.GitRequest.reads
            policy.forge.decide_git_request
            policy.large_files.find_large_files policy.large_files.judge_body
            policy.limit.decide_total policy.path_index.PathIndex.find
            policy.path_index.PathIndex.find_all policy.push.decide_ref_update
            policy.push.decide_optimistically inject.canonical.only inject.sigv4.check
            inject.sigv4.signature_in
            wire.lfs_request.check_hash wire.git_object.kind_of_mode wire.lfs_json.read_list
            wire.lfs_json.read_mapping wire.lfs_json.read_number wire.lfs_json.read_text
            wire.pkt_line.chomp wire.pkt_line.encode wire.pkt_line.PacketReader.add
            http.body.LengthReader.feed""",
        "a library, in one pass: a hash, or Vectorscan": """
            wire.git_object.object_id wire.websocket.accept_for inject.prefilter.Prefilter.catches
            inject.scrub.Needles.is_part_of inject.scrub.Needles.may_be_in
            inject.scrub.Needles.spans""",
        "passes bytes on to readers that are tried above; see also test_stall.py": """
            gateway.http.authorize.Authorizer.find_judging
            gateway.http.judged_body.JudgedBody.collected
            gateway.http.judged_body.JudgedBody.take
            gateway.http.judged_messages.JudgedMessages.take
            gateway.http.judged_response.JudgedResponseReader.feed
            gateway.http.stream.Stream.upload policy.body.AnswerRewriter.feed
            gateway.bodies.BufferedBody.take gateway.bodies.CollectedBody.take
            gateway.budgets.Tally.feed gateway.budgets.Tally.message gateway.door.gate.Gate.feed
            gateway.door.gate.HttpGate.request_data gateway.door.nameserver.NameServer.answer
            gateway.door.signing.SigningTalk.data_received gateway.door.side.ClientSide.passed
            gateway.door.side.OriginSide.passed
            gateway.door.side.Side.data_received gateway.door.side.Side.passed
            gateway.door.side.Side.write gateway.door.tunnel.Tunnel.judge
            gateway.door.tunnel.Tunnel.origin_side gateway.git.batch.tell_error
            gateway.git.largefiles.open_address gateway.git.lfs.Transfer.check_body
            gateway.git.lfs.Upload.of gateway.git.lfs.storage_head
            gateway.git.push_body.PushBody.take gateway.git.push_exchange.PushStream.send_push
            gateway.git.quarantine.Quarantine.write gateway.git.responses.BodyRewriter.feed
            gateway.http.authorize.Authorizer.decide_again
            gateway.http.authorize.Authorizer.decoys gateway.http.collecting.Collecting.send_push
            gateway.http.collecting.Collecting.take
            gateway.http.connection.ClientConnection.received
            gateway.http.connection.ClientConnection.unsecured
            gateway.http.host.HostFacts.treat gateway.http.outbound.OutboundWriter.question
            gateway.http.redaction.RedactedResponse.redact
            gateway.http.redaction.RedactedResponse.redact_whole
            gateway.http.response.Response.response_begun
            gateway.http.response.Response.response_data gateway.http.stream.Stream.request_data
            gateway.http.stream.Stream.send_push gateway.refusal_messages.form_of_call
            gateway.refusal_messages.form_of_signed
            gateway.refusal_messages.push_reply
            gateway.session.Judge.judge gateway.session.SessionState.decoys_in
            gateway.channel_user.ChannelUser.received
            gateway.channel_user.ChannelUser.unsecured gateway.tls.TlsChannel.begin
            gateway.tls.TlsChannel.queue gateway.tls.TlsChannel.send
            gateway.tls.TlsChannel.write_plain gateway.upstream.inquiry.Inquiry.response_begun
            gateway.upstream.inquiry.Inquiry.response_data gateway.upstream.inquiry.Questions.ask
            gateway.upstream.origin.OriginConnection.received
            gateway.upstream.origin.OriginConnection.send_data
            gateway.upstream.origin.OriginConnection.unsecured http.client.FieldFilter.treat
            http.client.Http1Client.send_data http.client.ResponseReceiver.response_begun
            http.client.ResponseReceiver.response_data http.server.Http1Server.begin_response
            http.server.Http1Server.end_response http.server.Http1Server.send_data
            http.server.Http1Server.send_interim http.server.Http1Server.switch
            http.server.RequestReceiver.request_data http.http2_sending.Http2Sender.send_data
            http.http2_server.Http2Server.begin_response
            http.http2_server.Http2Server.end_response
            http.http2_server.Http2Server.send_interim http.http2_server.Http2Server.switch
            gateway.http.http1.Http1Connection.received
            gateway.http.http2.Http2Connection.received gateway.http.http2.Receiver.request_data
            gateway.http.redaction.redact_head gateway.http.http_connection.HttpConnection.received
            gateway.channel_user.SecuredUser.unsecured
            gateway.upstream.http2.Http2Origin.received
            gateway.upstream.http2.OriginStream.response_begun
            gateway.upstream.http2.OriginStream.response_data
            gateway.upstream.http2.OriginStream.send_data""",
        "looks an id up, or hands bytes of ours to a program": """
            policy.asks.Asks.find system.child.Children.run""",
        "writes what was read before": """
            http.frames.data_frames http.frames.frame http.frames.header_frames
            http.hpack.encode_field http.hpack.encode_line""",
    }.items()
    for name in names.split()
}
"""What takes bytes and is not tried by itself, and why."""

BESIDE = {
    "app.remote.carriage.Carriage.data_received",
    "system.symlinks.follow",
    "inject.canonical.canonical_form",
    "inject.transfer_secrets.transfer_secrets",
    "inject.credential_stripper.CredentialStripper.query",
}
"""What is tried although no parameter shows that it reads a text of someone else."""


def test_whatever_takes_bytes_is_entered() -> None:
    found = set(entries())
    assert found - ATTACKS.keys() == ELSEWHERE.keys(), "enter it above, with its worst inputs"
    assert ATTACKS.keys() - found == BESIDE


@pytest.mark.parametrize(
    ("name", "which"),
    [(name, which) for name, attacks in ATTACKS.items() for which in range(len(attacks))],
)
def test_a_parser_is_linear(name: str, which: int) -> None:
    size, make, per_byte = ATTACKS[name][which]
    growth.check(make, size, most=max(AT_LEAST, 4 * size * per_byte))


# ── the controls ──────────────────────────────────────────────────────────────────────────────────


class _Rescans:
    """Looks at all that it holds, each time something is added."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> None:
        self._held += data
        self._held.count(b"\n")


def _reads_on(data: bytes) -> None:
    """Copies what is left, for each line."""
    while data:
        _, _, data = data.partition(b"\n")


def _exponential(data: bytes) -> int:
    return 1 if len(data) < 2 else _exponential(data[1:]) + _exponential(data[2:])


@pytest.mark.parametrize(
    "attack",
    [
        fed(_Rescans, repeated(b"a"), 6 * K, 1),
        at_once(_reads_on, repeated(b"\n"), 24 * K),
        at_once(_exponential, repeated(b"a"), 16),
    ],
    ids=["it looks at all again", "it copies what is left", "exponential"],
)
def test_a_parser_that_is_not_linear_is_found(attack: Attack) -> None:
    size, make, _ = attack
    with pytest.raises(growth.Slow):
        growth.check(make, size, most=10)


def test_a_parser_that_is_slow_is_found() -> None:
    size, make, _ = at_once(
        lambda d: [hashlib.sha256(d).digest() for _ in range(400)], repeated(b"a")
    )
    with pytest.raises(growth.Slow, match="over"):
        growth.check(make, size, most=4 * size * 1e-9)
