"""Judged requests where the client, the origin, or both speak HTTP/2 (I3, I4).

Each body that is sent arrives whole, and nothing of a refused one reaches the origin, not even its
head. The same requests are asked by HTTP/1.1 and by HTTP/2.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.certs.authority import Authority
from tests.rigs.gateway.aws import Keys, signed_request, verified
from tests.rigs.gateway.http2_peers import Http2Service, ask_http2, tls_http2
from tests.rigs.gateway.models import HOST, MESSAGES, POLICY, real_catalogue
from tests.rigs.gateway.rig import Services
from tests.rigs.gateway.stage import SECRET, Stage, make_services, serving, set_up
from tests.rigs.gateway.talk import Message, head
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

PLAIN = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
CLOSED = PLAIN.replace(b'"max', b'"tools": [{"type": "web_search_20250305"}], "max', 1)

Ask = Callable[..., list[Message]]


def ask_http1(stage: Stage, name: str, *requests: bytes) -> list[Message]:
    """Each request on a connection of its own."""
    return [stage.ask(request, name=name).answer("POST") for request in requests]


@pytest.fixture(params=[ask_http1, ask_http2], ids=["http1", "http2"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """The client's version."""
    found: Ask = request.param
    return found


def post(body: bytes) -> bytes:
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return head("POST", MESSAGES, *lines, host=HOST) + body


def padded(body: bytes, size: int) -> bytes:
    """The same, with a text that fills it."""
    return body.replace(b'"hi"', b'"%b"' % (b"a" * (size - len(body))))


@pytest.fixture(scope="module")
def models(authority: trustme.CA) -> Iterator[tuple[Stage, Http2Service]]:
    """A model's service behind an origin of HTTP/2."""
    origin = Http2Service()
    with (
        real_catalogue(),
        serving(origin, tls_http2(authority, HOST)) as server,
        set_up(authority, make_services(authority, own=SECRET)) as stage,
    ):
        stage.open(POLICY, api_anthropic_com=server)
        yield stage, origin
        stage.close_talks()


@pytest.mark.parametrize("size", [0, 300_000, 3 << 20], ids=["small", "beyond a window", "on disk"])
def test_a_judged_body_arrives_whole_and_a_refused_one_not_at_all(
    models: tuple[Stage, Http2Service], ask: Ask, size: int
) -> None:
    stage, origin = models
    origin.seen.clear()
    allowed, refused = padded(PLAIN, size), padded(CLOSED, size)
    answers = ask(stage, HOST, post(allowed), post(refused), post(PLAIN))
    assert [each.status for each in answers] == [200, 403, 200]
    assert json.loads(answers[1].body)["reason"] == "feature-closed"
    # Both are streams of one connection, so the small one may arrive first.
    assert sorted(each.body for each in origin.seen) == sorted([allowed, PLAIN])
    assert {each.one("x-api-key") for each in origin.seen} == {SECRET}
    assert {each.one("content-length") for each in origin.seen} == {
        str(len(allowed)),
        str(len(PLAIN)),
    }
    assert all(each in origin.whole for each in origin.seen)
    assert origin.connections == 1


def test_a_body_that_the_client_takes_back_never_reaches_the_origin(
    models: tuple[Stage, Http2Service],
) -> None:
    """The control is the request that follows."""
    stage, origin = models
    origin.seen.clear()
    talk = stage.visit(HOST)
    talk.send(post(PLAIN)[:-1])
    talk.goodbye()
    talk.close()
    assert stage.watch.until("client-left")
    assert not origin.seen
    assert ask_http1(stage, HOST, post(PLAIN))[0].status == 200
    assert [each.body for each in origin.seen] == [PLAIN]


def test_requests_and_connections_leave_no_reference_cycles(
    models: tuple[Stage, Http2Service], ask: Ask
) -> None:
    """I12: a data plane collects garbage rarely (`system/serving_memory.py`)."""
    stage, _ = models
    handle = stage.handle
    assert handle is not None
    requests = (post(PLAIN), post(CLOSED), post(padded(PLAIN, 2 << 20)))

    def converse() -> None:
        assert [each.status for each in ask(stage, HOST, *requests)] == [200, 403, 200]
        stage.close_talks()
        until(lambda: not stage.rig.call(lambda: len(handle._connections)))

    converse()
    gc.collect()
    gc.disable()
    try:
        converse()
        _Cycle()
        gc.set_debug(gc.DEBUG_SAVEALL)
        stage.rig.call(gc.collect)
        left = [type(each).__qualname__ for each in gc.garbage if _is_ours(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == ["_Cycle"]


class _Cycle:
    """The control: an object that a collection finds, as if it was the gateway's."""

    __module__ = "keyhole.control"

    def __init__(self) -> None:
        self.itself = self


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("keyhole.")


# ── operations of the catalogue ───────────────────────────────────────────────────────────────────

STAND = Keys("AKIAPLACEHOLDER00000", "placeholder/secret")
REAL = Keys("AKIAREAL000000000000", "real/secret")
AWS = """[services.own]
use = "aws"
hosts = ["ok.example"]
operations = ["ListQueues", "Describe*"]
secret = "file:/nowhere"
inject = { sigv4 = "sqs", region = "eu-west-1" }
"""


@pytest.fixture(scope="module")
def aws(authority: trustme.CA) -> Iterator[tuple[Stage, Http2Service]]:
    """A service of AWS's behind an origin of HTTP/2."""
    services = Services(
        {"own": f"{REAL.id}\n{REAL.secret}"},
        {"own": f"{STAND.id}\n{STAND.secret}"},
        Authority.create("t"),
        authority.cert_pem.bytes(),
    )
    origin = Http2Service()
    with (
        real_catalogue(),
        serving(origin, tls_http2(authority, "ok.example")) as server,
        set_up(authority, services) as stage,
    ):
        stage.open(AWS, ok_example=server)
        yield stage, origin
        stage.close_talks()


def signed(body: bytes, *lines: str) -> bytes:
    """A request that the placeholder's keys sign; `lines` are not signed, as most of the head."""
    start, _, rest = signed_request(STAND, "sqs", "/", body).partition(b"\r\n")
    return start + b"\r\n" + "".join(f"{line}\r\n" for line in lines).encode() + rest


FORM = "Content-Type: application/x-www-form-urlencoded"
TARGET = "Content-Type: application/x-amz-json-1.0"


def test_an_operation_of_aws_is_judged_by_form_and_by_head(
    aws: tuple[Stage, Http2Service], ask: Ask
) -> None:
    """I3, I6: what is named passes and is signed anew; the guarded and the unnamed do not."""
    stage, origin = aws
    origin.seen.clear()
    answers = ask(
        stage,
        "ok.example",
        signed(b"Action=ListQueues&Version=2012-11-05", FORM),
        signed(b"Action=DeleteQueue&Version=2012-11-05", FORM),
        signed(b"Action=ListQueues&Action=DeleteQueue", FORM),
        signed(b"{}", TARGET, "X-Amz-Target: AmazonSQS.ListQueues"),
        signed(b"{}", TARGET, "X-Amz-Target: AmazonSQS.AddPermission"),
        signed(b"{}", TARGET, "X-Amz-Target: AmazonSQS.DescribeInstanceAttribute"),
        signed(b"{}", TARGET),
    )
    assert [each.status for each in answers] == [200, 403, 403, 200, 403, 403, 403]
    assert sorted(each.body for each in origin.seen) == [
        b"Action=ListQueues&Version=2012-11-05",
        b"{}",
    ]
    assert all(verified(REAL, each) for each in origin.seen)
    assert not any(STAND.id.encode() in each.head for each in origin.seen)
