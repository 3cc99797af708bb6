"""What a service hands out beside its answer stays outside: sessions and digests (I1, I7)."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.frames import OFFER, right
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import (
    SECRET,
    STAND_IN,
    Stage,
    make_services,
    service,
    serving,
    set_up,
)
from tests.rigs.gateway.talk import END, Message, get, head, ok

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

RAW = SECRET.encode()
OWN, PLAIN, TOLD = "ok.example", "other.example", "told.ok.example"
"""Hosts with a credential, without one, and with one whose policy names what is returned."""

SESSIONS = [
    b"Set-Cookie: sid=s3cr3t; Path=/; HttpOnly",
    b"Set-Cookie: theme=dark",
    b"X-Auth-Token: s3cr3t",
    b"X-Subject-Token: s3cr3t",
    b"Authentication-Info: nextnonce=s3cr3t",
    b"x-amz-security-token: s3cr3t",
]
DIGESTS = [
    b"Content-MD5: s3cr3t",
    b"Repr-Digest: sha-256=:s3cr3t:",
    b"Digest: sha-256=s3cr3t",
    b"x-goog-hash: md5=s3cr3t",
    b"X-Amz-Checksum-Sha256: s3cr3t",
]


class Play:
    """One door to three hosts; what is behind all of them is each test's own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reply = b""
        self.seen: queue.Queue[Message] = queue.Queue()

    def __call__(self, sock: socket.socket) -> None:
        def answer(message: Message) -> bytes:
            self.seen.put(message)
            return self.reply

        Service(answer)(sock)

    def ask(self, reply: bytes, host: str = OWN, method: str = "GET", *lines: str) -> Message:
        """The answer to a request for `/a`, which the origin answers with these bytes."""
        self.reply = reply
        talk = self.stage.ask(head(method, "/a", *lines, host=host), name=host)
        return talk.answer(method)

    def told(self, name: str) -> str | None:
        """A field of the request that the origin got last."""
        last = None
        while not self.seen.empty():
            last = self.seen.get()
        assert last is not None
        return last.one(name)


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    with set_up(authority, make_services(authority, own=SECRET, told=SECRET)) as stage:
        made = Play(stage)
        named = '"cookie:sid", "cookie:cf_*", "header:x-subject-token", "header:content-md5"'
        every = "*,WEBSOCKET /**"
        policy = service("own", OWN, allow=every) + service("plain", PLAIN, inject="", allow=every)
        policy += service("told", TOLD, more=f"unsafe_return = [{named}]")
        with serving(made, tls) as server:
            stage.open(policy, ok_example=server, other_example=server, told_ok_example=server)
            yield made
            stage.close_talks()


def lines_of(message: Message) -> set[bytes]:
    return set(message.head.split(b"\r\n"))


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_session_that_a_service_hands_out_stays_outside(play: Play, size: int) -> None:
    """I1; and the control: a host that got no credential hands out what it likes."""
    reply = ok(b"x" * size, *SESSIONS, b"X-Other: 1")
    answer = play.ask(reply)
    assert b"s3cr3t" not in answer.head
    assert answer.one("x-other") == "1"
    assert answer.body == b"x" * size
    assert set(SESSIONS) <= lines_of(play.ask(reply, PLAIN))


def test_nor_by_an_error_an_interim_answer_or_a_trailer(play: Play) -> None:
    """I1, I7; with the same controls."""
    early = b"\r\n".join(
        [b"HTTP/1.1 103 Early Hints", *SESSIONS, *DIGESTS, b"Link: </a>", b"", b""]
    )
    chunked = (
        b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n%b\r\n\r\n1\r\nx\r\n0\r\n%b\r\n\r\n"
    )
    last = [b"X-Auth-Token: s3cr3t", b"Digest: s3cr3t", b"ETag: s3cr3t", b"X-Last: 1"]
    reply = early + chunked % (b"\r\n".join(SESSIONS), b"\r\n".join(last))
    for host, hidden in ((OWN, True), (PLAIN, False)):
        play.reply = reply
        talk = play.stage.ask(get("/a", host=host), name=host)
        hints = talk.until(END)
        assert hints.startswith(b"HTTP/1.1 103")
        assert b"Link: </a>" in hints
        answer = talk.answer()
        whole = hints + answer.head + answer.trailers
        assert answer.status == 401
        assert b"X-Last: 1" in answer.trailers
        assert (b"s3cr3t" not in whole) is hidden
        if not hidden:
            assert set(last) <= set(answer.trailers.split(b"\r\n"))


