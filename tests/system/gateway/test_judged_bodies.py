"""Judged bodies on the wire: every way to frame, encode and name a body is judged or refused, and
none leaves bytes behind that are read as another request (I3, I4).

Through a whole gateway, with a model's service of the real catalogue. Each refusal has a control.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from typing import TYPE_CHECKING

import h2.connection
import h2.events
import pytest

from keyhole.certs.authority import Authority
from tests.rigs.gateway.aws import Keys, signed_request, verified
from tests.rigs.gateway.models import HOST, MESSAGES, POLICY, real_catalogue
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import Service, tls_for
from tests.rigs.gateway.rig import Services
from tests.rigs.gateway.stage import AMPLE, SECRET, Stage, make_services, serving, set_up
from tests.rigs.gateway.talk import get, head, ok
from tests.rigs.waiting import until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    import trustme

    from tests.rigs.gateway.talk import Message, Talk

JSON = "Content-Type: application/json"
PLAIN = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
CLOSED = PLAIN.replace(b'"max', b'"tools": [{"type": "web_search_20250305"}], "max', 1)


@pytest.fixture(scope="module")
def stage(authority: trustme.CA) -> Iterator[Stage]:
    """One session for all tests."""
    with real_catalogue(), set_up(authority, make_services(authority, own=SECRET)) as made:
        yield made


@pytest.fixture
def origin(stage: Stage, authority: trustme.CA) -> Iterator[Service]:
    """What the origin sees."""
    found = Service(lambda _: ok(b"fine"))
    with serving(found, tls_for(authority, HOST)) as server:
        if stage.handle is None:
            stage.open(POLICY, api_anthropic_com=server)
        else:
            stage.change(POLICY, api_anthropic_com=server)
        yield found
        stage.close_talks()


def post(body: bytes, *lines: str, path: str = MESSAGES, method: str = "POST") -> bytes:
    return head(method, path, *lines, f"Content-Length: {len(body)}", host=HOST) + body


def chunked(body: bytes, *lines: str, step: int = 7, trailers: bytes = b"") -> bytes:
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    written = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    start = head("POST", MESSAGES, *lines, "Transfer-Encoding: chunked", host=HOST)
    return start + written + b"0\r\n" + trailers + b"\r\n"


def ask(stage: Stage, request: bytes, method: str = "POST") -> Message:
    return stage.ask(request, name=HOST).answer(method)


def reason(answer: Message) -> str:
    found = json.loads(answer.body)["reason"]
    assert isinstance(found, str)
    return found


def test_a_body_in_chunks_is_judged_and_sent_whole(stage: Stage, origin: Service) -> None:
    for step in (1, 7, 4096):
        refused = ask(stage, chunked(CLOSED, JSON, step=step))
        assert (refused.status, reason(refused)) == (403, "feature-closed")
        assert ask(stage, chunked(PLAIN, JSON, step=step)).status == 200
    assert [each.body for each in origin.seen] == [PLAIN] * 3
    assert {each.one("content-length") for each in origin.seen} == {str(len(PLAIN))}
    assert not [each for each in origin.seen if each.one("transfer-encoding")]


def test_trailers_of_a_judged_body_are_not_sent(stage: Stage, origin: Service) -> None:
    """I4: nothing of them was judged; servers join them to the head."""
    trailers = b"Content-Encoding: gzip\r\nX-Api-Key: other\r\n"
    answer = ask(stage, chunked(PLAIN, JSON, trailers=trailers))
    if answer.status == 200:
        assert [(each.body, each.trailers) for each in origin.seen] == [(PLAIN, b"")]
        assert origin.seen[0].one("content-encoding") is None
    else:
        assert not origin.seen
    assert ask(stage, chunked(PLAIN, JSON)).status == 200


@pytest.mark.parametrize("body", [PLAIN, CLOSED], ids=["open", "closed"])
def test_a_client_that_waits_for_100_is_told_to_go_on_and_is_judged(
    stage: Stage, origin: Service, body: bytes
) -> None:
    talk = stage.visit(HOST)
    talk.send(post(body, JSON, "Expect: 100-continue")[: -len(body)])
    assert talk.answer("POST").status == 100
    talk.send(body)
    assert talk.answer("POST").status == (200 if body is PLAIN else 403)
    assert [each.body for each in origin.seen] == [PLAIN] * (body is PLAIN)
    assert not [each for each in origin.seen if each.one("expect")]
    talk.send(post(PLAIN, JSON))
    assert talk.answer("POST").status == 200


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (("Content-Encoding: gzip",), gzip.compress(CLOSED)),
        (("Content-Encoding: deflate",), zlib.compress(CLOSED)),
        (("Content-Encoding: br",), CLOSED),
        (("Content-Encoding: zstd",), CLOSED),
        (("Content-Encoding: gzip, identity",), gzip.compress(CLOSED)),
        (("Content-Encoding: identity", "Content-Encoding: gzip"), gzip.compress(CLOSED)),
        (("Content-Encoding: identity,gzip",), CLOSED),
        (("Content-Encoding: x-gzip",), CLOSED),
        (("Content-Encoding: aws-chunked",), CLOSED),
        (("content-encoding:GZIP",), CLOSED),
    ],
)
def test_an_encoded_body_is_refused(
    stage: Stage, origin: Service, lines: tuple[str, ...], body: bytes
) -> None:
    """I3, also where the bytes would be harmless as they are."""
    for sent in (body, PLAIN):
        answer = ask(stage, post(sent, JSON, *lines))
        assert reason(answer) in ("body-unjudged", "http-malformed")
    assert not origin.seen
    assert ask(stage, post(PLAIN, JSON, "Content-Encoding: identity")).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Type: text/plain",),
        ("Content-Type: application/x-www-form-urlencoded",),
        ("Content-Type: multipart/form-data; boundary=x",),
        ("Content-Type: application/json; charset=utf-16",),
        ("Content-Type: application/json; charset=utf-7",),
        ("Content-Type: application/json;charset=utf-8;charset=utf-16",),
        ("Content-Type: application/json", "Content-Type: text/plain"),
        ("Content-Type: text/plain", "Content-Type: application/json"),
        ("Content-Type: application/json, multipart/form-data; boundary=x",),
        ("Content-Type: application/json; boundary=x",),
        ("Content-Type: application/grpc+proto",),
        ("Content-Type: ",),
    ],
)
def test_a_type_that_is_read_in_another_way_is_refused(
    stage: Stage, origin: Service, lines: tuple[str, ...]
) -> None:
    answer = ask(stage, post(PLAIN, *lines))
    # A call of gRPC is refused in its own words.
    assert answer.status in (400, 403) or answer.one("grpc-status") == "7"
    assert not origin.seen


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (JSON,),
        ('content-type:APPLICATION/JSON ; charset="UTF-8"',),
        ("Content-Type: application/vnd.x+json",),
    ],
)
def test_a_type_of_json_and_none_are_judged(
    stage: Stage, origin: Service, lines: tuple[str, ...]
) -> None:
    assert ask(stage, post(PLAIN, *lines)).status == 200
    assert reason(ask(stage, post(CLOSED, *lines))) == "feature-closed"
    assert [each.body for each in origin.seen] == [PLAIN]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "QUERY"])
def test_a_body_under_another_method_is_not_sent(
    stage: Stage, origin: Service, method: str
) -> None:
    assert ask(stage, post(CLOSED, JSON, method=method), method).status in (403, 404)
    assert not origin.seen
    override = post(CLOSED, JSON, "X-HTTP-Method-Override: POST", path="/v1/models", method="GET")
    assert ask(stage, override).status == 403
    assert ask(stage, get("/v1/models", host=HOST), "GET").status == 200


# ── what is left in the connection ────────────────────────────────────────────────────────────────

SMUGGLED = post(CLOSED, JSON)


def test_requests_behind_a_refused_body_are_judged_by_themselves(
    stage: Stage, origin: Service
) -> None:
    """I4: each is answered in its turn, and only what is allowed is sent."""
    talk = stage.visit(HOST)
    talk.send(post(CLOSED, JSON) + post(PLAIN, JSON) + chunked(CLOSED, JSON) + post(PLAIN, JSON))
    assert [talk.answer("POST").status for _ in range(4)] == [403, 200, 403, 200]
    assert [each.body for each in origin.seen] == [PLAIN] * 2


@pytest.mark.parametrize("encoded", [False, True])
def test_a_request_within_a_refused_body_is_not_read_as_one(
    stage: Stage, origin: Service, encoded: bool
) -> None:
    """I4: a refusal by the head alone must still take the body for a body."""
    inner = get("/v1/models", host=HOST)
    lines = ("Content-Encoding: gzip",) if encoded else ("Content-Type: text/plain",)
    talk = stage.visit(HOST)
    talk.send(post(inner, *lines) + post(PLAIN, JSON))
    assert [talk.answer("POST").status for _ in range(2)] == [403, 200]
    assert [each.method for each in origin.seen] == ["POST"]


def test_a_body_beyond_the_limit_ends_the_connection(
    stage: Stage, origin: Service, authority: trustme.CA
) -> None:
    """I4: what follows is the rest of a body, and never a request."""
    with serving(origin, tls_for(authority, HOST)) as server:
        stage.change(POLICY, f'{AMPLE}body = "1KiB"\n', api_anthropic_com=server)
        filler = b'{"a": "' + b"x" * 2000
        for request in (
            post(filler + SMUGGLED, JSON),
            chunked(filler, JSON, step=500) + SMUGGLED,
        ):
            talk = stage.ask(request, name=HOST)
            assert talk.answer("POST").status == 413
            assert talk.more() == b""
        assert not origin.seen
        assert ask(stage, post(PLAIN, JSON)).status == 200


@pytest.mark.parametrize(
    "framing",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Content-Length: +5",),
    ],
)
def test_a_body_of_two_lengths_is_refused_and_ends_the_connection(
    stage: Stage, origin: Service, framing: tuple[str, ...]
) -> None:
    start = head("POST", MESSAGES, JSON, *framing, host=HOST)
    talk = stage.ask(start + b"0\r\n\r\n" + SMUGGLED, name=HOST)
    assert talk.answer("POST").status in (400, 501)
    assert talk.more() == b""
    assert not origin.seen


# ── HTTP/2 ────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_over_http2_are_judged_stream_by_stream(stage: Stage, origin: Service) -> None:
    """One stream is refused, and the others of the connection go on."""
    context = stage.client_context()
    context.set_alpn_protocols(["h2"])
    plain = stage.namespace.connect(HOST)
    with context.wrap_socket(plain, server_hostname=HOST) as sock:
        client = h2.connection.H2Connection()
        client.initiate_connection()
        bodies = {1: PLAIN, 3: CLOSED, 5: PLAIN, 7: gzip.compress(CLOSED), 9: CLOSED}
        for number, body in bodies.items():
            fields = [(":method", "POST"), (":scheme", "https"), (":authority", HOST)]
            fields += [(":path", MESSAGES), ("content-type", "application/json")]
            fields += [("content-encoding", "gzip")] * (number == 7)
            client.send_headers(number, fields)
            for at in range(0, len(body), 50):
                client.send_data(number, body[at : at + 50])
            if number == 9:
                # Attack: fields behind the body, which no one has judged.
                client.send_headers(number, [("content-encoding", "gzip")], end_stream=True)
            else:
                client.end_stream(number)
        sock.sendall(client.data_to_send())
        found: dict[int, str] = {}
        while len(found) < len(bodies):
            for event in client.receive_data(sock.recv(65536)):
                if isinstance(event, h2.events.ResponseReceived) and event.stream_id:
                    found[event.stream_id] = dict(event.headers)[b":status"].decode()
                elif isinstance(event, h2.events.StreamReset) and event.stream_id:
                    found[event.stream_id] = "reset"
    assert found.pop(9) in ("403", "reset")
    assert found == {1: "200", 3: "403", 5: "200", 7: "403"}
    assert [each.body for each in origin.seen] == [PLAIN] * 2


# ── bodies that do not come ───────────────────────────────────────────────────────────────────────


def held(stage: Stage) -> tuple[int, int, int]:
    handle = stage.handle
    assert handle is not None
    return stage.rig.call(
        lambda: (handle._state.gathered, handle._state.spools, handle._state.memory.held)
    )


@pytest.mark.parametrize("size", [1000, 3 << 20], ids=["in memory", "on disk"])
@pytest.mark.parametrize("ending", ["end", "reset"])
def test_a_body_that_stops_is_never_sent_and_is_given_back(
    stage: Stage, origin: Service, size: int, ending: str
) -> None:
    talk = stage.visit(HOST)
    start = head("POST", MESSAGES, JSON, f"Content-Length: {size}", host=HOST)
    talk.send(start + PLAIN + b" " * (size - len(PLAIN) - 1))
    until(lambda: held(stage) != (0, 0, 0))
    if ending == "end":
        talk.goodbye()
    talk.close()
    until(lambda: held(stage) == (0, 0, 0))
    assert not origin.seen
    assert stage.watch.until("client-left")


def test_a_slow_body_is_judged_at_its_end(stage: Stage, origin: Service) -> None:
    """Meanwhile the session's other connections are served."""
    slow: list[Talk] = []
    for body in (PLAIN, CLOSED):
        slow.append(stage.visit(HOST))
        request = post(body, JSON)
        for at in range(0, len(request) - 1, 40):
            slow[-1].send(request[at : min(at + 40, len(request) - 1)])
        assert ask(stage, get("/v1/models", host=HOST), "GET").status == 200
        assert len(origin.seen) == len(slow)
    for talk in slow:
        talk.send(b"}")
    assert [talk.answer("POST").status for talk in slow] == [200, 403]


