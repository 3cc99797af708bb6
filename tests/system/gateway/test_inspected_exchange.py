"""Requests and answers through the gateway: framing, order, and ends that are what they seem."""

from __future__ import annotations

import json
import queue
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.http import connection
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import Play, service, serving, set_up
from tests.rigs.gateway.talk import END, Talk, get, head, ok

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

PATIENCE = 20.0
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """One door for all tests."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            stage.open(service("own", "ok.example", more='deny = ["* /no"]'), ok_example=server)
            yield made
            stage.close_talks()


# ── early answers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("drains", [True, False])
def test_an_answer_that_comes_before_the_body_is_there_can_be_read(
    play: Play, drains: bool
) -> None:
    """The gateway goes on reading for a while: a plain close would lose the answer."""

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(ok(b"too much", b"Connection: close", status=b"413 Content Too Large"))
        if drains:
            talk.rest()

    play.serve(origin)
    size, block = 4 * 2**20, bytes(64 * 1024)
    path = f"/early-{drains}"
    talk = play.stage.ask(head("POST", path, f"Content-Length: {size}"))
    for _ in range(size // len(block) - 1):
        talk.send(block)
    play.stage.watch.until("rule", path=path, status=413)
    talk.send(block)
    answer = talk.answer("POST")
    assert (answer.status, answer.body) == (413, b"too much")
    assert answer.one("connection") == "close"
    assert talk.rest() == b""


def test_a_refusal_before_the_body_is_there_can_be_read(play: Play) -> None:
    size = 2 * 2**20
    talk = play.stage.ask(head("POST", "/no", f"Content-Length: {size}"))
    talk.send(*[bytes(64 * 1024)] * (size // (64 * 1024)))
    assert talk.answer("POST").status == 403
    assert talk.rest() == b""


def test_a_slow_client_gets_all_of_the_last_answer(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to read our last words begins when they have left."""
    monkeypatch.setattr(connection, "LINGER", 0.05)
    body = b"x\n" * (2**20)
    play.serve(Service(lambda _: ok(body)))
    stage = play.stage
    talk = stage.ask(get("/slow", "Connection: close"))
    stage.watch.until("rule", path="/slow")
    passed = threading.Event()
    stage.rig.call(lambda: stage.rig.loop.call_later(0.3, passed.set))
    assert passed.wait(PATIENCE)
    assert talk.answer().body == body
    assert talk.rest() == b""


# ── origins that fail ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("goodbye", [True, False])
def test_an_answer_ends_with_its_connection_by_tls_s_goodbye_alone(
    play: Play, goodbye: bool
) -> None:
    """A broken stream must not look like a finished one; more ways to break are in unit/gateway."""

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(HEAD_200 + b"\r\nhello\n")
        if goodbye:
            talk.goodbye()

    play.serve(origin)
    talk = play.stage.ask(get("/a"))
    if goodbye:
        assert talk.answer().body == b"hello\n"
    else:
        talk.until(END)
        talk.cut()
        play.stage.watch.until("upstream-closed")


@pytest.mark.parametrize(
    "lengths", [b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: +5"]
)
def test_an_answer_that_can_be_read_in_two_ways_is_a_502(play: Play, lengths: bytes) -> None:
    """I4: an answer must not become two on the way; more ways are in unit/gateway."""
    answer = play.answer(HEAD_200 + lengths + b"\r\n\r\nhello").answer()
    assert answer.status == 502
    assert json.loads(answer.body)["reason"] == "upstream-malformed"


# ── as it comes ───────────────────────────────────────────────────────────────────────────────────


def test_events_leave_as_they_arrive(play: Play) -> None:
    """Each event is read before the origin is told to send the next: nothing waits for more."""
    go: queue.Queue[bytes] = queue.Queue()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        fields = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        talk.send(HEAD_200 + fields)
        while event := go.get(timeout=PATIENCE):
            talk.send(b"%x\r\n%b\r\n" % (len(event), event))
        talk.send(b"0\r\n\r\n")

    play.serve(origin)
    talk = play.stage.ask(get("/events"))
    talk.until(END)
    for number in range(50):
        event = b'data: {"delta": "word %d"}\n\n' % number
        go.put(event)
        assert talk.chunk() == event
    go.put(b"")
    assert talk.chunk() == b""
