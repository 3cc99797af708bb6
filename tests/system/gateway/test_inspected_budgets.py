"""A service's own limits and its budget in a session hold, whoever asks and however (I9)."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import Refused
from keyhole.policy.budget import GatewayLimits
from tests.rigs.gateway.origins import Origin, Service, echo, web
from tests.rigs.gateway.rig import Rig, policy
from tests.rigs.gateway.stage import Stage, make_services, service
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok
from tests.rigs.waiting import until

if TYPE_CHECKING:
    import socket
    import ssl

    import trustme

    from tests.rigs.gateway.namespace import Namespace

Make = Callable[..., Origin]
PATIENCE = 20.0
JSON = b"Content-Type: application/json"
OTHER = service("other", "other.example")
KEPT = 'secret = "file:/nowhere"'


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
        "denied services.own.budget.requests (the budget is used up); "
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
        with pytest.raises(Refused):
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
