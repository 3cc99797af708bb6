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

from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.stage import SECRET, Serve, Stage, service, serving
from tests.rigs.gateway.talk import END, Message, Talk, get, ok

if TYPE_CHECKING:
    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]
PATIENCE = 20.0
OWN = service("own", "ok.example")


# ── kept connections ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("line", "kept"), [(b"X-A: b", True), (b"Connection: close", False)])
def test_a_connection_is_kept_only_after_an_answer_that_leaves_no_doubt(
    stage: Stage, served: Serve, line: bytes, kept: bool
) -> None:
    """I4: more doubts are in unit/gateway/upstream/test_pool.py."""
    server = Service(lambda _: ok(b"x", line))
    served(server)
    talk = stage.ask(get("/1"), get("/2"))
    assert [talk.answer().body for _ in range(2)] == [b"x", b"x"]
    assert (server.seen[0].connection == server.seen[1].connection) is kept


def test_what_an_idle_connection_says_is_no_answer(stage: Stage, served: Serve) -> None:
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

    server = served(talkative)
    assert stage.ask(get("/1")).answer().body == b"1"
    speak.set()
    assert spoken.wait(PATIENCE)
    handle = stage.handle
    assert handle is not None
    pool = next(iter(handle._hosts.values())).pool
    while stage.rig.call(lambda: any(o.is_free() for o in pool._idle["own"])):
        pass
    assert stage.ask(get("/2")).answer().body == b"2"
    assert server.connections == 2


def test_two_sandboxes_share_no_connection(
    stage: Stage, neighbour: Namespace, served: Serve
) -> None:
    """I4, I5: neither the pool nor what is in it crosses from one door to another."""
    server = Service()
    made = served(server)
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


def test_the_door_takes_its_connections_with_it(stage: Stage, served: Serve) -> None:
    """I2: what a closed door had open, in use or kept, is closed."""
    waiting = threading.Event()

    def answer(message: Message) -> bytes | None:
        if "/wait" in message.start:
            waiting.set()
            return b""
        return ok()

    server = served(Service(answer))
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
    stage: Stage, served: Serve, version: ssl.TLSVersion
) -> None:
    server = served(Service())
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
    stage: Stage, served: Serve
) -> None:
    served(Service())
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
    stage: Stage, origin: Make, tls: ssl.SSLContext, served: Serve
) -> None:
    served(Service())
    old = stage.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("AES128-SHA256")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        greet(stage, old)
    stage.watch.until("client-tls")


def test_bytes_that_are_no_tls_are_turned_away(
    stage: Stage, origin: Make, tls: ssl.SSLContext, served: Serve
) -> None:
    """I4: a request in the clear is never read on a port of TLS."""
    server = served(Service())
    plain = stage.namespace.connect("ok.example")
    plain.sendall(get("/a"))
    assert plain.recv(100) == b""
    plain.close()
    stage.watch.until("not-tls")
    assert server.connections == 0


def test_a_forged_record_ends_the_connection(stage: Stage, served: Serve) -> None:
    server = Service()
    served(server)
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


def test_many_connections_at_once_get_their_own_answers(stage: Stage, served: Serve) -> None:
    server = Service(lambda message: ok(message.start.encode()))
    served(server)
    talks = [stage.visit() for _ in range(16)]
    for turn in range(5):
        for number, talk in enumerate(talks):
            talk.send(get(f"/{turn}/{number}"))
        for number, talk in enumerate(talks):
            assert talk.answer().body == f"GET /{turn}/{number} HTTP/1.1".encode()
