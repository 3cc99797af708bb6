"""Which connections to an origin are used again, and which requests are sent again (I4)."""

from __future__ import annotations

import pytest

from keyhole.gateway.upstream import pool as pools
from tests.rigs.gateway.conversation import OWN, Conversation
from tests.rigs.gateway.stage import BEARER
from tests.rigs.gateway.talk import get, head, ok

KNOWN = "api.model.example"
MODEL = f"""[services.own]
use = "model"
inject = {BEARER}
secret = "file:/nowhere"
allow = ["GET,POST,PUT,DELETE+body,GET+body /v1/**"]
"""
TENANT = """[services.own]
use = "tenant"
hosts = ["NAME"]
secret = "file:/nowhere"
allow = ["GET,POST,PUT,DELETE+body,GET+body /v1/**"]
"""
POLICIES = {
    "ok.example": OWN,
    KNOWN: MODEL,
    "mine.tenant.example": TENANT.replace("NAME", "mine.tenant.example"),
    "tenant.corp.example": TENANT.replace("NAME", "tenant.corp.example"),
}


def get_to(name: str, path: str) -> bytes:
    return get(path, host=name)


def bodied(name: str, method: str) -> bytes:
    return head(method, "/v1/1", "Content-Length: 5", host=name) + b"hello"


def chunked(name: str, method: str) -> bytes:
    body = b"5\r\nhello\r\n0\r\n\r\n"
    return head(method, "/v1/1", "Transfer-Encoding: chunked", host=name) + body


def bare(name: str, method: str) -> bytes:
    return head(method, "/v1/1", "Content-Length: 0", host=name)


FOUND = ok(b"x", b"Location: /v1/2", status=b"307 Temporary Redirect")
EMPTY_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\n"


