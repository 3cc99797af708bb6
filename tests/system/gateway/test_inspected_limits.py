"""What a sandbox can have an intercepting gateway keep, copy or do is bounded (I9)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.http import connection, patience
from keyhole.gateway.http.connection import ClientConnection
from keyhole.gateway.http.http1 import Http1Connection
from keyhole.gateway.http.stream import Stream
from keyhole.gateway.tls import SEND_AT_ONCE, WRITE_BUFFER
from keyhole.gateway.upstream.origin import OriginConnection
from keyhole.model.decision import Reason, Verdict
from keyhole.system.resolver import unresolved
from tests.rigs.gateway.memory import Peak
from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.stage import AMPLE, Serve, Stage, service
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from keyhole.gateway.door.handle import DoorHandle
    from keyhole.model.decision import Address
    from keyhole.model.host import Host

Make = Callable[..., Origin]
PATIENCE = 20.0
MIB = 2**20
CHUNKED = "Transfer-Encoding: chunked"


def open_count(stage: Stage) -> int:
    handle = stage.handle
    assert handle is not None
    return stage.rig.call(lambda: len(handle._connections))


# ── counted ───────────────────────────────────────────────────────────────────────────────────────


def test_a_kept_connection_carries_nothing_while_nothing_can_be_written_down(
    stage: Stage, served: Serve
) -> None:
    """I8: who fills the disk that the log is on must not go on unseen over what is open."""
    server = Service()
    served(server)
    talk = stage.ask(get("/before"))
    assert talk.answer().status == 200
    stage.watch.admitting = False
    talk.send(get("/meanwhile"))
    refused = talk.answer()
    body = json.loads(refused.body)
    assert (refused.status, body["reason"], body["retry"]) == (503, "not-admitting", True)
    stage.watch.admitting = True
    talk.send(get("/after"))
    assert talk.answer().status == 200
    assert [message.start.split()[1] for message in server.seen] == ["/before", "/after"]


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


def sweep(stage: Stage, later: float, idle: float = 900.0) -> None:
    handle = stage.handle
    assert handle is not None
    stage.rig.call(lambda: handle.sweep(stage.rig.loop.time() + later, idle))


def test_a_silent_hello_and_a_silent_handshake_are_cut(stage: Stage, served: Serve) -> None:
    served(Service())
    silent = stage.namespace.connect("ok.example")
    until(lambda: open_count(stage) == 1)
    half = stage.namespace.connect("ok.example")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls_client = stage.client_context().wrap_bio(incoming, outgoing, server_hostname="ok.example")
    with pytest.raises(ssl.SSLWantReadError):
        tls_client.do_handshake()
    half.sendall(outgoing.read())
    assert half.recv(1)
    sweep(stage, connection.HELLO_TIMEOUT - 1)
    assert open_count(stage) == 2
    sweep(stage, connection.HELLO_TIMEOUT + 1)
    assert open_count(stage) == 0
    until(lambda: stage.watch.reasons("connect").count("client-silent") == 2)
    silent.close()
    half.close()


def test_a_head_that_trickles_is_cut_and_a_pause_between_requests_is_not(
    stage: Stage, served: Serve
) -> None:
    served(Service())
    resting, slow = stage.ask(get("/a")), stage.ask(get("/a"))
    assert resting.answer().status == slow.answer().status == 200
    slow.send(b"GET /slow HTTP/1.1\r\n")
    handle = stage.handle
    assert handle is not None
    until(lambda: stage.rig.call(lambda: any(each.machine.held for each in in_service(handle))))
    sweep(stage, patience.HEAD_TIMEOUT + 1)
    slow.cut()
    resting.send(get("/b"))
    assert resting.answer().status == 200
    sweep(stage, patience.KEEP_ALIVE + 1)
    resting.cut()


def in_service(handle: DoorHandle) -> list[Http1Connection]:
    """The connections that serve requests."""
    return [each.http for each in handle._connections if isinstance(each.http, Http1Connection)]


def waiting_for(stage: Stage) -> list[str]:
    """Whom the open connections wait for."""
    handle = stage.handle
    assert handle is not None
    return stage.rig.call(lambda: [patience.waits_for(each)[0] for each in in_service(handle)])


def test_a_body_that_trickles_in_is_cut_and_one_that_flows_is_not(
    stage: Stage, served: Serve
) -> None:
    """Attack: hold every place with a byte now and then, which no limit on silence ends."""
    server = Service()
    served(server, f'{AMPLE}\nbody_time = "1m"')
    size = 200_000
    slow, fast = (stage.ask(head("POST", p, f"Content-Length: {size}")) for p in ("/slow", "/fast"))
    until(lambda: waiting_for(stage) == [Reason.CLIENT_SLOW] * 2)
    sweep(stage, 0)
    slow.send(b"x")
    fast.send(bytes(size - 1))
    handle = stage.handle
    assert handle is not None
    until(lambda: sum(each.up for each in in_service(handle)) > size)
    sweep(stage, 50)
    assert open_count(stage) == 2
    sweep(stage, 61)
    slow.cut()
    assert stage.watch.until("client-slow", path="/slow")
    assert stage.watch.until("closed", end="client-slow")
    fast.send(b"x")
    assert fast.answer().status == 200


def test_an_answer_that_is_not_taken_is_cut_and_one_that_is_awaited_is_not(
    stage: Stage, served: Serve
) -> None:
    """The other way round: whoever reads a byte now and then holds the origin's connection, too."""

    def answer(message: Message) -> bytes:
        return b"" if "/think" in message.start else ok(bytes(32 * MIB))

    server = Service(answer)
    served(server, f'{BIG}\nbody_time = "1m"')
    thinking = stage.ask(post_of(1000, "/think"))
    until(lambda: len(server.seen) == 1)
    reader = stage.ask(get("/bulk"))
    until(lambda: sorted(waiting_for(stage)) == ["", Reason.CLIENT_SLOW])
    sweep(stage, 0)
    assert reader.sock.recv(1)
    sweep(stage, 61)
    reader.cut()
    assert stage.watch.until("closed", end="client-slow")
    assert open_count(stage) == 1
    thinking.close()


