"""A service's own limits and its budget in a session hold, whoever asks and however (I9)."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.gateway import GatewayFull
from keyhole.policy.budget import GatewayLimits
from keyhole.wire.websocket import accept_for
from tests.gateway.origins import Origin, Service, echo, web
from tests.gateway.rig import Rig, policy
from tests.gateway.stage import ALL, AMPLE, BEARER, Stage, make_services, service
from tests.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    import socket
    import ssl

    import trustme

    from tests.gateway.namespace import Namespace

Make = Callable[..., Origin]
PATIENCE = 20.0
JSON = b"Content-Type: application/json"
OTHER = service("other", "other.example")
KEPT = 'secret = "file:/nowhere"'


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.002)


def model(budget: str, *, secret: str = KEPT) -> str:
    """A language model's service, by the catalogue's entry."""
    return (
        f'[services.own]\nuse = "model"\nhosts = ["ok.example"]\ninject = {BEARER}\n{secret}\n'
        f'allow = ["{ALL}", "WEBSOCKET /v1/responses"]\nbudget = {{ {budget} }}\n'
    )


def used(stage: Stage) -> dict[str, int]:
    """What was used of each budget of the service."""
    handle = stage.handle
    assert handle is not None
    uses = stage.rig.call(lambda: handle.budgets)
    return {use.name.rpartition(".")[2]: use.used for use in uses}


def post(path: str, body: bytes = b"{}", *lines: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def over_budget(answer: Message, name: str) -> None:
    """It is refused for good, and says by what."""
    told = json.loads(answer.body)
    assert (answer.status, told["retry"], answer.one("retry-after")) == (403, False, None)
    assert (told["reason"], told["rule"]) == ("over-budget", f"services.own.budget.{name}")


# ── rates, places, sizes ──────────────────────────────────────────────────────────────────────────


def test_a_services_rate_is_its_own_and_can_be_waited_for(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service()
    made = origin(server, tls)
    own = service("own", "ok.example", more="requests_per_second = 2")
    stage.open(own + OTHER, ok_example=made, other_example=made)
    talk = stage.ask(*[get("/a")] * 4)
    answers = [talk.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    told = json.loads(answers[2].body)
    assert (told["rule"], told["retry"]) == ("services.own.requests_per_second", True)
    assert answers[2].one("retry-after") == "1"
    other = stage.ask(*[get("/a", host="other.example")] * 4, name="other.example")
    assert [other.answer().status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("whose", ["services.own", "limits"])
def test_a_place_among_concurrent_requests_is_free_again_however_a_request_ends(
    stage: Stage, origin: Make, tls: ssl.SSLContext, whose: str
) -> None:
    """Attack: have places leak, so that a neighbour in the same sandbox finds none; or the other
    way round, have them freed twice, so that there is no limit."""
    go: queue.Queue[bytes | None] = queue.Queue()

    def answer(message: Message) -> bytes | None:
        return go.get(timeout=PATIENCE) if "/wait" in message.start else ok()

    server = Service(answer)
    own = service("own", "ok.example", more="concurrent_requests = 1" if whose != "limits" else "")
    limits = f"{AMPLE}\nconcurrent_requests = 1" if whose == "limits" else AMPLE
    stage.open(own, limits, ok_example=origin(server, tls))

    def refused() -> None:
        answer = stage.ask(get("/a")).answer()
        assert (answer.status, answer.one("retry-after")) == (429, "2")
        assert json.loads(answer.body)["rule"] == f"{whose}.concurrent_requests"

    def free() -> bool:
        return stage.ask(get("/a")).answer().status == 200

    waiting = stage.ask(post("/wait", b""))
    until(lambda: len(server.seen) == 1)
    refused()
    go.put(ok(b"done"))
    assert waiting.answer().body == b"done"
    assert free()
    # The client leaves; the origin leaves; it answers nonsense; it refuses a body.
    for reply in (b"", None, b"nonsense\r\n\r\n"):
        count = len(server.seen)
        waiting = stage.ask(post("/wait", b""))
        until(lambda seen=count: len(server.seen) == seen + 1)  # type: ignore[misc]
        refused()
        if reply == b"":
            waiting.close()
            until(free)
            go.put(None)
        else:
            go.put(reply)
            assert waiting.answer().status == 502
            assert free()
    # A second request on the connection waits its turn and is not refused by the first.
    twice = stage.ask(post("/wait", b""), get("/a"))
    go.put(ok())
    assert [twice.answer().status, twice.answer().status] == [200, 200]
    state = stage.handle._state if stage.handle else None
    assert state is not None
    until(lambda: state.busy == 0)


def test_an_endpoint_has_a_size_of_its_own(stage: Stage, origin: Make, tls: ssl.SSLContext) -> None:
    server = Service()
    more = 'bodies = { "POST /v1/files" = "64KiB", "POST /v1/small/**" = "1KiB" }'
    limits = f'{AMPLE}\nbody = "10KiB"'
    stage.open(service("own", "ok.example", more=more), limits, ok_example=origin(server, tls))
    assert stage.ask(post("/v1/files", bytes(60_000))).answer().status == 200
    assert stage.ask(post("/v1/other", bytes(10_000))).answer().status == 200
    assert stage.ask(post("/v1/other", bytes(11_000))).answer().status == 413
    chunk = b"400\r\n" + bytes(1024) + b"\r\n"
    chunked = "Transfer-Encoding: chunked"
    assert stage.ask(head("POST", "/v1/files", chunked) + chunk * 30 + b"0\r\n\r\n").answer()
    assert len(server.seen[-1].body) == 30 * 1024
    for path in ("/v1/small/x", "/V1/Small/x", "/v1/sm%61ll/x"):
        answer = stage.ask(post(path, bytes(1025))).answer()
        told = json.loads(answer.body)
        assert (answer.status, told["rule"]) == (413, "services.own.bodies")
        grows = stage.ask(head("POST", path, chunked) + chunk * 2).answer()
        assert (grows.status, json.loads(grows.body)["rule"]) == (413, "services.own.bodies")
    assert stage.ask(post("/v1/small/x", bytes(1024))).answer().status == 200


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_of_requests_ends_for_good_and_for_its_service_alone(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service()
    made = origin(server, tls)
    own = service("own", "ok.example", more='deny = ["* /no"]\nbudget = { requests = 2 }')
    stage.open(own + OTHER, ok_example=made, other_example=made)
    talk = stage.ask(get("/no"), *[get("/a")] * 4)
    answers = [talk.answer() for _ in range(5)]
    # What policy refuses takes nothing of it.
    assert [answer.status for answer in answers] == [403, 200, 200, 403, 403]
    over_budget(answers[4], "requests")
    assert len(server.seen) == 2
    assert used(stage) == {"requests": 2}
    refused = stage.watch.until("over-budget", path="/a")
    assert refused.rule == "services.own.budget.requests"
    assert [line for line in stage.watch.lines if "budget" in line] == [
        "denied services.own.budget.requests (the session's budget is used up); "
        "raise services.own.budget.requests in the policy if this is expected"
    ]
    other = stage.ask(get("/a", host="other.example"), name="other.example")
    assert other.answer().status == 200


def test_requests_in_the_clear_are_of_the_same_budget(
    authority: trustme.CA, namespace: Namespace, rig: Rig, origin: Make
) -> None:
    text = service(
        "own", "ok.example", "ok.example:80", inject="", more="budget = { requests = 2 }"
    )
    text += f'[upstream.connect]\n"ok.example:80" = "{origin(web).address}"\n'
    _, watch = rig.open(namespace.door, text, make_services(authority))
    statuses = []
    for _ in range(3):
        talk = Talk(namespace.connect("ok.example", 80))
        talk.send(get("/a"))
        statuses.append(talk.answer().status)
        talk.close()
    assert statuses == [200, 200, 403]
    watch.until("over-budget")


def test_bytes_over_a_services_budget_are_refused_or_cut(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service(lambda m: ok(bytes(20_000) if "/down" in m.start else b""))
    made = origin(server, tls)
    more = 'budget = { upload = "20KiB", download = "30KiB" }'
    stage.open(service("own", "ok.example", more=more) + OTHER, ok_example=made, other_example=made)
    assert stage.ask(post("/a", bytes(15_000))).answer().status == 200
    over_budget(stage.ask(post("/a", bytes(15_000))).answer(), "upload")
    assert len(server.seen) == 1
    chunk = b"400\r\n" + bytes(1024) + b"\r\n"
    stage.ask(head("POST", "/a", "Transfer-Encoding: chunked") + chunk * 8).cut()
    cut = stage.watch.until("over-budget", path="/a", service="own")
    assert cut.rule == "services.own.budget.upload"
    assert used(stage)["upload"] <= 20 * 1024
    assert len(stage.ask(get("/down")).answer().body) == 20_000
    stage.ask(get("/down")).cut()
    until(lambda: "services.own.budget.download" in [e.rule for e in stage.watch.events])
    assert used(stage)["download"] <= 30 * 1024
    other = stage.ask(get("/down", host="other.example"), name="other.example")
    assert len(other.answer().body) == 20_000


def test_another_policy_finds_what_was_counted(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    def own(requests: int) -> str:
        return service("own", "ok.example", more=f"budget = {{ requests = {requests} }}")

    server = origin(Service(), tls)
    stage.open(own(3), ok_example=server)
    talk = stage.ask(get("/a"), get("/a"))
    assert [talk.answer().status for _ in range(2)] == [200, 200]
    free = service("own", "ok.example")
    for text, status in ((own(2), 403), (free, 200), (own(3), 403), (own(4), 200)):
        stage.change(text, ok_example=server)
        talk.send(get("/a"))
        assert talk.answer().status == status


def test_a_change_in_the_midst_of_a_request_counts_it_once(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """Attack: places or requests that a change gives back or takes twice."""
    go: queue.Queue[bytes] = queue.Queue()
    server = Service(lambda _: go.get(timeout=PATIENCE))
    made = origin(server, tls)
    own = service("own", "ok.example", more="concurrent_requests = 1\nbudget = { requests = 9 }")
    stage.open(own, ok_example=made)
    talk = stage.ask(post("/wait"))
    until(lambda: len(server.seen) == 1)
    stage.change(own, ok_example=made)
    assert stage.ask(get("/a")).answer().status == 429
    go.put(ok())
    assert talk.answer().status == 200
    go.put(ok())
    assert stage.ask(get("/a")).answer().status == 200
    assert used(stage) == {"requests": 2}
    until(lambda: stage.handle is not None and stage.handle._state.busy == 0)


def test_a_budget_that_is_new_is_one_of_what_is_under_way_too(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """Attack: open a stream before the person sets a bound, and live on it for days. Control: as
    much of it as the budget has still comes."""
    go: queue.Queue[bytes] = queue.Queue()

    def stream(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na \r\n")
        talk.send(go.get(timeout=PATIENCE))
        talk.send(go.get(timeout=PATIENCE))
        talk.rest()

    made = origin(stream, tls)
    stage.open(service("own", "ok.example"), ok_example=made)
    talk = stage.ask(get("/a"))
    talk.until(END)
    assert talk.chunk() == b"a "
    more = 'concurrent_requests = 1\nbudget = { download = "2KiB" }'
    stage.change(service("own", "ok.example", more=more), ok_example=made)
    assert stage.ask(get("/a")).answer().status == 429
    go.put(b"400\r\n" + b" " * 1024 + b"\r\n")
    assert talk.chunk() == b" " * 1024
    go.put(b"800\r\n" + b" " * 2048 + b"\r\n")
    talk.cut()
    assert stage.watch.until("over-budget").rule == "services.own.budget.download"
    until(lambda: stage.handle is not None and stage.handle._state.meters["own"].busy == 0)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


def events(*objects: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in objects)


def streamed(body: bytes) -> bytes:
    """A stream in small chunks."""
    pieces = [body[at : at + 11] for at in range(0, len(body), 11)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    kind = b"Content-Type: text/event-stream; charset=utf-8"
    return b"HTTP/1.1 200 OK\r\n%b\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (
        kind,
        chunks,
    )


USAGE = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
REPLIES = {
    "/json": ok(json.dumps({"choices": [], "usage": USAGE}).encode(), JSON),
    "/stream": streamed(events({"usage": None}, {"choices": [], "usage": USAGE})),
    "/mute": streamed(events(*[{"choices": [{"delta": {"content": "hi"}}]}] * 20)),
    "/count": ok(b'{"input_tokens": 900}', JSON),
    "/later": ok(b'{"status": "queued", "usage": null}', JSON),
    "/error": ok(b'{"error": "overloaded"}', JSON, status=b"529 Overloaded"),
    "/models": ok(b'{"data": []}', JSON),
}


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("/json", 42),
        ("/stream", 42),
        # 400 bytes were asked: a hundred tokens; and one for each event, or for each four bytes.
        ("/mute", 120),
        ("/later", 108),
        ("/count", 0),
        ("/error", 0),
        ("/models", 0),
    ],
)
def test_tokens_are_counted_as_answers_say_or_by_their_size(
    stage: Stage, origin: Make, tls: ssl.SSLContext, path: str, tokens: int
) -> None:
    server = Service(lambda m: REPLIES[m.start.split()[1]])
    stage.open(model("tokens = 1000"), ok_example=origin(server, tls))
    ask = get(path) if path == "/models" else post(path, b'"' + b"x" * 398 + b'"')
    assert stage.ask(ask).answer().status in (200, 529)
    until(lambda: stage.handle is not None and stage.handle._state.busy == 0)
    assert used(stage) == {"tokens": tokens}


def test_a_spent_budget_of_tokens_refuses_the_next_request(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    server = Service(lambda _: REPLIES["/stream"])
    stage.open(model("tokens = 80"), ok_example=origin(server, tls))
    talk = stage.ask(*[post("/v1/messages")] * 3)
    assert [talk.answer().status for _ in range(2)] == [200, 200]
    over_budget(talk.answer(), "tokens")
    assert (len(server.seen), used(stage)) == (2, {"tokens": 84})


def test_who_leaves_before_a_stream_says_its_tokens_pays_by_its_size(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """Attack: take the text, leave before the last event, and the budget never ends."""
    go = threading.Event()

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        if talk.request() is not None:
            whole = REPLIES["/mute"]
            talk.send(whole[: whole.rindex(b"data:")])
            go.wait(PATIENCE)

    stage.open(model("tokens = 100"), ok_example=origin(handler, tls))
    talk = stage.ask(post("/v1/messages", b"x" * 400))
    talk.until(b"hi")
    talk.close()
    until(lambda: used(stage)["tokens"] > 100)
    over_budget(stage.ask(post("/v1/messages")).answer(), "tokens")
    go.set()


def test_an_answer_that_is_counted_is_asked_for_as_it_can_be_read(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """Also where there is no secret that it would be searched for."""
    server = Service(lambda _: REPLIES["/json"])
    made = origin(server, tls)
    secretless = service("other", "other.example", inject="")
    stage.open(model("tokens = 1000", secret="") + secretless, ok_example=made, other_example=made)
    stage.ask(post("/a", b"{}", "Accept-Encoding: br", "Range: bytes=0-9")).answer()
    assert (server.seen[0].one("accept-encoding"), server.seen[0].one("range")) == (
        "identity",
        None,
    )
    head_of_other = post("/a", b"{}", "Accept-Encoding: br").replace(b"ok.ex", b"other.ex")
    stage.ask(head_of_other, name="other.example").answer()
    assert server.seen[1].one("accept-encoding") == "br"


def test_a_websocket_that_has_used_up_its_tokens_is_cut(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """No further request would come to be refused."""
    key = "dGhlIHNhbXBsZSBub25jZQ=="

    def text(message: object) -> bytes:
        payload = json.dumps(message).encode()
        return b"\x81\x7e" + len(payload).to_bytes(2, "big") + payload

    done = {"type": "response.completed", "response": {"usage": USAGE, "id": "x" * 100}}
    delta = {"type": "response.output_text.delta", "delta": "y" * 130}

    def handler(sock: socket.socket) -> None:
        talk = Talk(sock)
        talk.until(END)
        accept = accept_for(key.encode())
        talk.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        while len(talk.exactly(6)) == 6:
            talk.send(text(delta), text(done)[:60], text(done)[60:])

    stage.open(model("tokens = 80"), ok_example=origin(handler, tls))
    offer = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {key}")
    talk = stage.ask(get("/v1/responses", *offer))
    assert talk.answer().status == 101
    ask = b"\x81\x80\0\0\0\0"
    talk.send(ask)
    assert talk.exactly(len(text(delta) + text(done)))
    assert used(stage) == {"tokens": 42}
    talk.send(ask)
    talk.cut()
    assert stage.watch.until("over-budget").rule == "services.own.budget.tokens"
    assert used(stage) == {"tokens": 84}
    over_budget(stage.ask(post("/v1/messages")).answer(), "tokens")


# ── over all sandboxes ────────────────────────────────────────────────────────────────────────────


def test_all_sandboxes_together_have_a_rate(
    authority: trustme.CA,
    namespace: Namespace,
    neighbour: Namespace,
    origin: Make,
    tls: ssl.SSLContext,
) -> None:
    rig = Rig(limits=GatewayLimits(requests_per_second=3, sessions=2))
    server = origin(Service(), tls)
    try:
        stages = []
        for each in (namespace, neighbour):
            stages.append(Stage(each, rig, authority, make_services(authority, own="sk-x" * 9)))
            stages[-1].open(service("own", "ok.example"), ok_example=server)
        one, two = stages
        assert [one.ask(get("/a")).answer().status for _ in range(3)] == [200] * 3
        answer = two.ask(get("/a")).answer()
        assert (answer.status, answer.one("retry-after")) == (429, "1")
        assert json.loads(answer.body)["rule"] == "gateway.requests_per_second"
        with pytest.raises(GatewayFull):
            rig.open(namespace.door, "")
        for stage in stages:
            stage.close_talks()
    finally:
        rig.close()


# Resolves a name so often, then opens so many connections at once; prints how many were answered.
BURST = """
import socket, sys
for _ in range(int(sys.argv[1])):
    address = socket.gethostbyname("ok.example")
clients = [socket.create_connection((address, 9000), timeout=20) for _ in range(int(sys.argv[2]))]
for client in clients:
    client.sendall(b"x")
print(sum(client.recv(1) == b"x" for client in clients))
"""


def test_connections_and_questions_of_all_sandboxes_wait_for_their_turn(
    namespace: Namespace, neighbour: Namespace, origin: Make
) -> None:
    rig = Rig(limits=GatewayLimits(connections_per_second=4, dns_per_second=4))
    try:
        text = policy("ok.example:9000", **{"ok.example:9000": origin(echo).address})
        one, two = (rig.open(each.door, text)[1] for each in (namespace, neighbour))
        assert namespace.python(BURST, "1", "3") == "3"
        assert not one.reasons("limit")
        assert neighbour.python(BURST, "1", "6") == "6"
        assert two.until("over-limit").rule == "gateway.connections_per_second"
        assert two.lines[-1].endswith("in your config.toml if this is expected")
        assert neighbour.python(BURST, "6", "1") == "1"
        assert "gateway.dns_per_second" in [event.rule for event in two.events]
    finally:
        rig.close()
