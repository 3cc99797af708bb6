"""Connections to origins: verified, judged, kept for the next request, and never shared (I4)."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trustme

from keyhole.gateway import inspection
from tests.gateway.origins import Handler, Origin, Service
from tests.gateway.stage import SECRET, Stage, service, serving
from tests.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    from tests.gateway.namespace import Namespace

Make = Callable[..., Origin]
PATIENCE = 20.0
OWN = service("own", "ok.example")


def served(stage: Stage, origin: Make, tls: ssl.SSLContext, handler: Handler) -> Origin:
    """Open the door with this behind it."""
    server = origin(handler, tls)
    stage.open(OWN, ok_example=server)
    return server


# ── kept connections ──────────────────────────────────────────────────────────────────────────────


class Stale(Service):
    """Closes instead of answering, each connection from its nth request on."""

    def __init__(self, *closes_at: int) -> None:
        super().__init__(self._reply)
        self._closes_at = list(closes_at)
        self.served: dict[int, int] = {}

    def _reply(self, message: Message) -> bytes | None:
        number = message.connection
        self.served[number] = self.served.get(number, 0) + 1
        limit = self._closes_at[number - 1] if number <= len(self._closes_at) else 99
        return None if self.served[number] >= limit else ok(b"%d" % number)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_a_stale_connection_is_noticed_and_an_idempotent_request_sent_again(
    stage: Stage, origin: Make, tls: ssl.SSLContext, method: str
) -> None:
    server = Stale(2)
    served(stage, origin, tls, server)
    talk = stage.ask(get("/1"))
    assert talk.answer().body == b"1"
    talk.send(head(method, "/2"))
    assert talk.answer(method).status == 200
    assert [(seen.start.split()[1], seen.connection) for seen in server.seen] == [
        ("/1", 1),
        ("/2", 1),
        ("/2", 2),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        head("POST", "/2", "Content-Length: 0"),
        head("POST", "/2", "Content-Length: 5") + b"hello",
        head("PATCH", "/2", "Content-Length: 5") + b"hello",
        head("PUT", "/2", "Content-Length: 5") + b"hello",
    ],
)
def test_a_request_that_may_have_been_done_is_not_sent_again(
    stage: Stage, origin: Make, tls: ssl.SSLContext, request_: bytes
) -> None:
    server = Stale(2)
    served(stage, origin, tls, server)
    talk = stage.ask(get("/1"))
    assert talk.answer().body == b"1"
    talk.send(request_)
    answer = talk.answer()
    assert answer.status == 502
    assert json.loads(answer.body)["reason"] == "upstream-closed"
    assert [seen.start.split()[1] for seen in server.seen] == ["/1", "/2"]


def test_a_request_is_sent_again_once(stage: Stage, origin: Make, tls: ssl.SSLContext) -> None:
    server = Stale(2, 1, 1)
    served(stage, origin, tls, server)
    talk = stage.ask(get("/1"))
    assert talk.answer().body == b"1"
    talk.send(get("/2"))
    assert talk.answer().status == 502
    assert [seen.connection for seen in server.seen] == [1, 1, 2]


def test_a_new_connection_that_closes_is_not_tried_again(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Stale(1, 1)
    served(stage, origin, tls, server)
    assert stage.ask(get("/1")).answer().status == 502
    assert len(server.seen) == 1


def test_a_pipelined_request_waits_for_the_one_that_is_sent_again(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Stale(2)
    served(stage, origin, tls, server)
    talk = stage.ask(get("/1"))
    assert talk.answer().body == b"1"
    talk.send(get("/2") + get("/3"))
    assert [talk.answer().body for _ in range(2)] == [b"2", b"2"]


REUSED = {
    "an answer to no body": (head("POST", "/1", "Content-Length: 0"), ok(b"x")),
    "a redirect without a body": (get("/1"), ok(b"x", b"Location: /3", status=b"302 Found")),
    "an error without a body": (get("/1"), ok(b"x", status=b"404 Not Found")),
    "chunks": (get("/1"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
}
NOT_REUSED = {
    "an answer to a body": (head("POST", "/1", "Content-Length: 5") + b"hello", ok(b"x")),
    "an error to a body": (
        head("POST", "/1", "Content-Length: 5") + b"hello",
        ok(b"x", status=b"400 Bad Request"),
    ),
    "an error to chunks": (
        head("POST", "/1", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
        ok(b"x", status=b"500 Internal Server Error"),
    ),
    "close": (get("/1"), ok(b"x", b"Connection: close")),
    "surplus bytes": (get("/1"), ok(b"x") + b"y"),
    "a second answer": (get("/1"), ok(b"x") + ok(b"of another request")),
    "surplus behind chunks": (
        get("/1"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + ok(b"z"),
    ),
    "surplus behind 204": (get("/1"), b"HTTP/1.1 204 No Content\r\n\r\n" + ok(b"z")),
    "a 204 with a length": (get("/1"), b"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n\r\n"),
    "HTTP/1.0": (get("/1"), b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx"),
}


@pytest.mark.parametrize("case", [*REUSED, *NOT_REUSED])
def test_a_connection_is_kept_only_after_an_answer_that_leaves_no_doubt(
    stage: Stage, origin: Make, tls: ssl.SSLContext, case: str
) -> None:
    """I4: what is left of one answer must not become the next one's, nor a body's rest a request:
    its injected header would end in whatever the first request stores."""
    request, reply = (REUSED | NOT_REUSED)[case]
    server = Service(lambda message: ok(b"2") if "/2" in message.start else reply)
    served(stage, origin, tls, server)
    talk = stage.ask(request)
    assert talk.answer().status < 600
    talk.send(get("/2"))
    assert talk.answer().body == b"2"
    assert (server.seen[0].connection == server.seen[1].connection) is (case in REUSED)


def test_a_connection_is_not_kept_after_an_early_answer(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I4: the rest of a body would be read as the next request."""
    numbers = iter(range(1, 9))
    heads: list[tuple[int, str]] = []

    def early(sock: socket.socket) -> None:
        number, talk = next(numbers), Talk(sock)
        while True:
            heads.append((number, Message(talk.until(END)).start.split()[1]))
            talk.send(ok(b"x"))

    served(stage, origin, tls, early)
    smuggled = get("/smuggled", "X-A: b")
    talk = stage.ask(head("POST", "/1", f"Content-Length: {len(smuggled)}"))
    assert talk.answer().one("connection") == "close"
    assert stage.ask(get("/2")).answer().body == b"x"
    assert heads == [(1, "/1"), (2, "/2")]