def test_an_origin_that_does_not_take_a_body_fails_the_request(stage: Stage, served: Serve) -> None:
    go = threading.Event()

    def handler(sock: socket.socket) -> None:
        go.wait(PATIENCE)

    served(handler, f'{BIG}\nbody_time = "1m"')
    talk = stage.ask(head("POST", "/up", f"Content-Length: {BULK}"))
    sent_until_blocked(talk.sock, BLOCK)
    until(lambda: waiting_for(stage) == [Reason.UPSTREAM_SLOW])
    sweep(stage, 0)
    sweep(stage, 61)
    failed = stage.watch.until("upstream-slow", path="/up")
    assert failed.verdict is Verdict.ALLOW
    go.set()


def post_of(size: int, path: str) -> bytes:
    return head("POST", path, f"Content-Length: {size}") + bytes(size)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────

BULK = 256 * MIB
FLAT = 16 * MIB
BIG = f'{AMPLE}body = "4GiB"\nupload = "8GiB"\ndownload = "8GiB"'
BLOCK = hashlib.sha256(b"x").hexdigest().encode() * 4096  # 256 KiB of token bytes


def send_bulk(sock: socket.socket, size: int) -> None:
    for _ in range(size // len(BLOCK)):
        sock.sendall(BLOCK)


def take_bulk(sock: socket.socket, buffer: memoryview) -> int:
    total = 0
    while count := sock.recv_into(buffer):
        total += count
    return total


def test_a_big_answer_and_a_big_body_pass_in_little_memory(stage: Stage, served: Serve) -> None:
    """256 MiB each way; the client and the origin of the test keep a block each."""
    taken: list[int] = []

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        request = Message(talk.until(END))
        if request.start.startswith("GET"):
            talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BULK)
            send_bulk(sock, BULK)
            return
        total, buffer = len(talk.more()) if talk._buffer else 0, memoryview(bytearray(len(BLOCK)))
        while total < BULK:
            total += sock.recv_into(buffer)
        taken.append(total)
        talk.send(ok(b"thanks", b"Connection: close"))

    served(handler, BIG)
    down = stage.ask(get("/down", "Connection: close"))
    peak = Peak()
    down.until(END)
    got = len(down.more()) if down._buffer else 0
    got += take_bulk(down.sock, memoryview(bytearray(len(BLOCK))))
    assert got == BULK
    assert peak.grown < FLAT
    up = stage.ask(head("POST", "/up", f"Content-Length: {BULK}"))
    send_bulk(up.sock, BULK)
    assert up.answer().body == b"thanks"
    assert taken == [BULK]
    assert peak.grown < FLAT