def test_one_session_cannot_have_all_memory_for_bodies(
    stage: Stage, origin: Service, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9, I12: the hostile session is refused at its share, and another's body is judged."""
    monkeypatch.setattr("keyhole.gateway.body_memory.MAX_OF_ALL", 400_000)
    monkeypatch.setattr("keyhole.gateway.body_memory.OWN", 50_000)
    neighbour = Namespace.make()
    other = Stage(neighbour, stage.rig, authority, stage.services)
    try:
        with serving(origin, tls_for(authority, HOST)) as server:
            other.open(POLICY, api_anthropic_com=server)
            length = f"Content-Length: {90_000}"
            start = head("POST", MESSAGES, JSON, length, host=HOST)
            hostile = [stage.ask(start + b" " * 80_000, name=HOST) for _ in range(2)]
            until(lambda: held(stage)[0] == 160_000)
            with contextlib.suppress(OSError):  # it is cut while it still sends
                stage.ask(start + b" " * 80_000, name=HOST)
            assert stage.watch.until("over-share").rule == "shares.body-memory"
            assert ask(other, post(PLAIN + b" " * 90_000, JSON)).status == 200
            assert len(hostile) == 2
    finally:
        other.close_talks()
        neighbour.close()


# ── signed bodies ─────────────────────────────────────────────────────────────────────────────────

STAND = Keys("AKIAPLACEHOLDER00000", "placeholder/secret")
REAL = Keys("AKIAREAL000000000000", "real/secret")
CONVERSE = b'{"messages": [{"role": "user", "content": [{"text": "hi"}]}]}'
FETCHED = (
    b'{"messages": [{"role": "user", "content": [{"image": {"source": {"s3Location": {}}}}]}]}'
)


def test_a_signed_body_is_judged_and_signed_anew(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I4, I6: what is signed with the real key is what was judged; a changed body is refused."""
    seen = Service(lambda _: ok(b"fine"))
    services = Services(
        {"own": f"{REAL.id}\n{REAL.secret}"},
        {"own": f"{STAND.id}\n{STAND.secret}"},
        Authority.create("t"),
        authority.cert_pem.bytes(),
    )
    policy = '[services.own]\nuse = "bedrock"\nhosts = ["ok.example"]\nsecret = "file:/nowhere"\n'
    inject = 'inject = { sigv4 = "bedrock", region = "eu-west-1" }\n'
    path = "/model/anthropic.claude/converse"
    with real_catalogue(), serving(seen, tls) as server, set_up(authority, services) as stage:
        stage.open(policy + inject, ok_example=server)
        good = signed_request(STAND, "bedrock", path, CONVERSE)
        assert stage.ask(good).answer("POST").status == 200
        assert (seen.seen[0].body, verified(REAL, seen.seen[0])) == (CONVERSE, True)
        closed = stage.ask(signed_request(STAND, "bedrock", path, FETCHED)).answer("POST")
        assert (closed.status, reason(closed)) == (403, "feature-closed")
        assert stage.ask(good.replace(b'"hi"', b'"ho"')).answer("POST").status == 403
        unsigned = signed_request(STAND, "bedrock", path, FETCHED, declared="UNSIGNED-PAYLOAD")
        assert stage.ask(unsigned).answer("POST").status == 403
        long = CONVERSE + b" " * (2 << 20)
        talk = stage.ask(signed_request(STAND, "bedrock", path, long))
        assert talk.answer("POST").status == 200
        assert (seen.seen[-1].body == long, verified(REAL, seen.seen[-1])) == (True, True)
        assert len(seen.seen) == 2