def test_what_an_idle_connection_says_is_no_answer(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I4: it would be taken for the answer to the next request."""
    speak, spoken = threading.Event(), threading.Event()
    numbers = iter(range(1, 9))

    def talkative(sock: socket.socket) -> None:
        number, talk = next(numbers), Talk(sock)
        talk.until(END)
        talk.send(ok(b"%d" % number))
        if number == 1:
            speak.wait(PATIENCE)
            talk.send(ok(b"poison"))
            spoken.set()
        talk.rest()

    server = served(stage, origin, tls, talkative)
    assert stage.ask(get("/1")).answer().body == b"1"
    speak.set()
    assert spoken.wait(PATIENCE)
    handle = stage.handle
    assert handle is not None
    pool = next(iter(handle._inspections.values()))
    while stage.rig.call(lambda: any(o.alive() for o in pool._idle["own"])):
        pass
    assert stage.ask(get("/2")).answer().body == b"2"
    assert server.connections == 2


def test_two_sandboxes_share_no_connection(
    stage: Stage, neighbour: Namespace, origin: Make, tls: ssl.SSLContext
) -> None:
    """I4, I5: neither the pool nor what is in it crosses from one door to another."""
    server = Service()
    made = served(stage, origin, tls, server)
    text = f'{OWN}\n[upstream.connect]\n"ok.example:443" = "{made.address}"\n'
    stage.rig.open(neighbour.door, text, stage.services)
    for _ in range(2):
        assert stage.ask(get("/here")).answer().status == 200
        plain = neighbour.connect("ok.example")
        with stage.client_context().wrap_socket(plain, server_hostname="ok.example") as there:
            talk = Talk(there)
            talk.send(get("/there"))
            assert talk.answer().status == 200
    by_path = {seen.start.split()[1]: set[int]() for seen in server.seen}
    for seen in server.seen:
        by_path[seen.start.split()[1]].add(seen.connection)
    assert len(by_path["/here"]) == len(by_path["/there"]) == 1
    assert not by_path["/here"] & by_path["/there"]


def test_only_so_many_connections_are_kept(
    stage: Stage, origin: Make, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(inspection, "MAX_IDLE_ORIGINS", 2)
    barrier = threading.Barrier(5)

    def answer(message: Message) -> bytes:
        if "/at-once" in message.start:
            barrier.wait(PATIENCE)
        return ok()

    server = Service(answer)
    served(stage, origin, tls, server)
    talks = [stage.ask(get("/at-once")) for _ in range(4)]
    barrier.wait(PATIENCE)
    assert [talk.answer().status for talk in talks] == [200] * 4
    handle = stage.handle
    assert handle is not None
    pool = next(iter(handle._inspections.values()))
    assert len(stage.rig.call(lambda: pool._idle["own"])) == 2
    # Idle for too long: closed.
    stage.rig.call(lambda: pool.sweep(stage.rig.loop.time() + inspection.IDLE_ORIGIN + 1))
    assert stage.rig.call(lambda: pool.take_idle("own")) is None
    assert stage.ask(get("/after")).answer().status == 200
    assert server.seen[-1].connection == 5


def test_the_door_takes_its_connections_with_it(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I2: what a closed door had open, in use or kept, is closed."""
    waiting = threading.Event()

    def answer(message: Message) -> bytes | None:
        if "/wait" in message.start:
            waiting.set()
            return b""
        return ok()

    server = served(stage, origin, tls, Service(answer))
    hanging = stage.ask(get("/wait"))
    assert waiting.wait(PATIENCE)
    assert stage.ask(get("/1")).answer().status == 200
    assert server.connections == 2
    handle = stage.handle
    assert handle is not None
    stage.rig.call(handle.close)
    hanging.cut()
    deadline = time.monotonic() + PATIENCE
    while server.open:
        assert time.monotonic() < deadline


# ── whom the credential is given to ───────────────────────────────────────────────────────────────


def server_context(issued: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    return context


def bad_context(case: str, authority: trustme.CA) -> ssl.SSLContext:
    match case:
        case "expired":
            yesterday = datetime.now(UTC) - timedelta(days=1)
            return server_context(authority.issue_cert("ok.example", not_after=yesterday))
        case "another name":
            return server_context(authority.issue_cert("other.example"))
        case "a common name alone":
            return server_context(authority.issue_cert("x.example", common_name="ok.example"))
        case _:
            return server_context(trustme.CA().issue_cert("ok.example"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("expired", "expired"),
        ("another name", "ok.example"),
        ("a common name alone", "ok.example"),
        ("another authority", "issuer"),
    ],
)
def test_an_origin_that_cannot_prove_its_name_gets_nothing(
    stage: Stage, authority: trustme.CA, origin: Make, case: str, words: str
) -> None:
    """I4: never a way around; the control is every other test here."""
    server = Service()
    stage.open(OWN, ok_example=origin(server, bad_context(case, authority)))
    answer = stage.ask(get("/a")).answer()
    body = json.loads(answer.body)
    assert answer.status == 502
    assert body["reason"] == "upstream-certificate"
    assert words in body["why"]
    assert not server.seen
    event = stage.watch.until("upstream-certificate", path="/a")
    assert event.rule == "services.own.allow[0]"
    assert sum("certificate" in line for line in stage.watch.lines) == 1


def test_an_origin_that_does_not_speak_tls_gets_nothing(stage: Stage, origin: Make) -> None:
    """I4."""
    got: list[bytes] = []

    def plain(sock: socket.socket) -> None:
        got.append(sock.recv(4096))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    stage.open(OWN, ok_example=origin(plain))
    answer = stage.ask(get("/a")).answer()
    assert answer.status == 502
    assert json.loads(answer.body)["reason"] == "upstream-tls"
    assert SECRET.encode() not in b"".join(got)


def test_an_origin_that_closes_in_the_handshake_is_a_502(stage: Stage, origin: Make) -> None:
    stage.open(OWN, ok_example=origin(lambda sock: None))
    answer = stage.ask(get("/a")).answer()
    assert (answer.status, json.loads(answer.body)["reason"]) == (502, "upstream-tls")


def test_an_origin_that_is_not_there_is_a_502(stage: Stage, tls: ssl.SSLContext) -> None:
    with serving(Service(), tls) as gone:
        pass
    stage.open(OWN, ok_example=gone)
    answer = stage.ask(get("/a")).answer()
    assert (answer.status, json.loads(answer.body)["reason"]) == (502, "upstream-unreachable")


def test_a_name_that_means_a_forbidden_address_is_refused(stage: Stage) -> None:
    """I4: what the resolver says is judged before it is dialled."""
    stage.rig.resolver.table["ok.example"] = [["169.254.169.254"]]
    stage.open(OWN)
    answer = stage.ask(get("/a")).answer()
    assert answer.status == 403
    assert json.loads(answer.body)["reason"] == "address-metadata"
    assert not stage.watch.until("address-metadata").verdict.value
    # The control: without an answer it is another refusal.
    stage.rig.resolver.table.clear()
    answer = stage.ask(get("/a")).answer()
    assert (answer.status, json.loads(answer.body)["reason"]) == (502, "name-unresolved")


# ── whom the client trusts ────────────────────────────────────────────────────────────────────────


def greet(stage: Stage, context: ssl.SSLContext) -> None:
    plain = stage.namespace.connect("ok.example")
    try:
        with context.wrap_socket(plain, server_hostname="ok.example") as client:
            client.sendall(get("/a"))
            assert client.recv(100)
    finally:
        plain.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_does_not_trust_the_session_is_told_of_once(
    stage: Stage, origin: Make, tls: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    server = served(stage, origin, tls, Service())
    distrusts = ssl.create_default_context(cadata=stage.authority.cert_pem.bytes().decode())
    distrusts.maximum_version = version
    for _ in range(3):
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(stage, distrusts)
        stage.watch.until("client-distrusts")
    lines = [line for line in stage.watch.lines if "does not trust" in line]
    assert len(lines) == 1
    assert "unsafe_passthrough" in lines[0]
    assert "SSL_CERT_FILE" in lines[0]
    assert server.connections == 0
    # The control: one that trusts is served, in this very version.
    trusts = stage.client_context()
    trusts.maximum_version = version
    greet(stage, trusts)
    assert server.connections == 1


def test_a_client_that_closes_behind_the_hello_is_taken_for_one_that_distrusts(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    served(stage, origin, tls, Service())
    plain = stage.namespace.connect("ok.example")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = stage.client_context().wrap_bio(incoming, outgoing, server_hostname="ok.example")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    plain.sendall(outgoing.read())
    assert plain.recv(16)
    plain.close()
    stage.watch.until("client-distrusts")


def test_a_client_with_which_there_is_no_common_tls_reads_why(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    served(stage, origin, tls, Service())
    old = stage.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("AES128-SHA256")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        greet(stage, old)
    stage.watch.until("client-tls")


def test_bytes_that_are_no_tls_are_turned_away(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I4: a request in the clear is never read on a port of TLS."""
    server = served(stage, origin, tls, Service())
    plain = stage.namespace.connect("ok.example")
    plain.sendall(get("/a"))
    assert plain.recv(100) == b""
    plain.close()
    stage.watch.until("not-tls")
    assert server.connections == 0


def test_a_forged_record_ends_the_connection(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service()
    served(stage, origin, tls, server)
    plain = stage.namespace.connect("ok.example")
    secure = stage.client_context().wrap_socket(plain, server_hostname="ok.example")
    talk = Talk(secure)
    talk.send(get("/1"))
    assert talk.answer().status == 200
    raw = socket.socket(fileno=secure.detach())
    raw.settimeout(PATIENCE)
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    with raw, contextlib.suppress(ConnectionResetError):
        while raw.recv(4096):
            pass
    assert len(server.seen) == 1
    assert stage.ask(get("/2")).answer().status == 200


def test_many_connections_at_once_get_their_own_answers(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service(lambda message: ok(message.start.encode()))
    served(stage, origin, tls, server)
    talks = [stage.visit() for _ in range(16)]
    for turn in range(5):
        for number, talk in enumerate(talks):
            talk.send(get(f"/{turn}/{number}"))
        for number, talk in enumerate(talks):
            assert talk.answer().body == f"GET /{turn}/{number} HTTP/1.1".encode()