@pytest.mark.parametrize("size", [20_000, 32_768, 100_000, 4_000_000])
def test_what_is_encrypted_at_once_is_bounded_in_whatever_chunks_it_comes(
    stage: Stage, served: Serve, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """OpenSSL's buffers grow with what they are given at once, and stay so for each connection.
    Control: the answer is the origin's, and more comes in a turn than is encrypted at once."""
    written: list[int] = []
    write = ssl.SSLObject.write

    def noted(side: ssl.SSLObject, data: bytes) -> int:
        written.append(len(data))
        return write(side, data)

    monkeypatch.setattr(ssl.SSLObject, "write", noted)
    chunk = b"%x\r\n%b\r\n" % (size, os.urandom(size))
    count = 4 * MIB // size

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % CHUNKED.encode())
        talk.send(chunk * count, b"0\r\n\r\n")

    served(handler, BIG)
    answer = stage.ask(get("/a")).answer()
    assert answer.body == chunk[-size - 2 : -2] * count
    assert max(written) <= SEND_AT_ONCE


def sent_until_blocked(sock: socket.socket, data: bytes) -> int:
    """Send without end; how much was taken before nothing more was for a while."""
    sock.settimeout(2.0)  # the gateway may chew on a large read for half a second
    total = 0
    with contextlib.suppress(TimeoutError, ssl.SSLError, ConnectionError):
        while total < 512 * MIB:
            total += sock.send(data)
    sock.settimeout(PATIENCE)
    return total


def test_an_origin_waits_for_a_slow_client(stage: Stage, served: Serve) -> None:
    taken: list[int] = []

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
        taken.append(sent_until_blocked(sock, BLOCK))

    served(handler, BIG)
    talk = stage.ask(get("/a"))
    peak = Peak()
    until(lambda: bool(taken))
    assert taken[0] < 64 * MIB  # what kernels buffer
    assert peak.grown < FLAT
    talk.close()


def test_a_client_waits_for_a_slow_origin(stage: Stage, served: Serve) -> None:
    go = threading.Event()

    def handler(sock: socket.socket) -> None:
        go.wait(PATIENCE)

    served(handler, BIG)
    talk = stage.ask(head("POST", "/a", f"Content-Length: {BULK}"))
    peak = Peak()
    assert sent_until_blocked(talk.sock, BLOCK) < 64 * MIB
    assert peak.grown < FLAT
    go.set()
    talk.close()


def unread(stage: Stage) -> int:
    """Bytes that wait for clients which are no longer read from."""
    handle = stage.handle
    channels = [each.channel for each in handle._connections] if handle else []
    return sum(each.unsent for each in channels if each._paused)


@pytest.mark.parametrize("path", ["/no", "/limited"])
def test_a_client_that_asks_and_does_not_read_is_not_listened_to(
    stage: Stage, served: Serve, path: str
) -> None:
    """Refusals are longer than requests: they must not pile up for who does not take them."""
    limits = "requests_per_second = 1" if path == "/limited" else BIG
    served(Service(), limits)
    talk = stage.visit()
    # Its receive buffer is left alone: where a window shrinks under way, the kernel takes our
    # acknowledgements for stray ones, and the client's own sending stands still.
    peak = Peak()
    taken = sent_until_blocked(talk.sock, get(path) * 100)
    assert taken < 64 * MIB
    until(lambda: stage.rig.call(lambda: unread(stage)) > 0)
    assert stage.rig.call(lambda: unread(stage)) < 2 * WRITE_BUFFER
    assert peak.grown < FLAT + 16 * MIB  # each refusal is written down, here in memory
    # The control: once it reads, it is answered to the end.
    first = talk.answer()
    assert first.status in (403, 200, 429)
    for _ in range(1000):
        assert talk.answer().status in (403, 429)
    stage.watch.events.clear()


# ── nothing is left ───────────────────────────────────────────────────────────────────────────────


def leftovers() -> list[object]:
    kinds = (ClientConnection, Stream, OriginConnection)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


