"""gRPC calls as conversations: judged by name, refused in gRPC's form, searched by message."""

from __future__ import annotations

import gzip

import pytest

from keyhole.gateway import refusal_messages
from keyhole.gateway.budgets import Tally
from keyhole.gateway.refusal_messages import MAX_GRPC_MESSAGE, Form, http_reply
from keyhole.http.response import parse_response
from keyhole.inject.token_usage import UsageFormat
from keyhole.model.decision import Reason
from keyhole.model.reasons import REASONS, GrpcStatus
from keyhole.policy.budget import Meter, ServiceLimits
from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.http2 import Http2Talk
from tests.rigs.gateway.stage import AMPLE, SECRET, STAND_IN, service
from tests.rigs.gateway.talk import head
from tests.rigs.http.http2 import data, headers, post, rst, settings, status

GRPC = ("content-type", "application/grpc")
CALLS = service("own", "ok.example", allow="GRPC a.B/*", more='deny = ["GRPC a.B/Drop"]')
OPEN = service("own", "ok.example", allow="POST /**", more='deny = ["GRPC a.B/Drop"]')


HELLO, STOLEN = (gzip.compress(body, mtime=0) for body in (b"hello", SECRET.encode()))


def message(body: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(body).to_bytes(4) + body


def call(*more: tuple[str, str], path: str = "/a.B/C", stream: int = 1) -> bytes:
    return post(stream, GRPC, ("te", "trailers"), *more, path=path)


def called(*more: tuple[str, str], policy: str = CALLS) -> Http2Talk:
    """A talk in which a call is under way, and the origin has heard of it."""
    talk = Http2Talk(policy, origin_protocol="h2")
    assert talk.says(call(*more), data(1, message(b"hi"), end=True)) == []
    return talk


# ── allowed ───────────────────────────────────────────────────────────────────────────────────────


def test_a_call_passes_with_its_metadata_and_its_trailers() -> None:
    mine = [("grpc-timeout", "5S"), ("x-mine-bin", "AAEC"), ("grpc-accept-encoding", "gzip")]
    talk = called(*mine)
    up, *_, body = talk.origin_hears()
    for field in ("te=trailers", "grpc-timeout=5S", "x-mine-bin=AAEC", "content-type=application"):
        assert field in up
    assert "grpc-accept-encoding=identity" in up
    assert f"authorization=Bearer {SECRET}" in up
    assert body.endswith("END")
    heard = talk.origin_says(settings(), status(1, GRPC), data(1, message(b"token")))
    assert heard[0] == "1 HEADERS :status=200 content-type=application/grpc"
    # A message that is whole waits for nothing: the client may have to respond to it.
    assert heard[1].endswith("token")
    trailers = [("grpc-status", "5"), ("grpc-message", f"no {SECRET}")]
    (end,) = talk.origin_says(headers(1, trailers))
    assert end == f"1 HEADERS grpc-status=5 grpc-message=no {STAND_IN} END"
    assert talk.reasons == ["rule"]
    assert talk.is_at_rest()


def test_a_response_of_fields_alone_stays_one() -> None:
    talk = called()
    heard = talk.origin_says(
        settings(), status(1, GRPC, ("grpc-status", "12"), ("grpc-message", "no"), end=True)
    )
    assert len(heard) == 1
    assert "grpc-status=12 grpc-message=no" in heard[0]
    assert heard[0].endswith("END")


def test_a_call_goes_both_ways_message_by_message() -> None:
    talk = Http2Talk(CALLS, origin_protocol="h2")
    talk.says(call())
    talk.origin_hears()
    talk.origin_says(settings(), status(1, GRPC))
    for word in (b"one", b"two"):
        talk.says(data(1, message(word)))
        assert talk.origin_hears()[-1].endswith(word.decode())
        assert talk.origin_says(data(1, message(word.upper())))[-1].endswith(word.decode().upper())
    talk.says(rst(1))
    assert talk.origin_hears() == ["1 RST CANCEL"]
    assert talk.is_at_rest()


def test_a_call_is_never_sent_twice() -> None:
    """The origin has closed a kept connection: the client decides whether to call again."""
    talk = called()
    talk.origins[-1].ends()
    (heard,) = talk.hears()
    assert "grpc-status=14 " in heard
    assert "(upstream-closed)" in heard
    assert len(talk.origins) == 1


# ── refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "path", "media", "reason"),
    [
        (CALLS, "/a.B/Drop", "application/grpc", "denied-by-rule"),
        (CALLS, "/a.C/C", "application/grpc", "no-rule"),
        (CALLS, "/a.b/C", "application/grpc+proto", "no-rule"),
        (OPEN, "/a.B/Drop", "application/grpc", "denied-by-rule"),
        # The client chooses the type: it gets around neither an allow nor a deny.
        (CALLS, "/a.B/C", "application/json", "no-rule"),
        (CALLS, "/a.B/C", "application/connect+proto", "no-rule"),
        (OPEN, "/a.B/Drop", "application/connect+proto", "denied-by-rule"),
        (OPEN, "/a.B/Drop", "application/grpcx", "denied-by-rule"),
        (OPEN, "/A.b/dRoP", "application/json", "denied-by-rule"),
    ],
)
def test_a_refused_call_fails_with_the_reason(
    policy: str, path: str, media: str, reason: str
) -> None:
    """I3."""
    talk = Http2Talk(policy, origin_protocol="h2")
    heard = talk.says(post(1, ("content-type", media), path=path), data(1, message(b"x"), end=True))
    assert talk.reasons == [reason]
    assert talk.origin_hears() == []
    if media.startswith("application/grpc") and media != "application/grpcx":
        # The rest of the call's messages is not wanted (RFC 9113 §8.1).
        assert heard[1:] == ["1 RST NO_ERROR"]
        assert heard[0].startswith("1 HEADERS :status=200 content-length=0 content-type=appl")
        assert "grpc-status=7 grpc-message=keyhole: " in heard[0]
        assert f"keyhole why --method GRPC https://ok.example{path}" in heard[0]
        assert f"({reason})" in heard[0]
        assert " END" in heard[0]
    else:
        assert heard[0].startswith("1 HEADERS :status=403 ")


