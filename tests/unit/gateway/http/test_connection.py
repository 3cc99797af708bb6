"""Requests of a client's connection: each is for this host and has one reading (I4)."""

from __future__ import annotations

import json

import pytest

from keyhole.model.event import EventKind
from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.stage import forge, service
from tests.rigs.gateway.talk import get, head, ok

CHUNKED = head("POST", "/a", "Transfer-Encoding: chunked")


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        head("POST", "/a", "Content-Length: 5", "Content-Length: 5") + b"hello",
        head("POST", "/a", "Content-Length: 5", "Expect: 200-ok") + b"hello",
        get("/a", "X-A : b"),
        get("/a", "Host: ok.example"),
        get("https://ok.example:444/a"),
        get("/a", host="ok.example."),
        b"GET /a HTTP/1.1\r\nHost: ok.example\n\n",
        b"GET /a HTTP/1.1\r\nHost: ok.example\r\n" + b"X: y\r\n" * 12_000,
        CHUNKED + b"5;a=b\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello\r\nzz\r\n",
        CHUNKED + b"0\r\nCookie: session=mine\r\n\r\n",
    ],
)
def test_a_request_of_two_readings_is_a_400_and_the_end(raw: bytes, bytewise: bool) -> None:
    """I4: nor can what the origin has got of it be continued by another one. The control is the
    request before; every spelling is in unit/http."""
    talk = Conversation()
    assert talk.asks(get("/control")).startswith(b"GET /control ")
    assert talk.told(ok()).status == 200
    talk.client.says(*([raw[at : at + 1] for at in range(len(raw))] if bytewise else [raw]))
    answer = talk.answer()
    body = json.loads(answer.body)
    assert (answer.status, body["reason"], body["retry"]) == (400, "http-malformed", False)
    assert (answer.one("connection"), talk.client.ended) == ("close", "parted")
    assert "http-malformed" in talk.reasons
    heard = talk.origin.heard()
    assert not heard or (heard.startswith(b"POST ") and talk.origin.ended == "aborted")
    assert talk.asks(get("/after")) == b""


@pytest.mark.parametrize(
    ("target", "host", "start"),
    [
        ("/a", "ok.example", b"GET /a "),
        ("/a", "OK.Example", b"GET /a "),
        ("/a", "ok.example:443", b"GET /a "),
        ("https://ok.example/a", "ok.example", b"GET /a "),
        ("HTTPS://OK.example:443/a", "ok.example", b"GET /a "),
        ("https://ok.example?x=1", "ok.example", b"GET /?x=1 "),
    ],
)
def test_every_way_to_name_this_very_host_is_taken_and_written_as_one(
    target: str, host: str, start: bytes
) -> None:
    heard = Conversation().asks(*(bytes([each]) for each in get(target, "X-A: b", host=host)))
    assert heard.startswith(start + b"HTTP/1.1\r\nHost: ok.example\r\nX-A: b\r\n")
    assert heard.count(b"Host:") == 1


@pytest.mark.parametrize(
    "raw",
    [
        get("/a", "X: " + "x" * 5000, host="evil.example"),
        b"GET /a HTTP/1.1\r\nHost: ok.example\r\nX: " + b"x" * 5000 + b"\n\n",
    ],
)
@pytest.mark.parametrize("size", [6000, 100])
def test_a_head_that_is_no_request_is_counted(raw: bytes, size: int) -> None:
    """I8, I9: in the session's figures, and in the closing event."""
    talk = Conversation()
    talk.client.says(*(raw[at : at + size] for at in range(0, len(raw), size)))
    assert talk.answer().status == 400
    assert (talk.state.requested, talk.state.up > 5000) == (1, True)
    talk.connection.lost(None)
    totals = dict(talk.audit[-1].details)
    assert (totals["requests"], totals["up"]) == (1, talk.state.up)
    small = Conversation(limits="requests_per_second = 100\nupload = '1KiB'\n")
    small.client.says(raw)
    assert small.client.ended == "aborted"
    assert small.reasons[:2] == ["http-malformed", "over-limit"]


@pytest.mark.parametrize("change", [False, True])
def test_trailers_are_judged_by_the_policy_that_is_in_force(change: bool) -> None:
    """I6: a field that has become the credential's does not pass behind a body that began before.
    The control is the same policy."""
    talk = Conversation()
    talk.client.says(CHUNKED + b"2\r\nhi\r\n")
    if change:
        inject = '{ header = "X-Corp", value = "{secret}" }'
        talk.change(service("own", "ok.example", inject=inject))
    talk.client.says(b"0\r\nX-Corp: attackers-own\r\n\r\n")
    assert (b"attackers-own" in talk.origin.heard()) is not change
    assert ("http-malformed" in talk.reasons) is change


def test_trailers_are_counted() -> None:
    """I9: a body of nothing, with eight kilobytes behind it, is not free."""
    talk = Conversation(limits="requests_per_second = 100\nupload = '1KiB'\n")
    talk.client.says(CHUNKED + b"0\r\nX-Long: " + b"x" * 2000 + b"\r\n\r\n")
    assert talk.client.ended == "aborted"
    assert "over-limit" in talk.reasons
    assert b"X-Long" not in talk.origin.heard()


def test_a_limit_that_is_reached_at_the_end_of_a_response_ends_the_connection() -> None:
    """I8: of a response that ends with its connection, and is passed on when it is whole."""
    limits = "requests_per_second = 100\ndownload = '100B'\n"
    talk = Conversation(forge("own", "ok.example"), limits=limits)
    body = b'{"operation":"download","transfers":["basic"],"objects":[{"oid":"%b","size":3}]}'
    body %= b"a" * 64
    media = "Content-Type: application/vnd.git-lfs+json"
    path = "/acme/w.git/info/lfs/objects/batch"
    talk.client.says(head("POST", path, media, f"Content-Length: {len(body)}") + body)
    talk.origin.says(f'HTTP/1.1 200 OK\r\n{media}\r\n\r\n{{"objects":[]}}'.encode())
    talk.origin.ends(properly=True)
    assert talk.client.ended == "aborted"
    assert "over-limit" in talk.reasons
    assert talk.state.busy == 0


@pytest.mark.parametrize("limit", ["", "upload = '200B'\n"])
def test_a_request_that_was_being_collected_has_its_line_in_the_log(limit: str) -> None:
    """I8: its client leaves, or a limit is reached, before it was sent or refused."""
    limits = f"requests_per_second = 100\n{limit}"
    talk = Conversation(forge("own", "ok.example"), limits=limits)
    media, path = "Content-Type: application/vnd.git-lfs+json", "/acme/w.git/info/lfs/objects/batch"
    batch = b'{"operation":"download","transfers":["basic"],"objects":[{"oid":"%b","size":3}]}'
    body = batch % (b"a" * 64)
    whole = head("POST", path, media, f"Content-Length: {len(body)}") + body
    talk.client.says(whole if limit else whole[:-1])
    talk.connection.lost(None)
    requests = [each for each in talk.audit if each.kind is EventKind.REQUEST]
    assert [str(each.reason) for each in requests] == ["over-limit" if limit else "client-left"]
    assert dict(requests[0].details)["path"] == path
    assert talk.state.busy == 0
