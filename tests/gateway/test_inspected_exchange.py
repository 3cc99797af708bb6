"""Requests and answers through the gateway: framing, order, and ends that are what they seem."""

from __future__ import annotations

import json
import queue
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway import arrival
from tests.gateway.origins import Handler, Service
from tests.gateway.stage import SECRET, Stage, service, serving, set_up
from tests.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

PATIENCE = 20.0
CHUNKED = "Transfer-Encoding: chunked"
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


class Play:
    """One open door; what is behind it is each test's own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.handler: Handler = Service()

    def __call__(self, sock: socket.socket) -> None:
        self.handler(sock)

    def serve(self, handler: Handler) -> None:
        """What the next connection to the origin meets; what was kept is closed."""
        self.handler = handler
        handle = self.stage.handle
        assert handle is not None
        self.stage.rig.call(lambda: [each.close() for each in handle._inspections.values()])


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """One door for all tests."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            stage.open(service("own", "ok.example", more='deny = ["* /no"]'), ok_example=server)
            yield made
            stage.close_talks()


# ── keep-alive and pipelining ─────────────────────────────────────────────────────────────────────


def test_a_connection_serves_many_requests_on_both_sides(play: Play) -> None:
    origin = Service(lambda message: ok(message.start.encode()))
    play.serve(origin)
    talk = play.stage.visit()
    for number in range(20):
        talk.send(get(f"/{number}"))
        assert talk.answer().body == f"GET /{number} HTTP/1.1".encode()
    assert {seen.connection for seen in origin.seen} == {1}


def test_pipelined_requests_are_answered_in_order_and_sent_on_one_by_one(play: Play) -> None:
    """I4: an answer can only be that of the request before it."""
    waiting: list[int] = []

    def answer(message: Message) -> bytes:
        waiting.append(len(origin.seen) - len(waiting))
        return ok(message.start.encode() + message.body)

    origin = Service(answer)
    play.serve(origin)
    post = head("POST", "/2", "Content-Length: 5") + b"hello"
    chunks = head("POST", "/4", CHUNKED) + b"5\r\nworld\r\n0\r\n\r\n"
    talk = play.stage.ask(get("/1"), post, get("/no"), chunks, head("HEAD", "/5"), get("/6"))
    assert talk.answer().body == b"GET /1 HTTP/1.1"
    assert talk.answer("POST").body == b"POST /2 HTTP/1.1hello"
    assert talk.answer().status == 403
    assert talk.answer("POST").body == b"POST /4 HTTP/1.1world"
    assert talk.answer("HEAD").one("content-length") == "16"
    assert talk.answer().body == b"GET /6 HTTP/1.1"
    assert waiting == [1] * 5


def test_the_last_request_of_a_connection_ends_it(play: Play) -> None:
    origin = Service()
    play.serve(origin)
    talk = play.stage.ask(get("/1", "Connection: close"), get("/2"))
    assert talk.answer().one("connection") == "close"
    assert talk.rest() == b""
    assert [seen.start for seen in origin.seen] == ["GET /1 HTTP/1.1"]
    assert origin.seen[0].one("connection") is None


def test_a_client_of_http_1_0_gets_what_it_understands(play: Play) -> None:
    for reply in (
        ok(b"hello"),
        HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    ):
        play.serve(Service(lambda _, reply=reply: reply))  # type: ignore[misc]
        talk = play.stage.ask(b"GET /a HTTP/1.0\r\nHost: ok.example\r\n\r\n")
        answer = Message(talk.until(END))
        assert answer.one("transfer-encoding") is None
        assert talk.rest() == b"hello"


def test_http_1_0_is_not_sent_an_interim_answer(play: Play) -> None:
    play.serve(Service(lambda _: b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(b"x")))
    talk = play.stage.ask(b"GET /a HTTP/1.0\r\nHost: ok.example\r\n\r\n")
    assert talk.answer().status == 200


# ── Expect and interim answers ────────────────────────────────────────────────────────────────────


def test_a_body_that_was_announced_is_asked_for_by_the_origin(play: Play) -> None:
    bodies: queue.Queue[bytes] = queue.Queue()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        assert Message(talk.until(END)).one("expect") == "100-continue"
        talk.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        bodies.put(talk.exactly(5))
        talk.send(ok(b"done"))

    play.serve(origin)
    talk = play.stage.ask(head("PUT", "/a", "Content-Length: 5", "Expect: 100-continue"))
    assert talk.answer().status == 100
    assert bodies.empty()
    talk.send(b"hello")
    assert talk.answer().body == b"done"
    assert bodies.get(timeout=PATIENCE) == b"hello"