def test_a_limit_is_resource_exhausted() -> None:
    policy = CALLS + "requests_per_second = 1\n"
    talk = Http2Talk(policy, AMPLE, origin_protocol="h2")
    found = [
        " ".join(talk.says(call(stream=number), data(number, message(b"x"), end=True)))
        for number in range(1, 9, 2)
    ]
    assert not found[0]
    assert "grpc-status=8 " in found[-1]
    assert "grpc-retry-pushback-ms=" in found[-1]


@pytest.mark.parametrize("media", ["application/grpc-web+proto", "application/grpc-web-text"])
def test_a_client_of_grpc_web_reads_it_too(media: str) -> None:
    talk = Conversation(CALLS)
    body = message(b"x")
    fields = (f"Content-Type: {media}", f"Content-Length: {len(body)}")
    talk.client.says(head("POST", "/a.C/C", *fields) + body)
    answer = talk.answer("POST")
    assert (answer.status, answer.one("content-type")) == (200, "application/grpc-web+proto")
    assert answer.one("grpc-status") == "7"
    assert "no rule names it" in (answer.one("grpc-message") or "")
    assert answer.body == b""


def test_every_reason_has_a_status() -> None:
    for reason, info in REASONS.items():
        reply = http_reply(reason, "r", form=Form.GRPC)
        assert b"Grpc-Status: %d\r\n" % info.grpc in reply.lines, reason
        assert (info.grpc is GrpcStatus.OK) is (info.status == 200), reason
    found = {reason: REASONS[reason].grpc.name for reason in Reason}
    assert found[Reason.NO_RULE] == found[Reason.POLICY_CHANGED] == "PERMISSION_DENIED"
    assert found[Reason.OVER_LIMIT] == found[Reason.BODY_TOO_LARGE] == "RESOURCE_EXHAUSTED"
    assert found[Reason.UPSTREAM_CLOSED] == found[Reason.UPSTREAM_TLS] == "UNAVAILABLE"
    assert found[Reason.HTTP_MALFORMED] == found[Reason.INTERNAL] == "INTERNAL"
    assert found[Reason.CREDENTIAL_UNAVAILABLE] == "UNAUTHENTICATED"
    assert found[Reason.REPOSITORY_NOT_GRANTED] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("100 % sure", b"100 %25 sure"),
        ("a\r\nGrpc-Status: 0", b"a%0D%0AGrpc-Status: 0"),
        ("é", b"%C3%A9"),
        ("é" * 400, b"%C3%A9"),
    ],
)
def test_a_message_is_one_line_of_ascii(why: str, said: bytes) -> None:
    """I8: a path that the sandbox chose ends no field, and an escape is not halved."""
    (line,) = [
        each for each in http_reply("no-rule", "r", why, form=Form.GRPC).lines if b"M" in each
    ]
    assert line.startswith(b"Grpc-Message: keyhole: " + said)
    assert line.count(b"\r\n") == 1
    text = line.removeprefix(b"Grpc-Message: ").removesuffix(b"\r\n")
    assert len(text) <= MAX_GRPC_MESSAGE
    assert b"%" not in text[-2:]
    assert refusal_messages._grpc_encoded("x" * 2000) == b"x" * MAX_GRPC_MESSAGE


