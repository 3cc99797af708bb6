"""Streams as conversations: the client says, the origin says, and the audit has it."""

from __future__ import annotations

import time

import pytest

from keyhole.gateway.http.patience import HEAD_TIMEOUT, KEEP_ALIVE
from keyhole.gateway.http.states import LIFE, STAGES, Life, Stage, move
from keyhole.model.errors import Misuse
from tests.rigs.gateway.conversation import Channel, Conversation
from tests.rigs.gateway.stage import AMPLE, SECRET, STAND_IN, service
from tests.rigs.gateway.talk import get, head, ok

OK = ok(b"hi")


def is_paused(side: Channel) -> bool:
    return side.paused


def post(body: bytes, path: str = "/a") -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}") + body


def test_an_allowed_request_goes_up_with_the_credential_and_its_response_comes_down() -> None:
    talk = Conversation()
    talk.client.says(get("/a", f"Authorization: Bearer {STAND_IN}", "X-Mine: 1"))
    sent = talk.origin.heard()
    assert sent.startswith(b"GET /a HTTP/1.1\r\nHost: ok.example\r\nX-Mine: 1\r\n")
    assert sent.count(b"Authorization") == 1
    assert f"Authorization: Bearer {SECRET}\r\n".encode() in sent
    talk.origin.says(OK)
    assert talk.client.heard() == OK
    assert talk.reasons == ["rule"]
    assert dict(talk.audit[0].details)["status"] == 200
    assert talk.state.busy == 0


def test_a_refused_request_reaches_no_origin_and_the_next_one_does() -> None:
    talk = Conversation(service("own", "ok.example", allow="GET /v1/**"))
    talk.client.says(get("/v2") + get("/v1/x"))
    assert talk.client.heard().startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert talk.origin.heard().startswith(b"GET /v1/x ")
    assert talk.reasons == ["no-rule"]


def test_two_services_at_one_host_each_have_their_requests_and_their_connections() -> None:
    """I4, I7: the path chooses the credential, no connection carries both, and an answer of one has
    the secret of neither."""
    other = "other-9876543210zyxwvutsrq"
    policy = service("own", "ok.example", allow="GET /a/**")
    policy += service("two", "ok.example", allow="GET /b/**")
    talk = Conversation(policy, secrets={"own": SECRET, "two": other})
    for path, secret in (("/a/1", SECRET), ("/b/1", other), ("/a/2", SECRET)):
        talk.client.says(get(path))
        (asked,) = [each for each in talk.origins if each.sent]
        assert f"Authorization: Bearer {secret}\r\n".encode() in asked.heard()
        asked.says(ok(f"{SECRET} {other}".encode()))
        said = talk.client.heard()
        assert said.startswith(b"HTTP/1.1 200")
        assert SECRET.encode() not in said
        assert other.encode() not in said
    assert len(talk.origins) == 2
    talk.client.says(get("/c"))
    assert talk.client.heard().startswith(b"HTTP/1.1 403")


def test_pipelined_requests_are_answered_in_order_and_sent_on_one_by_one() -> None:
    """I4: an answer can only be that of the request before it."""
    talk = Conversation(service("own", "ok.example", more='deny = ["* /no"]'))
    chunks = head("POST", "/4", "Transfer-Encoding: chunked") + b"5\r\nworld\r\n0\r\n\r\n"
    talk.client.says(
        get("/1") + post(b"hello", "/2") + get("/no") + chunks + head("HEAD", "/5") + get("/6")
    )
    assert is_paused(talk.client)
    for wanted in (b"GET /1 ", b"POST /2 ", b"POST /4 ", b"HEAD /5 ", b"GET /6 "):
        heard = talk.origins[-1].heard()
        assert heard.startswith(wanted)
        assert heard.count(b"HTTP/1.1") == 1
        talk.origins[-1].says(ok(wanted)[: -len(wanted) if wanted.startswith(b"HEAD") else None])
    answers = talk.answers("GET", "POST", "GET", "POST", "HEAD", "GET")
    assert [answer.status for answer in answers] == [200, 200, 403, 200, 200, 200]
    bodies = [answer.body for answer in answers if answer.status == 200]
    assert bodies == [b"GET /1 ", b"POST /2 ", b"POST /4 ", b"", b"GET /6 "]
    assert not is_paused(talk.client)


def test_a_body_is_passed_as_it_comes_and_its_connection_is_not_used_again() -> None:
    """I4: whether a server of the user's own reads the bodies that it accepts is not known."""
    talk = Conversation()
    whole = post(b"hello")
    talk.client.says(whole[:-3])
    assert talk.origin.heard().endswith(b"Content-Length: 5\r\n\r\nhe")
    talk.client.says(b"llo")
    assert talk.origin.heard() == b"llo"
    talk.origin.says(OK)
    assert talk.client.heard() == OK
    assert talk.origin.ended == "closed"
    # The control: after a request without one it is.
    other = Conversation()
    other.client.says(get())
    other.origin.says(OK)
    assert not other.origin.ended