@pytest.mark.parametrize(
    ("name", "make", "method", "reply", "kept"),
    [
        # A server of the user's own may leave any body unread; without one there is no doubt.
        ("ok.example", bare, "POST", ok(b"x"), True),
        ("ok.example", bare, "GET", ok(b"x", b"Location: /3", status=b"302 Found"), True),
        ("ok.example", bare, "GET", ok(b"x", status=b"404 Not Found"), True),
        ("ok.example", bare, "GET", EMPTY_CHUNKS, True),
        ("ok.example", bodied, "POST", ok(b"x"), False),
        ("ok.example", chunked, "POST", ok(b"x"), False),
        ("ok.example", chunked, "POST", ok(b"x", status=b"500 Internal Server Error"), False),
        ("ok.example", bodied, "PUT", ok(b"x", status=b"201 Created"), False),
        ("ok.example", bodied, "POST", FOUND, False),
        ("tenant.corp.example", bodied, "POST", ok(b"x"), False),
        # What the catalogue knows reads the bodies that it accepts.
        (KNOWN, bodied, "POST", ok(b"x"), True),
        (KNOWN, chunked, "PUT", ok(b"x"), True),
        ("mine.tenant.example", bodied, "POST", ok(b"x"), True),
        (KNOWN, bodied, "POST", FOUND, False),
        (KNOWN, chunked, "PUT", ok(b"x", status=b"303 See Other"), False),
        (KNOWN, bodied, "POST", ok(b"x", status=b"400 Bad Request"), False),
        (KNOWN, bodied, "DELETE", ok(b"x"), False),
        (KNOWN, chunked, "GET", ok(b"x"), False),
        # What is left of one answer must not become the next one's.
        ("ok.example", bare, "GET", ok(b"x", b"Connection: close"), False),
        ("ok.example", bare, "GET", ok(b"x") + b"y", False),
        ("ok.example", bare, "GET", ok(b"x") + ok(b"of another request"), False),
        ("ok.example", bare, "GET", EMPTY_CHUNKS + ok(b"z"), False),
        ("ok.example", bare, "GET", NOTHING + b"\r\n" + ok(b"z"), False),
        ("ok.example", bare, "GET", NOTHING + b"Content-Length: 1\r\n\r\n", False),
        ("ok.example", bare, "GET", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", False),
    ],
)
def test_a_connection_is_kept_only_when_nothing_is_in_doubt(
    name: str, make: object, method: str, reply: bytes, kept: bool
) -> None:
    """I4, I6: a body that is left unread is the next request to that server, and the one after it,
    with its credential, would become that one's body."""
    talk = Conversation(POLICIES[name], name=name)
    request = make(name, method)  # type: ignore[operator]
    assert talk.asks(request).startswith(method.encode() + b" /v1/1 ")
    assert talk.told(reply).status == int(reply.split()[1])
    assert talk.asks(get_to(name, "/v1/2")).startswith(b"GET /v1/2 ")
    assert len(talk.origins) == (1 if kept else 2)
    assert talk.told(ok(b"2")).body == b"2"
    assert kept or talk.origin.ended


@pytest.mark.parametrize("name", ["ok.example", KNOWN])
@pytest.mark.parametrize("late", [b"", b"hello"])
def test_an_answer_that_begins_before_the_body_is_whole_ends_the_connection(
    name: str, late: bytes
) -> None:
    """I4: though the body is whole when the answer is: the rest would be read as a request."""
    talk = Conversation(POLICIES[name], name=name)
    talk.asks(head("POST", "/v1/1", "Content-Length: 5", host=name))
    talk.origin.says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx")
    assert talk.asks(late) == late if late else True
    talk.origin.says(b"y")
    answer = talk.answer()
    assert (answer.body, answer.one("connection")) == (b"xy", "close")
    assert talk.origin.ended
    assert talk.client.ended == "parted"


def used_once() -> Conversation:
    """A conversation whose connection to the origin has served a request."""
    talk = Conversation()
    talk.asks(get("/1"))
    assert talk.told(ok(b"1")).body == b"1"
    return talk


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_a_stale_connection_is_noticed_and_an_idempotent_request_sent_again(method: str) -> None:
    """Once; what is pipelined behind it waits."""
    for answers in (True, False):
        talk = used_once()
        assert talk.asks(head(method, "/2") + get("/3"))
        talk.origin.ends()
        heard = talk.origins[1].heard()
        assert heard.startswith(f"{method} /2 ".encode())
        assert b"/3" not in heard
        if answers:
            assert talk.told(ok(), method=method).status == 200
            assert talk.origins[1].heard().startswith(b"GET /3 ")
        else:
            talk.origins[1].ends()
            assert talk.answer(method).status == 502
            assert len(talk.origins) == 2


@pytest.mark.parametrize(
    ("method", "body"), [("POST", b""), ("POST", b"hello"), ("PATCH", b"hello"), ("PUT", b"hello")]
)
def test_a_request_that_may_have_been_done_is_not_sent_again(method: str, body: bytes) -> None:
    """I4; nor is one that a new connection has got."""
    for talk in (used_once(), Conversation()):
        assert talk.asks(head(method, "/2", f"Content-Length: {len(body)}") + body)
        talk.origin.ends()
        assert (talk.answer().status, talk.reasons[-1]) == (502, "upstream-closed")
        assert len(talk.origins) == 1


def test_what_an_idle_connection_says_ends_it() -> None:
    """I4: it would be taken for the answer to the next request."""
    talk = used_once()
    talk.origin.says(ok(b"poison"))
    assert talk.origin.ended == "aborted"
    talk.asks(get("/2"))
    assert talk.told(ok(b"2")).body == b"2"
    assert len(talk.origins) == 2


def test_only_so_many_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: and for so long."""
    monkeypatch.setattr(pools, "MAX_IDLE_ORIGINS", 2)
    talk = Conversation()
    kept, over = talk.add_origin(), talk.add_origin()
    assert (talk.host.pool.size, kept.ended, over.ended) == (2, "", "closed")
    talk.host.pool.sweep(talk.clock.now + pools.IDLE_ORIGIN + 1)
    assert (talk.host.pool.size, kept.ended) == (0, "closed")
    assert talk.asks(get("/after")).startswith(b"GET /after ")