# ── searched ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 9, 20])
def test_a_secret_in_a_message_is_replaced_at_its_length(cut: int) -> None:
    """I7: over any frames; the lengths stay true."""
    talk = called()
    sent = message(b"\x0a\x1c" + SECRET.encode()) + message(b"next")
    heard = talk.origin_says(settings(), status(1, GRPC), data(1, sent[:cut]))
    heard += talk.origin_says(data(1, sent[cut:]), headers(1, [("grpc-status", "0")]))
    text = "".join(word.partition(" DATA ")[2] for word in heard if " DATA " in word)
    assert SECRET not in text
    assert STAND_IN in text
    assert len(text.encode("latin-1", "replace")) >= len(SECRET)
    assert "secret-scrubbed" in talk.reasons


@pytest.mark.parametrize(
    ("fields", "body", "reason"),
    [
        ([("grpc-encoding", "gzip")], message(HELLO, 1), ""),
        ([("grpc-encoding", "gzip")], message(b"hello"), ""),
        ([("grpc-encoding", "zstd")], message(b"hello"), ""),
        ([("grpc-encoding", "gzip")], message(STOLEN, 1), "reflected"),
        ([("grpc-encoding", "zstd")], message(b"hello", 1), "encoding-refused"),
        ([("grpc-encoding", "snappy")], message(b"hello", 1), "encoding-refused"),
        ([], message(HELLO, 1), "encoding-refused"),
        ([], message(b"hello", 0x40), "encoding-refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_compressed_message_is_searched_or_the_call_is_cut(
    fields: list[tuple[str, str]], body: bytes, reason: str
) -> None:
    """I7: a client that compresses its request gets a compressed response from many servers."""
    talk = called(("grpc-encoding", "gzip"))
    heard = talk.origin_says(settings(), status(1, GRPC, *fields), data(1, body))
    if reason:
        assert heard[-1] == "1 RST INTERNAL_ERROR"
        assert reason in talk.reasons[-1]
        assert not any("DATA" in word and SECRET in word for word in heard)
    else:
        assert " DATA " in heard[-1]
        assert talk.reasons == ["rule"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("content-type", "application/grpc-web-text")], "encoding-refused"),
        ([GRPC, ("content-encoding", "gzip")], "encoding-refused"),
        ([GRPC, ("grpc-encoding", "gzip"), ("grpc-encoding", "snappy")], "upstream-malformed"),
        ([GRPC, ("grpc-encoding", "gzip"), ("grpc-encoding", "gzip")], ""),
        ([("content-type", "application/grpc-web+proto")], ""),
    ],
)
def test_a_response_that_hides_its_messages_does_not_begin(
    fields: list[tuple[str, str]], reason: str
) -> None:
    talk = called()
    heard = talk.origin_says(settings(), status(1, *fields), data(1, message(b"hello")))
    if reason:
        assert f"({reason})" in heard[0]
        assert "grpc-status=13 " in heard[0]
    else:
        assert "grpc-status" not in heard[0]


def test_a_stream_of_connect_is_searched_like_one_of_grpc() -> None:
    """I7: its envelopes are the same, and compress as well."""
    media = ("content-type", "application/connect+proto")
    for body, ended in ((HELLO, False), (STOLEN, True)):
        talk = Http2Talk(OPEN, origin_protocol="h2")
        talk.says(post(1, media, ("connect-accept-encoding", "gzip")), data(1, b"x", end=True))
        assert "connect-accept-encoding=identity" in talk.origin_hears()[0]
        heard = talk.origin_says(
            settings(),
            status(1, media, ("connect-content-encoding", "gzip")),
            data(1, message(body, 1)),
        )
        assert (heard[-1] == "1 RST INTERNAL_ERROR") is ended


def test_tokens_of_a_call_are_charged_by_its_bytes_whatever_it_says() -> None:
    """I9: a report that the client had repeated in a message counts for nothing."""
    report = b'{"usage": {"total_tokens": 1, "prompt_tokens": 1, "completion_tokens": 0}}'
    charged = {}
    for media in ("application/grpc", "application/json"):
        meter = Meter("own", ServiceLimits(), 0.0)
        tally = Tally(meter, (UsageFormat.OPENAI,))
        tally.sent = True
        known = b"HTTP/1.1 200 OK\r\nContent-Type: " + media.encode()
        tally.begin(parse_response(known, "POST", {}))
        tally.feed(report)
        tally.end(400, whole=True)
        charged[media] = meter.tokens
    assert charged["application/json"] == 1
    assert charged["application/grpc"] > len(report)