def test_nothing_is_left_of_many_connections(stage: Stage, served: Serve) -> None:
    """Cycles of protocol, transport and TLS would wait for the collector: here it is off."""
    replies = {
        "/ok": ok(b"x", b"Connection: close"),
        "/cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
        "/bad": b"nonsense\r\n\r\n",
        "/gzip": ok(b"x", b"Content-Encoding: gzip"),
        "/none": None,
    }

    def answer(message: Message) -> bytes | None:
        return replies[message.start.split()[1]]

    class Closing(Service):
        def __call__(self, sock: socket.socket) -> None:
            message = Talk(sock).request()
            reply = answer(message) if message is not None else None
            if reply is not None:
                sock.sendall(reply)

    server = served(Closing())

    def round_trip() -> None:
        for path in (*replies, "/no", "/x y"):
            talk = stage.ask(get(path, "Connection: close"))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while talk.sock.recv(65536):
                    pass
            talk.close()
        left = stage.ask(get("/ok")[:-2])
        left.close()
        stage._talks.clear()

    def settled() -> int:
        until(lambda: not server.open and not leftovers())
        tasks = asyncio.run_coroutine_threadsafe(all_tasks(), stage.rig.loop).result(PATIENCE)
        assert tasks == 1
        return len(os.listdir("/proc/self/fd"))

    async def all_tasks() -> int:
        return len(asyncio.all_tasks())

    round_trip()
    gc.collect()
    gc.disable()
    try:
        before = settled()
        for _ in range(8):
            round_trip()
        assert settled() == before
    finally:
        gc.enable()


class StuckResolver:
    """Never answers; counts who waits and who was let go."""

    def __init__(self) -> None:
        self.waiting = 0
        self.asked: list[str] = []
        self.table: dict[str, list[list[str]]] = {}

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
        raise unresolved("never")


def gone(stage: Stage) -> None:
    """The connection and all its work have ended, and nothing was raised."""
    until(lambda: open_count(stage) == 0)
    count = asyncio.run_coroutine_threadsafe(tasks_left(), stage.rig.loop).result(PATIENCE)
    assert count == 0


async def tasks_left() -> int:
    for _ in range(5):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks()) - 1


def test_a_client_that_leaves_while_the_name_is_resolved_takes_the_work_with_it(
    stage: Stage,
) -> None:
    stuck = StuckResolver()
    stage.rig.gateway._shared.upstream._resolver = stuck
    stage.open(service("own", "ok.example"))
    talk = stage.ask(get("/a"))
    until(lambda: stuck.waiting == 1)
    talk.close()
    gone(stage)
    assert stuck.waiting == 0
    assert stage.watch.until("client-left", path="/a")


@pytest.mark.parametrize("leaves", ["closes", "resets"])
@pytest.mark.parametrize("at", ["handshake", "answer", "body", "upload"])
def test_a_client_that_leaves_at_any_moment_takes_the_origins_end_with_it(
    stage: Stage, origin: Make, tls: ssl.SSLContext, at: str, leaves: str
) -> None:
    reached, ended = threading.Event(), threading.Event()

    def handler(sock: socket.socket) -> None:
        if at == "handshake":
            sock.recv(1)
            reached.set()
        else:
            talk = Talk(sock)
            talk.until(END)
            if at == "body":
                talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            reached.set()
        with contextlib.suppress(OSError):
            while sock.recv(65536):
                pass
        ended.set()

    server = origin(handler, None if at == "handshake" else tls)
    stage.open(service("own", "ok.example"), ok_example=server)
    talk = stage.ask(head("POST", "/a", "Content-Length: 9") if at == "upload" else get("/a"))
    assert reached.wait(PATIENCE)
    if leaves == "resets":
        talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    talk.close()
    gone(stage)
    assert ended.wait(PATIENCE)


def test_a_dial_that_ends_when_the_client_has_just_left_is_not_kept(
    stage: Stage, served: Serve
) -> None:
    """Both in one turn of the loop: the connection to the origin has no owner then."""
    server = served(Service())
    made: list[OriginConnection] = []
    handle = stage.handle
    assert handle is not None
    secured = OriginConnection.secured

    def secured_and_left(self: OriginConnection) -> None:
        made.append(self)
        secured(self)
        for each in list(handle._connections):
            each.cut(Reason.CLIENT_LEFT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OriginConnection, "secured", secured_and_left)
        stage.ask(get("/a")).cut()
        gone(stage)
    until(lambda: not server.open)
    assert len(made) == 1
    assert not made[0].is_free()
    assert stage.ask(get("/b")).answer().status == 200


def test_a_fault_of_ours_ends_one_connection_and_is_told(
    stage: Stage, served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(Service())

    async def faulty(*args: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(connection, "reach", faulty)
    stage.ask(get("/a")).cut()
    gone(stage)
    assert len(stage.rig.faults) == 1
    stage.rig.faults.clear()
    monkeypatch.undo()
    assert stage.ask(get("/a")).answer().status == 200