def test_a_secret_that_comes_back_is_replaced_in_head_and_body() -> None:
    """I7."""
    talk = Conversation()
    talk.client.says(get())
    text = f"you sent {SECRET}".encode()
    head = f"HTTP/1.1 200 OK\r\nX-Echo: {SECRET}\r\nContent-Length: {len(text)}\r\n\r\n"
    talk.origin.says(head.encode() + text)
    said = talk.client.heard()
    assert SECRET.encode() not in said
    assert said.count(STAND_IN.encode()) == 2
    assert talk.reasons == ["rule", "secret-scrubbed"]


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_over_any_boundary_is_replaced(cut: int) -> None:
    talk = Conversation()
    talk.client.says(get())
    talk.origin.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (SECRET[:cut], SECRET[cut:]):
        talk.origin.says(f"{len(piece):x}\r\n{piece}\r\n".encode())
    talk.origin.says(b"0\r\n\r\n")
    said = talk.client.heard()
    assert SECRET[:cut].encode() not in said or cut < 4
    assert STAND_IN.encode() in said.replace(b"\r\n", b"")


def test_a_kept_connection_that_was_closed_is_tried_once_more() -> None:
    talk = Conversation()
    talk.client.says(get())
    talk.origin.says(OK)
    talk.client.says(get("/b"))
    talk.origin.ends()
    assert talk.origins[1].heard().startswith(b"GET /b ")
    assert talk.reasons == ["rule"]


def test_a_client_that_leaves_takes_its_request_along() -> None:
    talk = Conversation()
    talk.client.says(get())
    talk.connection.lost(None)
    assert talk.origin.ended == "aborted"
    assert talk.reasons == ["client-left", "closed"]
    assert talk.gone == [talk.connection]
    assert talk.state.busy == 0


def test_bytes_that_are_no_request_are_a_400_and_the_end() -> None:
    talk = Conversation()
    talk.client.says(b"nonsense\r\n\r\n")
    assert talk.client.heard().startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert talk.reasons == ["http-malformed"]
    talk.client.says(get())
    assert talk.origin.heard() == b""


def test_another_services_host_is_not_this_one() -> None:
    """I4."""
    talk = Conversation()
    talk.client.says(get().replace(b"ok.example", b"evil.example"))
    assert talk.client.heard().startswith(b"HTTP/1.1 400 ")
    assert talk.origin.heard() == b""


def test_while_the_log_cannot_be_written_nothing_is_sent() -> None:
    talk = Conversation(admitting=False)
    talk.client.says(get())
    assert talk.client.heard().startswith(b"HTTP/1.1 503 ")
    assert talk.reasons == ["not-admitting"]


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_a_body_over_its_limit_is_refused_before_and_within(over: int, status: int) -> None:
    """I9: by its announcement, and when it grows there."""
    chunk = b"400\r\n" + bytes(1024) + b"\r\n"
    chunks = head("POST", "/a", "Transfer-Encoding: chunked") + chunk * (10 + over)
    for sent in (post(bytes(10240 + over)), chunks + b"0\r\n\r\n"):
        talk = Conversation(limits=f"{AMPLE}body = '10KiB'\n")
        talk.client.says(sent)
        assert (talk.answer() if over else talk.told(OK)).status == status
        assert ("body-too-large" in talk.reasons) is bool(over)
        assert not over or not talk.origin.sent or talk.origin.ended == "aborted"


def test_a_slow_origin_slows_its_client_and_a_slow_client_its_origin() -> None:
    """I9."""
    talk = Conversation()
    talk.origin.slow = True
    talk.client.says(post(b"hello")[:-3])
    assert is_paused(talk.client)
    talk.origin.slow = False
    talk.origin.user.caught_up()
    assert not is_paused(talk.client)
    talk.client.says(b"llo")
    talk.client.slow = True
    talk.origin.says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi")
    assert is_paused(talk.origin)
    talk.http.caught_up()
    assert not is_paused(talk.origin)


def test_a_head_that_trickles_in_has_its_time_and_so_has_silence() -> None:
    talk = Conversation()
    start, patience = talk.clock.now, talk.http.patience
    assert not patience.is_stale(talk.http, start + KEEP_ALIVE, 900.0)
    assert patience.is_stale(talk.http, start + KEEP_ALIVE + 1, 900.0)
    talk.client.says(b"GET /")
    talk.clock.now += HEAD_TIMEOUT - 1
    talk.client.says(b"a")
    assert not patience.is_stale(talk.http, talk.clock.now, 900.0)
    assert patience.is_stale(talk.http, talk.clock.now + 2, 900.0)
    # An origin that never answers has as long as the policy says.
    assert talk.asks(b" HTTP/1.1\r\nHost: ok.example\r\n\r\n")
    assert not patience.is_stale(talk.http, talk.clock.now + 899, 900.0)
    assert patience.is_stale(talk.http, talk.clock.now + 901, 900.0)


def test_lines_for_the_person_are_few_and_each_refusal_is_written_down() -> None:
    """I8, I9."""
    talk = Conversation(service("own", "ok.example", more='deny = ["* /no"]'))
    for _ in range(30):
        talk.client.says(get("/no"))
    assert talk.reasons == ["denied-by-rule"] * 30
    assert len(talk.lines) == 1


def test_states_change_by_the_table_alone() -> None:
    assert move(LIFE, Life.HELLO, Life.SECURING) is Life.SECURING
    with pytest.raises(Misuse):
        move(LIFE, Life.GONE, Life.OPEN)
    assert set(STAGES) == set(Stage)
    talk = Conversation()
    talk.client.says(get())
    stream = talk.http.stream
    assert stream is not None
    with pytest.raises(Misuse):
        stream.move(Stage.TOKEN)


def test_a_conversation_takes_microseconds() -> None:
    talk = Conversation()
    began = time.process_time()
    for _ in range(100):
        talk.client.says(get())
        talk.origin.says(OK)
    assert time.process_time() - began < 1.0
    assert talk.client.heard() == OK * 100
