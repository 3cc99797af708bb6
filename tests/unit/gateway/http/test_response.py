"""What a client gets of an origin's answer: whole, framed anew, as it comes, or plainly cut."""

from __future__ import annotations

import json

import pytest

from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.stage import SECRET, service
from tests.rigs.gateway.talk import get, head, ok

HEAD_200 = b"HTTP/1.1 200 OK\r\n"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = CHUNKS + b"6\r\nhello\n\r\n"
LENGTH = HEAD_200 + b"Content-Length: 12\r\n\r\n"
OLD = b"GET /a HTTP/1.0\r\nHost: ok.example\r\n\r\n"


def asked(request: bytes = get("/a")) -> Conversation:
    """A conversation in which the origin has got this request."""
    talk = Conversation(service("own", "ok.example", more='deny = ["* /no"]'))
    assert talk.asks(request)
    return talk


@pytest.mark.parametrize("reply", [ok(b"hello"), CHUNKS + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"])
def test_a_client_of_http_1_0_gets_what_it_understands(reply: bytes) -> None:
    talk = asked(OLD)
    answer = talk.told(b"HTTP/1.1 103 Early Hints\r\n\r\n" + reply)
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.one("transfer-encoding") is None
    assert talk.client.ended == "parted"


def test_the_last_request_of_a_connection_ends_it() -> None:
    talk = Conversation()
    assert b"Connection" not in talk.asks(get("/1", "Connection: close"), get("/2"))
    assert talk.told(ok()).one("connection") == "close"
    assert (talk.client.ended, talk.origin.heard()) == ("parted", b"")


def test_interim_answers_are_passed_as_they_come() -> None:
    talk = asked()
    assert talk.told(b"HTTP/1.1 102 Processing\r\n\r\n").status == 102
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </%b>\r\n\r\n" % SECRET.encode()
    answer = talk.told(b"HTTP/1.1 100 Continue\r\n\r\n", hints)  # a 100 that nobody asked for
    assert (answer.status, SECRET.encode() in answer.head) == (103, False)
    assert talk.told(ok(b"done")).body == b"done"


def test_interim_answers_without_end_are_cut_off() -> None:
    """I9."""
    assert asked().told(b"HTTP/1.1 100 Continue\r\n\r\n" * 40 + ok()).status == 502


@pytest.mark.parametrize(
    ("method", "reply", "length"),
    [
        ("HEAD", HEAD_200 + b"Content-Length: 5\r\n\r\n", "5"),
        ("HEAD", CHUNKS, None),
        ("HEAD", HEAD_200 + b"\r\n", None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "5"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", None),
    ],
)
def test_an_answer_without_a_body_has_none(method: str, reply: bytes, length: str | None) -> None:
    talk = asked(head(method, "/a"))
    assert talk.told(reply, method=method).one("content-length") == length
    talk.asks(get("/next"))
    assert talk.told(ok(b"next")).body == b"next"
    assert len(talk.origins) == 1


def test_chunks_and_trailers_pass_both_ways() -> None:
    talk = Conversation()
    sent = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Check: 9\r\n\r\n"
    request = head("POST", "/a", CHUNKED) + sent
    heard = talk.asks(*(request[at : at + 1] for at in range(len(request))))
    assert heard.endswith(b"0\r\nX-Check: 9\r\n\r\n")
    reply = b"6\r\nhello \r\n5\r\nworld\r\n0\r\nX-Sum: 7\r\nX-Echo: %b\r\nSet-Cookie: a=b\r\n\r\n"
    answer = talk.told(CHUNKS + reply % SECRET.encode())
    assert answer.body == b"hello world"
    assert b"X-Sum: 7\r\n" in answer.trailers
    assert SECRET.encode() not in answer.trailers
    assert b"Cookie" not in answer.trailers


def test_a_body_and_an_answer_flow_at_the_same_time() -> None:
    talk = asked(head("POST", "/a", CHUNKED))
    talk.origin.says(CHUNKS)
    talk.client.heard()
    for word in (b"one \n", b"two \n", b"three\n"):
        piece = b"%x\r\n%b\r\n" % (len(word), word)
        assert talk.asks(piece) == piece
        talk.origin.says(piece)
        assert talk.client.heard() == piece
    assert talk.asks(b"0\r\n\r\n") == b"0\r\n\r\n"


def test_an_announced_body_is_asked_for_or_refused_by_the_origin() -> None:
    put = head("PUT", "/a", "Content-Length: 5", "Expect: 100-continue")
    talk = asked(put)
    assert talk.told(b"HTTP/1.1 100 Continue\r\n\r\n").status == 100
    assert talk.asks(b"hello") == b"hello"
    assert talk.told(ok(b"done")).body == b"done"
    talk = asked(put)
    answer = talk.told(ok(b"no", status=b"417 Expectation Failed"))
    assert (answer.status, answer.one("connection")) == (417, "close")
    assert talk.client.ended == "parted"
    # Policy's refusal comes as early, and the origin hears nothing of it.
    talk = Conversation(service("own", "ok.example", allow="GET /**"))
    assert (talk.asks(put), talk.answer().status) == (b"", 403)


def test_a_bad_chunk_behind_the_beginning_of_an_answer_cuts_it() -> None:
    """I4: a 400 in the midst of another answer would be read as a part of that one."""
    talk = asked(head("POST", "/a", CHUNKED))
    talk.origin.says(HEAD_200 + b"Content-Length: 1000\r\n\r\n" + b"x\n" * 50)
    assert talk.client.heard().endswith(b"x\n" * 50)
    talk.client.says(b"zz\r\n")
    assert (talk.client.heard(), talk.client.ended) == (b"", "aborted")


# ── answers that end, and that do not ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "pieces",
    [
        [LENGTH, b"hello\n", b"world\n"],
        [CHUNK, b"6\r\nworld\n\r\n0\r\n\r\n"],
        [HEAD_200 + b"\r\nhello\n", b"world\n"],
    ],
    ids=["a length", "chunks", "its end"],
)
def test_a_whole_answer_is_whole(pieces: list[bytes]) -> None:
    """The control of the two below. One without a length becomes chunks, and the client stays."""
    talk = asked()
    talk.origin.says(*pieces)
    talk.origin.ends(properly=True)
    assert talk.answer().body == b"hello\nworld\n"
    assert talk.asks(get("/b")).startswith(b"GET /b ")


CUT = {
    "in the body": [LENGTH, b"hello\n"],
    "before the body": [LENGTH],
    "in a chunk": [CHUNK, b"6\r\nwo"],
    "between chunks": [CHUNK],
    "before the trailers": [CHUNK, b"0\r\n"],
    "without TLS's goodbye": [HEAD_200 + b"\r\nhello\n"],
}


@pytest.mark.parametrize("goodbye", [False, True])
@pytest.mark.parametrize("where", CUT)
def test_an_answer_that_is_cut_off_looks_cut_off(where: str, goodbye: bool) -> None:
    """A broken stream must not look like a finished one."""
    talk = asked()
    talk.origin.says(*CUT[where])
    talk.origin.ends(properly=goodbye)
    whole = where == "without TLS's goodbye" and goodbye
    assert talk.client.ended == ("" if whole else "aborted")
    assert ("upstream-closed" in talk.reasons) is not whole


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_origin_that_says_nothing_is_a_502(method: str) -> None:
    talk = asked(head(method, "/a"))
    talk.origin.ends()
    assert (talk.answer(method).status, talk.reasons[0]) == (502, "upstream-closed")
    assert (talk.client.heard(), len(talk.origins)) == (b"", 1)


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\n\r\n",
        HEAD_200 + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        HEAD_200 + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD_200 + b"Content-Length: +5\r\n\r\nhello",
        HEAD_200 + b"X-A: b\r\n c\r\n\r\n",
        HEAD_200 + b"X: y\r\n" * 200 + b"\r\n",
        HEAD_200 + b"X: " + b"y" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_an_answer_that_can_be_read_in_two_ways_ends_as_a_502(reply: bytes) -> None:
    """I4: an answer must not become two on the way; every spelling is in unit/http."""
    talk = asked()
    answer = talk.told(reply)
    assert (answer.status, json.loads(answer.body)["reason"]) == (502, "upstream-malformed")
    assert (talk.origin.ended, talk.client.ended) == ("aborted", "parted")


@pytest.mark.parametrize("size", [b"zz", b"0x5", b"5;a=b", b" 5"])
def test_a_bad_chunk_cuts_the_answer(size: bytes) -> None:
    talk = asked()
    talk.origin.says(CHUNK + size + b"\r\nhello\r\n0\r\n\r\n")
    assert b"hello" not in talk.client.heard().partition(b"hello\n")[2]
    assert (talk.client.ended, talk.reasons[1]) == ("aborted", "upstream-malformed")


# ── as it comes ───────────────────────────────────────────────────────────────────────────────────


def test_an_event_in_two_pieces_is_held_no_longer_than_it_must_be() -> None:
    """Of a run of token bytes that is not over, as much waits as a secret could have (I7); nothing
    else waits for more."""
    talk = asked()
    talk.origin.says(CHUNKS)
    talk.client.heard()
    said = [(b"data: one two\n\n", b"data: one two\n\n"), (b"data: abc", b"data: ")]
    for event, passed in (*said, (b"def\n\n", b"abcdef\n\n")):
        talk.origin.says(b"%x\r\n%b\r\n" % (len(event), event))
        assert talk.client.heard() == b"%x\r\n%b\r\n" % (len(passed), passed)