def test_nor_by_the_answer_that_opens_a_websocket(play: Play) -> None:
    """I1; with the same control."""
    reply = right(*(line.decode() for line in SESSIONS))
    for host, hidden in ((OWN, True), (PLAIN, False)):
        play.reply = reply
        talk = play.stage.ask(get("/chat", *OFFER, host=host), name=host)
        opened = talk.until(END)
        assert opened.startswith(b"HTTP/1.1 101")
        assert (b"s3cr3t" not in opened) is hidden
        talk.close()


def test_what_a_policy_names_passes_and_travels_back(play: Play) -> None:
    """By name alone; and the control: elsewhere the client's cookies are taken off (I6)."""
    reply = ok(b"x", *SESSIONS, *DIGESTS, b"Set-Cookie: cf_1=1")
    answer = play.ask(reply, TOLD, "GET", "Cookie: sid=mine; other=1; cf_1=2")
    assert answer.all("set-cookie") == ["sid=s3cr3t; Path=/; HttpOnly", "cf_1=1"]
    assert answer.one("x-subject-token") == "s3cr3t"
    assert answer.one("content-md5") == "s3cr3t"
    assert answer.head.count(b"s3cr3t") == 3
    assert play.told("cookie") == "sid=mine; cf_1=2"
    play.ask(reply, OWN, "GET", "Cookie: sid=mine; other=1; cf_1=2")
    assert play.told("cookie") is None


@pytest.mark.parametrize("split", [False, True])
def test_no_digest_of_the_original_is_beside_a_replaced_body(play: Play, split: bool) -> None:
    """I7: whether or not the head leaves first; and the control: without a credential all pass."""
    text = b"before " + RAW + b" after"
    fields = [*DIGESTS, b'ETag: "s3cr3t"']
    reply = ok(text, *fields)
    if split:
        listed = b"\r\n".join(fields)
        reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%b\r\n\r\n" % listed
        reply += b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (text[:16], len(text) - 16, text[16:])
    answer = play.ask(reply)
    assert answer.body == text.replace(RAW, STAND_IN.encode())
    assert b"s3cr3t" not in answer.head
    plain = play.ask(reply, PLAIN)
    assert plain.body == text
    assert set(fields) <= lines_of(plain)


@pytest.mark.parametrize("tag", ['"0815"', 'W/"0815"', "0815"])
def test_a_tag_is_sealed_and_conditional_requests_work(play: Play, tag: str) -> None:
    """I7: the client gets another tag for it, and the origin gets its own."""
    reply = ok(b"text", f"ETag: {tag}".encode())
    sealed = play.ask(reply).one("etag")
    assert sealed is not None
    assert "0815" not in sealed
    assert sealed.startswith("W/") is tag.startswith("W/")
    for method, status in (("HEAD", b"200 OK"), ("GET", b"304 Not Modified")):
        bare = b"HTTP/1.1 %b\r\nETag: %b\r\n\r\n" % (status, tag.encode())
        assert play.ask(bare, OWN, method).one("etag") == sealed
    for field in ("If-None-Match", "If-Match"):
        play.ask(reply, OWN, "GET", f'{field}: "other", {sealed}')
        assert play.told(field.lower()) == f'"other", {tag}'
    # The controls: without a credential, the tag passes; and what was not sealed is left alone.
    assert play.ask(reply, PLAIN).one("etag") == tag
    play.ask(reply, PLAIN, "GET", f"If-None-Match: {sealed}")
    assert play.told("if-none-match") == sealed


def test_the_digests_of_an_upload_pass(play: Play) -> None:
    """S3 wants the tags of all parts back, in a body that nobody rewrites."""
    fields = [*DIGESTS, b'ETag: "s3cr3t"']
    answer = play.ask(ok(b"", *fields), OWN, "PUT", "Content-Length: 0")
    assert set(fields) <= lines_of(answer)
    answer = play.ask(ok(b"<done/>", *fields), OWN, "PUT", "Content-Length: 0")
    assert b"s3cr3t" not in answer.head


def test_a_tag_outlives_a_change_of_policy(play: Play, tls: ssl.SSLContext) -> None:
    """The client may hold it for as long as the session lives."""
    reply = ok(b"text", b'ETag: "0815"')
    with set_up(play.stage.authority) as stage, serving(made := Play(stage), tls) as server:
        stage.open(service("own", OWN), ok_example=server)
        first = made.ask(reply).one("etag")
        stage.change(service("own", OWN, allow="GET /**"), ok_example=server)
        assert made.ask(reply, OWN, "GET", f"If-None-Match: {first}").one("etag") == first
        assert made.told("if-none-match") == '"0815"'
        # Another session has another.
        assert play.ask(reply).one("etag") != first