def test_a_body_that_was_announced_can_be_refused_before_it_is_sent(play: Play) -> None:
    seen: list[bytes] = []

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        seen.append(talk.until(END))
        talk.send(ok(b"no", status=b"417 Expectation Failed"))
        seen.append(talk.rest())

    play.serve(origin)
    expects = ("Content-Length: 5", "Expect: 100-continue")
    talk = play.stage.ask(head("PUT", "/a", *expects))
    answer = talk.answer()
    assert (answer.status, answer.one("connection")) == (417, "close")
    assert talk.rest() == b""
    # Policy's refusal comes as early, and the origin hears nothing of it.
    talk = play.stage.ask(head("PUT", "/no", *expects))
    assert talk.answer().status == 403
    assert len(seen) <= 2


def test_interim_answers_are_passed_as_they_come(play: Play) -> None:
    go = threading.Event()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </%b>\r\n\r\n" % SECRET.encode()
        talk.send(b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", hints)
        go.wait(PATIENCE)
        talk.send(ok(b"done"))

    play.serve(origin)
    talk = play.stage.ask(get("/a"))
    assert talk.answer().status == 102
    hints = talk.answer()  # a 100 that nobody asked for is not passed
    assert hints.status == 103
    assert SECRET.encode() not in hints.head
    go.set()
    assert talk.answer().body == b"done"


def test_interim_answers_without_end_are_cut_off(play: Play) -> None:
    """I9."""
    play.serve(Service(lambda _: b"HTTP/1.1 102 Processing\r\n\r\n" * 40 + ok()))
    talk = play.stage.ask(get("/a"))
    assert talk.answer().status == 502


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "reply", "length"),
    [
        ("HEAD", HEAD_200 + b"Content-Length: 5\r\n\r\n", "5"),
        ("HEAD", HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n", None),
        ("HEAD", HEAD_200 + b"\r\n", None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "5"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", None),
    ],
)
def test_an_answer_without_a_body_has_none(
    play: Play, method: str, reply: bytes, length: str | None
) -> None:
    origin = Service(lambda message: reply if message.start.split()[1] == "/a" else ok(b"next"))
    play.serve(origin)
    talk = play.stage.ask(head(method, "/a"), get("/next"))
    assert talk.answer(method).one("content-length") == length
    assert talk.answer().body == b"next"
    assert origin.seen[0].connection == origin.seen[1].connection


def test_an_answer_that_ends_with_its_connection_becomes_chunks(play: Play) -> None:
    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(HEAD_200 + b"\r\n", b"hello ", b"world")
        talk.goodbye()

    play.serve(origin)
    talk = play.stage.ask(get("/a"))
    answer = talk.answer()
    assert answer.one("transfer-encoding") == "chunked"
    assert answer.body == b"hello world"
    # The client's connection goes on.
    play.serve(Service())
    talk.send(get("/b"))
    assert talk.answer().status == 200


def test_chunks_and_trailers_pass_both_ways(play: Play) -> None:
    reply = HEAD_200 + b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    reply += b"6\r\nhello \r\n5\r\nworld\r\n0\r\nX-Sum: 7\r\nX-%b: %b\r\nSet-Cookie: a=b\r\n\r\n"
    origin = Service(lambda _: reply % (b"Echo", SECRET.encode()))
    play.serve(origin)
    sent = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Check: 9\r\n\r\n"
    talk = play.stage.ask(head("POST", "/a", CHUNKED) + sent)
    answer = talk.answer("POST")
    assert answer.body == b"hello world"
    assert b"X-Sum: 7\r\n" in answer.trailers
    assert SECRET.encode() not in answer.trailers
    assert b"Cookie" not in answer.trailers
    assert origin.seen[0].body == b"abc0123456789"
    assert origin.seen[0].trailers == b"X-Check: 9\r\n"


def test_a_body_of_chunks_in_pieces_is_framed_anew(play: Play) -> None:
    origin = Service()
    play.serve(origin)
    sent = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Check: 9\r\n\r\n"
    talk = play.stage.ask(head("POST", "/a", CHUNKED))
    talk.send(*(sent[at : at + 1] for at in range(len(sent))))
    assert talk.answer("POST").status == 200
    assert origin.seen[0].body == b"abc0123456789"


def test_a_body_and_an_answer_flow_at_the_same_time(play: Play) -> None:
    """What the origin echoes comes back while the request is still being sent."""

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n")
        while piece := talk.chunk():
            talk.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        talk.until(b"\r\n")
        talk.send(b"0\r\n\r\n")

    play.serve(origin)
    talk = play.stage.ask(head("POST", "/a", CHUNKED))
    assert b"chunked" in talk.until(END)
    for word in (b"one \n", b"two \n", b"three\n"):
        talk.send(b"%x\r\n%b\r\n" % (len(word), word))
        assert talk.chunk() == word
    talk.send(b"0\r\n\r\n")
    assert talk.chunk() == b""


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


def test_a_bad_chunk_behind_the_beginning_of_an_answer_cuts_it(play: Play) -> None:
    """I4: a 400 in the midst of another answer would be read as a part of that one."""
    done = threading.Event()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(HEAD_200 + b"Content-Length: 1000\r\n\r\n" + b"x\n" * 50)
        done.wait(PATIENCE)

    play.serve(origin)
    talk = play.stage.ask(head("POST", "/a", CHUNKED))
    talk.until(END)
    assert talk.exactly(100) == b"x\n" * 50
    talk.send(b"zz\r\n")
    done.set()
    assert talk.cut() == b""


def test_a_slow_client_gets_all_of_the_last_answer(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to read our last words begins when they have left."""
    monkeypatch.setattr(arrival, "LINGER", 0.05)
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

WHOLE = {
    "a length": [HEAD_200 + b"Content-Length: 12\r\n\r\n", b"hello\n", b"world\n"],
    "chunks": [
        HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n",
        b"6\r\nworld\n\r\n0\r\n\r\n",
    ],
    "its end": [HEAD_200 + b"\r\nhello\n", b"world\n"],
}
CUT = {
    "in the body": [HEAD_200 + b"Content-Length: 12\r\n\r\n", b"hello\n"],
    "before the body": [HEAD_200 + b"Content-Length: 12\r\n\r\n"],
    "in a chunk": [HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n", b"6\r\nwo"],
    "between chunks": [HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n"],
    "before the trailers": [
        HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n", b"0\r\n"
    ],
    "without TLS's goodbye": [HEAD_200 + b"\r\nhello\n"],
}  # fmt: skip


def sender(pieces: list[bytes], *, goodbye: bool) -> Handler:
    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(*pieces)
        if goodbye:
            talk.goodbye()

    return handler


@pytest.mark.parametrize("how", WHOLE)
def test_a_whole_answer_is_whole(play: Play, how: str) -> None:
    """The control of the two below."""
    play.serve(sender(WHOLE[how], goodbye=True))
    assert play.stage.ask(get("/a")).answer().body == b"hello\nworld\n"


@pytest.mark.parametrize("goodbye", [False, True])
@pytest.mark.parametrize("where", CUT)
def test_an_answer_that_is_cut_off_looks_cut_off(play: Play, where: str, goodbye: bool) -> None:
    """A broken stream must not look like a finished one."""
    if where == "without TLS's goodbye" and goodbye:
        return
    play.serve(sender(CUT[where], goodbye=goodbye))
    stage = play.stage
    before = stage.watch.reasons("request").count("upstream-closed")
    talk = stage.ask(get("/a"))
    talk.until(END)
    talk.cut()
    assert stage.watch.reasons("request").count("upstream-closed") == before + 1


def test_an_origin_that_says_nothing_is_a_502(play: Play) -> None:
    play.serve(sender([], goodbye=False))
    answer = play.stage.ask(get("/a")).answer()
    assert answer.status == 502
    assert json.loads(answer.body)["reason"] == "upstream-closed"
    talk = play.stage.ask(head("HEAD", "/a"))
    assert talk.answer("HEAD").status == 502
    assert talk.rest() == b""


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\n\r\n",
        HEAD_200 + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        HEAD_200 + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD_200 + b"Content-Length: +5\r\n\r\nhello",
        HEAD_200 + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD_200 + b"X-A: b\0\r\n\r\n",
        HEAD_200 + b"X-A: b\r\n c\r\n\r\n",
        HEAD_200 + b"X-A: b\nX-B: c\r\n\r\n",
        HEAD_200 + b"X: y\r\n" * 200 + b"\r\n",
        HEAD_200 + b"X: " + b"y" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_an_answer_that_can_be_read_in_two_ways_is_a_502(play: Play, reply: bytes) -> None:
    """I4: an answer must not become two on the way."""
    play.serve(Service(lambda _: reply))
    answer = play.stage.ask(get("/a")).answer()
    assert answer.status == 502
    assert json.loads(answer.body)["reason"] == "upstream-malformed"


@pytest.mark.parametrize("size", [b"zz", b"0x5", b"5;a=b", b" 5"])
def test_a_bad_chunk_cuts_the_answer(play: Play, size: bytes) -> None:
    start = HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n"
    play.serve(Service(lambda _: start + size + b"\r\nhello\r\n0\r\n\r\n"))
    assert b"hello" not in play.stage.ask(get("/a")).cut().partition(b"hello\n")[2]


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


def test_an_event_in_two_pieces_is_held_no_longer_than_it_must_be(play: Play) -> None:
    """Of a run of token bytes that is not over, as much waits as a secret could have (I7)."""
    go: queue.Queue[bytes] = queue.Queue()

    def origin(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n")
        while piece := go.get(timeout=PATIENCE):
            talk.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        talk.send(b"0\r\n\r\n")

    play.serve(origin)
    talk = play.stage.ask(get("/events"))
    talk.until(END)
    go.put(b"data: abc")
    assert talk.chunk() == b"data: "
    go.put(b"def\n\n")
    assert talk.chunk() == b"abcdef\n\n"
    go.put(b"")
    assert talk.chunk() == b""
