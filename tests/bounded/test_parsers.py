"""I9, I12: whatever reads bytes of a sandbox or an origin takes linear time, and little of it.

`ATTACKS` has the worst inputs that are known for each function; it is compared with the source, so
that a new one must be entered. A reader of a stream is fed at once and byte by byte.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.gateway.bands import BandWatch
from keyhole.gateway.batch import BatchRewriter, ErrorRewriter, Instant
from keyhole.gateway.gate import HttpGate, TlsGate
from keyhole.gateway.lfs import LargeFiles, Repo
from keyhole.gateway.pushes import Report
from keyhole.gateway.relay import FrameScan
from keyhole.inject.canonical import SignedRequest, canonical_form, read_headers
from keyhole.inject.encoded import EncodedScanner, Reflected, Undecodable
from keyhole.inject.entitytag import KEY_BYTES, EntityTags
from keyhole.inject.lent import lent_secrets
from keyhole.inject.renderings import searchable
from keyhole.inject.returned import AnswerFields
from keyhole.inject.scrub import Needles, Scrubber
from keyhole.inject.serviceaccount import NoToken, read_token
from keyhole.inject.spelled import Spelled, unescaped
from keyhole.inject.surgery import Surgery
from keyhole.inject.usage import Usage, UsageReader
from keyhole.model.errors import Unparsable
from keyhole.model.glob import fold
from keyhole.model.host import Host
from keyhole.model.path import RequestPath
from keyhole.model.query import parse_query
from keyhole.model.ref import Ref
from keyhole.model.repository import Forge, Repository
from keyhole.model.text import check_marks, visible
from keyhole.policy.request import decide_query
from keyhole.policy.trial import Unsound
from keyhole.wire import dns, httpfield
from keyhole.wire.clientflight import ClientFlight
from keyhole.wire.clienthello import HelloReader
from keyhole.wire.gitdelta import apply_delta, read_size
from keyhole.wire.gitobject import Kind, parse_commit, parse_tag, parse_tree
from keyhole.wire.gitrefs import AdvertisementRewriter
from keyhole.wire.httpbody import ChunkedReader
from keyhole.wire.httpfield import Malformed
from keyhole.wire.httphead import parse_head
from keyhole.wire.httprequest import RequestReader, Treatment
from keyhole.wire.httpresponse import is_unreadable, parse_response
from keyhole.wire.httpstream import HttpStream
from keyhole.wire.lfs import (
    BatchRequest,
    LargeObject,
    Operation,
    read_batch_request,
    read_lock_request,
    read_object,
)
from keyhole.wire.lfsanswer import (
    Action,
    StorageAddress,
    read_batch_answer,
    rewrite_error,
)
from keyhole.wire.lfsjson import is_lfs_json, read_json
from keyhole.wire.pack import Held, Pack
from keyhole.wire.pktline import PacketReader, read_packets
from keyhole.wire.receivepack import PushReader, ReportReader
from keyhole.wire.uploadpack import (
    PackReader,
    RefsReader,
    Refused,
    RemoteError,
    read_abilities,
    read_fetch,
)
from keyhole.wire.websocket import FrameReader, valid_key
from tests.bounded import growth
from tests.bounded.entries import entries
from tests.policy.trying import try_all, update
from tests.wire.hellos import extension, hello, plain_body, vector
from tests.wire.packing import History, PackWriter, Upstream, copy, insert, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Attack = tuple[int, Callable[[int], Callable[[], object]], float]
    """Bytes of the smallest input, what is done with an input of a size, and the seconds that a
    byte of it may take."""

REFUSALS = (
    Malformed, Unparsable, Refused, RemoteError, Reflected, Undecodable, Unsound, NoToken,
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
SECRET = "sk-test-0123456789abcdefghijklmnopqrstuv"
NEEDLES = Needles.of(SECRET, "sk-test-placeholder0placeholder0placehol")
SPELLED = Spelled(SECRET, searchable(SECRET))
TAGS = EntityTags(b"k" * KEY_BYTES)
OID = "0123456789abcdef" * 4
REPO = Repo(Host("git.example"), 443, "forge", Forge.GITHUB, Repository(("acme", "widgets")))


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
        below = history.put(Kind.TREE, b"".join(b"40000 %d\0%b" % (i, below) for i in range(10)))
    return tip, history.commit(below, tip)


def _marks(history: History, n: int) -> tuple[bytes, bytes]:
    tip = history.commit({"a": "0"})
    name = "a" + "\u0301\u0323" * (n // 2)
    oid = history.put(Kind.BLOB, b"x")
    tree = history.put(Kind.TREE, b"100644 %b\0%b" % (name.encode(), oid))
    return tip, history.commit(tree, tip)


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
            place = writer.add(Kind.BLOB, content)
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


PLAIN = b"POST / HTTP/1.1\r\nHost: ok.example\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = BatchRequest(Operation.DOWNLOAD, (LargeObject(OID, 5),))
SURGERY = Surgery((), ())
GZIP_HEAD = gzip.compress(b"")[:10]
V2 = packet(b"command=fetch") + b"0001"
PUSH_HEAD = packet(b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/a\0 report-status")
PUSH_ROW = b"0" * 40 + b" " + b"1" * 40 + b" refs/heads/"

ATTACKS: dict[str, tuple[Attack, ...]] = {
    # ── wire ──────────────────────────────────────────────────────────────────────────────────
    "wire.clientflight.ClientFlight.feed": both(
        lambda: ClientFlight(lambda _: None),
        _hello,
        repeated(b"\x14\x03\x03\x00\x01\x01", hello()),
        repeated(b"\x15\x03\x03\x00\x00", hello()),
        repeated(b"\x17\x03\x03\x00\x00", hello(extensions=[(42, b"")])),
        size=12 * K,
    ),
    "wire.clienthello.HelloReader.feed": both(
        HelloReader,
        _hello,
        repeated(b"\x16\x03\x01\x00\x01\x01"),
        lambda n: hello(extensions=[(16, vector(2, b"\x01a" * (n // 2)))]),
        lambda n: hello(sni="a." * 120, extensions=[(99, bytes(min(n, 2**15)))], pieces=4),
        size=4 * K,
    ),
    "wire.dns.parse": (
        at_once(dns.parse, _question, K),
        at_once(dns.parse, lambda n: b"\0\1\1\0\0\1\0\0\0\0\0\1" + b"\xc0\x0c" * (n // 2), K),
        at_once(dns.parse, lambda n: b"\0\1\1\0\0\1\0\0\0\0\0\0" + b"\x01a" * (n // 2), K),
    ),
    "wire.gitdelta.apply_delta": (
        at_once(
            lambda d: apply_delta(bytes(256), d, 1 << 24),
            lambda n: number(256) + number(n // 2) + copy(0, 1) * (n // 2),
        ),
        at_once(
            lambda d: apply_delta(b"", d, 1 << 24),
            lambda n: number(0) + number(n // 2) + insert(b"a") * (n // 2),
        ),
        at_once(lambda d: apply_delta(b"", d, 1 << 24), repeated(b"\xff", number(0))),
    ),
    "wire.gitdelta.read_size": (at_once(lambda d: read_size(d, 0), repeated(b"\xff")),),
    "wire.gitobject.parse_commit": (
        at_once(
            lambda d: parse_commit(d, 20),
            repeated(b"parent %b\n" % (b"1" * 40), b"tree %b\n" % (b"1" * 40)),
        ),
        at_once(
            lambda d: parse_commit(d, 20),
            repeated(b"\ntre\nparen", b"tree %b\nauthor x" % (b"1" * 40)),
        ),
        at_once(lambda d: parse_commit(d, 20), repeated(b"tree " + b"1" * 39)),
    ),
    "wire.gitobject.parse_tag": (
        at_once(
            lambda d: parse_tag(d, 20), repeated(b"a", b"object %b\ntype commit\n" % (b"1" * 40))
        ),
    ),
    "wire.gitobject.parse_tree": (
        at_once(lambda d: parse_tree(d, 20), repeated(b"40000 a")),
        at_once(lambda d: parse_tree(d, 20), repeated(b"40000 ")),
        at_once(lambda d: parse_tree(d, 20), repeated(b"100644 a\0" + b"1" * 20)),
        at_once(lambda d: parse_tree(d, 20), repeated(b"100644 a\0" + b"1" * 20, after=b"40000 x")),
        at_once(
            lambda d: parse_tree(d, 20),
            lambda n: b"".join(
                b"100644 %b%08d\0%b" % (b"a" * 200, i, b"1" * 20) for i in range(n // 240, 0, -1)
            ),
        ),
    ),
    "wire.gitrefs.AdvertisementRewriter.feed": both(
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
    "wire.httpbody.ChunkedReader.feed": both(
        lambda: ChunkedReader(None),
        repeated(b"1\r\na\r\n"),
        repeated(b"000000000001\r\na\r\n"),
        repeated(b"a: b\r\n", b"0\r\n"),
        lambda n: b"0\r\na: " + b"b" * min(n, 16000),
        lambda n: b"%x\r\n" % n + b"a" * n,
        repeated(b"1\r\na\r"),
    ),
    "wire.httpfield.overrides_method": (
        at_once(httpfield.overrides_method, repeated(b"method-")),
        at_once(httpfield.overrides_method, repeated(b"-")),
    ),
    "wire.httpfield.split_field": (
        at_once(httpfield.split_field, repeated(b" ", b"a:", b"x")),
        at_once(httpfield.split_field, repeated(b":")),
        at_once(httpfield.split_field, repeated(b"\xff", b"a:", b"\0")),
    ),
    "wire.httpfield.check_name": (at_once(httpfield.check_name, repeated(b"a", after=b" ")),),
    "wire.httpfield.parse_field": (at_once(httpfield.parse_field, repeated(b" ", b"a:")),),
    "wire.httpfield.values_of": (
        at_once(lambda d: httpfield.values_of(d.split(b"\n"), b"a"), repeated(b"a:b\n")),
    ),
    "wire.httpfield.find_end": (
        at_once(httpfield.find_end, repeated(b"\r\n\r"), 12 * K),
        at_once(httpfield.find_end, repeated(b"\n\r"), 12 * K),
        at_once(
            lambda d: [httpfield.find_end(d[:i], i - 1) for i in range(1, len(d), 64)],
            repeated(b"\r\n\r"),
            K,
        ),
    ),
    "wire.httpfield.split_head": (at_once(httpfield.split_head, repeated(b"\r\n"), 12 * K),),
    "wire.httpfield.parse_length": (at_once(httpfield.parse_length, repeated(b"9")),),
    "wire.httpfield.check_chunked": (
        at_once(lambda d: httpfield.check_chunked(d, False, False), repeated(b"chunked,")),
    ),
    "wire.httpfield.parse_tokens": (
        at_once(httpfield.parse_tokens, repeated(b",")),
        at_once(httpfield.parse_tokens, lambda n: b",".join(b"%d" % i for i in range(n // 6))),
        at_once(httpfield.parse_tokens, repeated(b" ,\t")),
    ),
    "wire.httpfield.without": (
        at_once(lambda d: httpfield.without(d.split(b"\n"), {b"a"}), repeated(b"b: a\n")),
    ),
    "wire.httpfield.folded": (at_once(httpfield.folded, repeated(b"_a")),),
    "wire.httphead.parse_head": tuple(
        at_once(parse_head, make, 12 * K)
        for make in (
            repeated(b"a", b"GET http://", b" HTTP/1.1\r\nHost: a"),
            repeated(b"/", b"GET http://a", b" HTTP/1.1\r\nHost: a"),
            repeated(b"a", b"", b" / HTTP/1.1"),
            repeated(b" ", b"GET / HTTP/1.1\r\na:", b"\0"),
            repeated(b" \t", b"GET / HTTP/1.1\r\nHost:a\r\na:a", b"a"),
            repeated(b"\r\na:", b"GET / HTTP/1.1"),
        )
    ),
    "wire.httprequest.RequestReader.parse": tuple(
        at_once(lambda d: _requests().parse(d), make, 3 * K)
        for make in (
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
        )
    ),
    "wire.httpresponse.parse_response": tuple(
        at_once(lambda d: parse_response(d, "GET", {}), make, 3 * K)
        for make in (
            lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: charset=" + b" " * n,
            lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: " + b"charset =" * (n // 9),
            lambda n: b"HTTP/1.1 200 OK\r\nContent-Type: " + b'charset="' * (n // 9),
            lambda n: b"HTTP/1.1 200 " + b" " * n,
            lambda n: b"HTTP/1.1 200 OK\r\nConnection: " + b"a," * (n // 2),
            _rows(b"Connection:a,"),
            _rows(b"Content-Encoding:a,"),
            _rows(b"a:b"),
        )
    ),
    "wire.httpresponse.is_unreadable": (
        at_once(is_unreadable, repeated(b" ", b"charset=", b"x")),
        at_once(is_unreadable, repeated(b"charset = ")),
    ),
    "wire.httpstream.HttpStream.feed": both(
        lambda: HttpStream(lambda _: None),
        repeated(b"1\r\na\r\n", PLAIN),
        repeated(b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"),
        repeated(b"a", b"GET /"),
        repeated(b"\r\n\r", b"GET /"),
    ),
    "wire.lfs.read_batch_request": (
        at_once(read_batch_request, _batch, 2 * K),
        at_once(read_batch_request, repeated(b"[", b'{"objects":')),
    ),
    "wire.lfs.read_lock_request": (
        at_once(lambda d: read_lock_request(d, "path"), repeated(b"a", b'{"path":"', b'"}')),
    ),
    "wire.lfs.read_object": (at_once(read_object, repeated(b"a", b'{"oid":"', b'","size":1}')),),
    "wire.lfsanswer.StorageAddress.parse": tuple(
        at_once(StorageAddress.parse, make, 2 * K)
        for make in (
            text("a", "https://", "!"),
            text("%41", "https://a/", "%"),
            text("/", "https://a/", "#"),
            text("?", "https://a/?", "#"),
            text("a.", "https://", "/"),
            text("9", "https://a:", "/"),
        )
    ),
    "wire.lfsanswer.read_batch_answer": (
        at_once(lambda d: read_batch_answer(d, ANSWER), _batch),
        at_once(lambda d: read_batch_answer(d, ANSWER), repeated(b'{"a":', b'{"objects":')),
        at_once(
            lambda d: read_batch_answer(d, ANSWER),
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
    ),
    "wire.lfsanswer.rewrite_error": (
        at_once(rewrite_error, repeated(b"a ", b'{"message":"', b'"}')),
    ),
    "wire.lfsjson.read_json": tuple(
        at_once(lambda d: read_json(d, 1 << 20), make)
        for make in (
            repeated(b"[", b'{"a":'),
            repeated(b'{"a":'),
            repeated(b"9", b'{"a":', b"}"),
            repeated(b"\\u0061", b'{"a":"', b'"}'),
            repeated(b" ", b"{"),
            lambda n: json.dumps({f"a{i}": i for i in range(n // 12)}).encode(),
            repeated(b"\\", b'{"a":"'),
        )
    ),
    "wire.lfsjson.is_lfs_json": (
        at_once(
            lambda d: is_lfs_json([d]),
            repeated(b" ", b"Content-Type: application/vnd.git-lfs+json", b";x"),
        ),
        at_once(lambda d: is_lfs_json(d.split(b"\n")), repeated(b"content-type: x\n")),
    ),
    "wire.pack.Pack.kind": (
        at_once(
            lambda d: Pack(Held(d), "sha1"), _pack(2, lambda n: (b"%d" % i for i in range(n // 24)))
        ),
        at_once(lambda d: Pack(Held(d), "sha1"), repeated(b"\xff", b"PACK\0\0\0\2\0\xff\xff\xff")),
        at_once(lambda d: Pack(Held(d), "sha1"), _pack(3, lambda n: (b"" for _ in range(n // 12)))),
    ),
    "wire.pack.Pack.is_blob": (
        at_once(
            lambda d: Pack(Held(d), "sha1").is_blob(b""),
            _pack(3, lambda n: (b"%d" % i for i in range(n // 24))),
        ),
        at_once(lambda d: Pack(Held(d), "sha1").is_blob(b""), _chain),
    ),
    "wire.pktline.read_packets": (
        at_once(read_packets, repeated(b"0000")),
        at_once(read_packets, repeated(b"0005a")),
    ),
    "wire.pktline.PacketReader.feed": both(
        PacketReader,
        repeated(b"0000"),
        repeated(b"0005a"),
        lambda n: b"fff0" + b"a" * min(n, 65516),
    ),
    "wire.receivepack.PushReader.feed": both(
        PushReader,
        repeated(packet(PUSH_ROW + b"b"), PUSH_HEAD),
        repeated(b"0004"),
        repeated(packet(b"shallow " + b"1" * 40)),
        lambda n: packet(PUSH_ROW + b"b\0" + b"a " * (min(n, 65000) // 2)),
        repeated(packet(b"a"), packet(PUSH_ROW + b"b\0 report-status push-options") + b"0000"),
    ),
    "wire.receivepack.ReportReader.feed": both(
        ReportReader,
        repeated(packet(b"\x01" + packet(b"ok refs/heads/a\n"))),
        repeated(packet(b"\x02a")),
        repeated(packet(b"\x01a")),
        repeated(packet(b"ng refs/heads/a x")),
    ),
    "wire.uploadpack.read_fetch": tuple(
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
    "wire.uploadpack.read_abilities": (
        at_once(read_abilities, repeated(packet(b"a=b"), packet(b"version 2"))),
        at_once(read_abilities, lambda n: packet(b"x\0" + b"a " * (min(n, 65000) // 2))),
        at_once(read_abilities, repeated(b"0000")),
    ),
    "wire.uploadpack.RefsReader.feed": both(
        RefsReader,
        lambda n: b"".join(packet(b"1" * 40 + b" refs/heads/%d" % i) for i in range(n // 60)),
        lambda n: packet(b"1" * 40 + b" " + b"a" * min(n, 65000) + b" symref-target:" + b" "),
    ),
    "wire.uploadpack.PackReader.feed": both(
        PackReader,
        repeated(packet(b"\x01a"), packet(b"packfile\n")),
        repeated(packet(b"\x02a"), packet(b"packfile\n")),
        repeated(packet(b"ACK"), packet(b"acknowledgments\n")),
    ),
    "wire.websocket.valid_key": (at_once(valid_key, repeated(b"A")),),
    "wire.websocket.FrameReader.feed": both(
        FrameReader,
        repeated(b"\x82\x01a"),
        repeated(b"\x00\x01a", b"\x02\x01a"),
        repeated(b"\x89\x00"),
        repeated(b"\x89\x7d" + b"a" * 125),
        repeated(b"\x82\x7e\x00\x7e" + b"a" * 126),
    ),
    # ── inject ────────────────────────────────────────────────────────────────────────────────
    "inject.canonical.read_headers": (
        at_once(lambda d: read_headers(d.split(b"\n")), repeated(b"a:b\n")),
        at_once(lambda d: read_headers([d]), repeated(b" ", b"a:")),
    ),
    "inject.canonical.canonical_form": (
        at_once(
            lambda q: canonical_form(SignedRequest("a", "GET", "/", q, []), "s3", {}, ""),
            text("a&"),
        ),
        at_once(
            lambda q: canonical_form(SignedRequest("a", "GET", "/", q, []), "s3", {}, ""),
            text("%41"),
        ),
    ),
    "inject.encoded.EncodedScanner.feed": both(
        lambda: EncodedScanner(NEEDLES, b"gzip"),
        repeated(gzip.compress(b"")),
        repeated(b"\x00\x00\x00\xff\xff", GZIP_HEAD),
        lambda n: gzip.compress(b"a b " * n),
    ),
    "inject.lent.lent_secrets": (
        at_once(
            lambda t: lent_secrets(Action(StorageAddress.parse("https://a/"), (("X-A", t),)), OID),
            text("; "),
            2 * K,
        ),
        at_once(
            lambda t: lent_secrets(
                Action(StorageAddress.parse("https://a/"), (("Authorization", t),)), OID
            ),
            text("Basic "),
            2 * K,
        ),
    ),
    "inject.scrub.Needles.found_in": (
        at_once(NEEDLES.found_in, repeated(b"sk-test-")),
        at_once(NEEDLES.found_in, repeated(b"sk-test-0123456789abcdefghijklmnopqrstu")),
    ),
    "inject.scrub.Needles.replace": (
        at_once(NEEDLES.replace, repeated(b"sk-test-0123456789abcdefghijklmnopqrstuv")),
    ),
    "inject.scrub.Scrubber.feed": both(
        lambda: Scrubber(NEEDLES),
        repeated(b"a"),
        repeated(b" "),
        repeated(b"sk-test-0123456789abcdefghijklmnopqrstuv"),
        size=8 * K,
    ),
    "inject.scrub.Scrubber.pass_on": (
        at_once(lambda d: Scrubber(NEEDLES).pass_on(memoryview(d)), repeated(b"a")),
        at_once(
            lambda d: [
                s.pass_on(memoryview(d)[i : i + 9])
                for s in [Scrubber(NEEDLES)]
                for i in range(0, len(d), 9)
            ],
            repeated(b"a"),
            8 * K,
        ),
    ),
    "inject.serviceaccount.read_token": (
        at_once(lambda d: read_token(200, d), repeated(b"a", b'{"access_token":"', b'"}')),
        at_once(lambda d: read_token(200, d), repeated(b"[")),
    ),
    "inject.entitytag.EntityTags.open": (
        at_once(TAGS.open, repeated(b'"kh.')),
        at_once(TAGS.open, repeated(b"a", b'"kh.')),
        at_once(TAGS.open, repeated(TAGS.seal(b'"a tag"') + b", ")),
        at_once(TAGS.open, repeated(b'"kh.' + b"a" * 40 + b'"')),
    ),
    "inject.entitytag.EntityTags.seal": (at_once(TAGS.seal, repeated(b"a")),),
    "inject.returned.AnswerFields.treat": (
        at_once(AnswerFields((), TAGS).treat, repeated(b"a-")),
        at_once(AnswerFields((), TAGS).treat, repeated(b"_")),
    ),
    "inject.spelled.Spelled.may_be_in": (at_once(SPELLED.may_be_in, repeated(b"s")),),
    "inject.spelled.unescaped": tuple(
        at_once(unescaped, make)
        for make in (
            repeated(b"\\"),
            repeated(b"&amp;"),
            repeated(b"&#0"),
            repeated(b"0", b"&#", b"115;"),
            repeated(b"\\u0073"),
            repeated(b"&#115;"),
        )
    ),
    "inject.spelled.Spelled.find": tuple(
        at_once(SPELLED.find, make)
        for make in (
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
        )
    ),
    "inject.surgery.Surgery.treat": (at_once(SURGERY.treat, repeated(b"a-")),),
    "inject.surgery.Surgery.cookies": (
        at_once(Surgery((), (), ("cookie",)).cookies, repeated(b"a=b;")),
        at_once(SURGERY.cookies, repeated(b";")),
        at_once(SURGERY.cookies, repeated(b" ", b"a=b", b"\0")),
    ),
    "inject.surgery.Surgery.protocols": tuple(
        at_once(SURGERY.protocols, make)
        for make in (
            repeated(b"aaa-", b"", b"!!" * 10),
            repeated(b"a9a.", b"", b"A" * 20),
            repeated(b"a", b"", b"A"),
            repeated(b"a,"),
            repeated(b"-"),
            repeated(b"a1"),
        )
    ),
    "inject.surgery.Surgery.query": (
        at_once(SURGERY.query, text("a&")),
        at_once(SURGERY.query, text(";")),
        at_once(SURGERY.query, text("token=1&")),
        at_once(SURGERY.query, text("%5B", "a", "=1")),
        at_once(SURGERY.query, text("[")),
    ),
    "inject.usage.UsageReader.feed": both(
        lambda: UsageReader(tuple(Usage)),
        repeated(b'"usage"'),
        repeated(b'"usage":{'),
        repeated(b'"usage" '),
        repeated(b"{", b'"usage":'),
        repeated(b'\\"', b'"usage":{"'),
        repeated(b'"usage":{"output_tokens":1}'),
    ),
    # ── model ─────────────────────────────────────────────────────────────────────────────────
    "model.glob.fold": (
        at_once(lambda t: fold(t), text("a" + "\u0301\u0323" * 15)),
        at_once(lambda t: fold(t), text("\ufdfa"), 2 * K),
    ),
    "model.host.Host.parse": (
        at_once(Host.parse, text("a.")),
        at_once(Host.parse, text("a-")),
        at_once(Host.parse, text("\u0301")),
    ),
    "model.path.RequestPath.parse": tuple(
        at_once(lambda t: RequestPath.parse(t).folded(), make, 2 * K)
        for make in (
            text("/a"),
            text("%41", "/"),
            text("/"),
            text("%"),
            text("%CC%81%CC%A3", "/a"),
            text("%EF%B7%BA", "/"),
            text("a", "/", "#"),
        )
    ),
    "model.query.parse_query": (
        at_once(parse_query, text("a&")),
        at_once(parse_query, text("%41")),
        at_once(parse_query, text("a", after="\0")),
        at_once(parse_query, text("%")),
    ),
    "model.ref.Ref.parse": (
        at_once(Ref.parse, text("a/", "refs/heads/")),
        at_once(Ref.parse, text("a.", "refs/heads/", "\0")),
    ),
    "model.repository.Repository.parse": (
        at_once(lambda t: Repository.parse(Forge.GITLAB, t), text("a/")),
        at_once(lambda t: Repository.parse(Forge.GENERIC, t), text("a/")),
        at_once(lambda t: Repository.parse(Forge.GITHUB, t), text("a", "https://", ":")),
    ),
    "model.text.visible": (at_once(visible, text("\u202e")), at_once(visible, text("a\n"))),
    "model.text.check_marks": (at_once(check_marks, text("a\u0301")),),
    # ── policy ────────────────────────────────────────────────────────────────────────────────
    "policy.request.decide_query": (
        at_once(decide_query, text("dns=")),
        at_once(decide_query, text("%64ns&")),
    ),
    "policy.deniedpaths.DeniedPaths.compare": (
        at_once(judge, _trial(_line), 40, PER_COMMIT),
        at_once(judge, _trial(_wide), 200, PER_COMMIT),
        at_once(judge, _trial(_deep), 40, PER_COMMIT),
        at_once(judge, _trial(_marks), 4 * K, PER_COMMIT),
    ),
    # ── gateway ───────────────────────────────────────────────────────────────────────────────
    "gateway.bands.BandWatch.feed": both(
        lambda: BandWatch(NEEDLES),
        repeated(packet(b"\x02a")),
        repeated(packet(b"\x02")),
        repeated(packet(b"\x02sk-test-0123456789abcdefghijklmnopqrstuv")),
        size=8 * K,
    ),
    "gateway.batch.BatchRewriter.feed": both(
        lambda: BatchRewriter(LargeFiles(), REPO, "/", ANSWER, NEEDLES, Instant(0, 0)),
        repeated(b"["),
    ),
    "gateway.batch.ErrorRewriter.feed": both(ErrorRewriter, repeated(b"[")),
    "gateway.gate.HttpGate.feed": both(
        lambda: HttpGate(Host("ok.example")), repeated(b"1\r\na\r\n", PLAIN)
    ),
    "gateway.gate.TlsGate.feed": both(
        lambda: TlsGate(Host("ok.example"), required=True),
        repeated(b"\x14\x03\x03\x00\x01\x01", hello()),
    ),
    "gateway.pushes.Report.feed": both(
        lambda: Report(lambda *_: None, NEEDLES),
        repeated(packet(b"\x01" + packet(b"ok refs/heads/a"))),
    ),
    "gateway.relay.FrameScan.feed": both(
        lambda: FrameScan(NEEDLES),
        repeated(b"\x82\x01a"),
        repeated(b"\x00\x01a", b"\x02\x01a"),
        repeated(b"\x00\x01 ", b"\x02\x01a"),
        repeated(b"\x89\x00"),
        repeated(b"\x89\x01a"),
        size=8 * K,
    ),
}

ELSEWHERE: dict[str, str] = {
    name: reason
    for reason, names in {
        "the policy of a person, or what is made of it": """
            inject.catalogue.parse_template inject.injection.parse_injection
            inject.placeholder.Shape.parse inject.placeholder.Shape.placeholder
            inject.sigv4.read_keys inject.slots.Slot.parse inject.slots.parse_returned
            model.host.HostPattern.parse system.proxy.parse
            model.path.parse_path_glob model.person.Person.parse model.quantity.parse_duration
            model.quantity.parse_size model.ref.parse_ref_glob model.rule.AccessRule.parse
            model.secret.SecretRef.parse policy.document.parse_document policy.kinds.read_variable
            policy.schema.read_service_name policy.target.parse_repository_url
            policy.target.parse_target model.host.parse_port""",
        "part of a trial, which is tried as a whole": """
            policy.ancestry.Ancestry.ends policy.ancestry.Ancestry.loose_ends
            policy.ancestry.Ancestry.trusts policy.ancestry.Ancestry.walk
            policy.newcommits.NewCommits.is_disordered policy.newcommits.NewCommits.touched
            policy.pushedobjects.Objects.commit policy.pushedobjects.Objects.has
            policy.pushedobjects.Objects.is_file policy.pushedobjects.Objects.is_other
            policy.pushedobjects.Objects.shows policy.pushedobjects.Objects.tag
            policy.pushedobjects.Objects.tree wire.pack.Pack.read""",
        "looks a value up that was read before, or compares it": """
            policy.egress.decide_dns policy.forge.GitRequest.reads policy.forge.decide_git_request
            policy.largefiles.find_large_files policy.largefiles.judge_body
            policy.limit.decide_total policy.pathindex.PathIndex.find
            policy.pathindex.PathIndex.find_all policy.push.decide_ref_update
            inject.canonical.only inject.sigv4.check wire.lfs.check_hash
            wire.gitobject.kind_of_mode wire.lfsjson.read_list wire.lfsjson.read_mapping
            wire.lfsjson.read_number wire.lfsjson.read_text wire.pktline.chomp wire.pktline.encode
            wire.pktline.PacketReader.add wire.httpbody.LengthReader.feed""",
        "a library, in one pass: a hash, or Vectorscan": """
            wire.gitobject.object_id wire.websocket.accept_for inject.sieve.Sieve.catches
            inject.scrub.Needles.is_part_of inject.scrub.Needles.may_be_in
            inject.scrub.Needles.spans""",
        "passes bytes on to readers that are tried above; see also test_stall.py": """
            gateway.answer.Answer.body gateway.answer.Answer.whole
            gateway.arrival.Arrival.unsecured gateway.batch.tell_error gateway.budgets.Tally.feed
            gateway.budgets.Tally.message gateway.errand.Rewriter.feed
            gateway.exchange.Exchange.answered gateway.exchange.Exchange.attach
            gateway.exchange.Exchange.body gateway.exchange.Exchange.relay_up
            gateway.exchange.Exchange.relayed gateway.exchange.Exchange.upload
            gateway.exchange.Exchange.upload_within gateway.gate.Gate.feed
            gateway.gathering.Body.feed gateway.inquiry.Asking.ask
            gateway.inquiry.Inquiry.answered gateway.inquiry.Inquiry.body
            gateway.inquiry.Inquiry.relayed gateway.inspected.Inspected.answer_push
            gateway.inspected.Inspected.go_on_with gateway.inspected.Inspected.queue
            gateway.inspected.Inspected.received gateway.inspected.Inspected.refuse_request
            gateway.inspected.Inspected.send_on gateway.inspection.Inspection.asked
            gateway.inspection.Inspection.decoys gateway.inspection.Inspection.question
            gateway.largefiles.open_address gateway.lfs.Transfer.check_body gateway.lfs.Upload.of
            gateway.lfs.storage_head gateway.nameserver.NameServer.answer
            gateway.origin.Asker.answered gateway.origin.Asker.body gateway.origin.Asker.relayed
            gateway.origin.Origin.received gateway.pushbody.PushBody.feed
            gateway.pushes.Judge.judge gateway.quarantine.Quarantine.write
            gateway.refusal.push_reply gateway.side.ClientSide.passed
            gateway.side.OriginSide.passed gateway.side.Side.data_received
            gateway.side.Side.passed gateway.side.Side.write
            gateway.tlsside.TlsSide.begin gateway.tlsside.TlsSide.received
            gateway.tlsside.TlsSide.send gateway.tlsside.TlsSide.unsecured
            gateway.tunnel.Tunnel.judge gateway.tunnel.Tunnel.origin_side""",
    }.items()
    for name in names.split()
}
"""What takes bytes and is not tried by itself, and why."""

BESIDE = {
    "inject.canonical.canonical_form",
    "inject.lent.lent_secrets",
    "inject.surgery.Surgery.query",
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
