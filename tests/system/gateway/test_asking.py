"""What no rule names waits for a person: nothing of it leaves before a yes (I3, I4, I9)."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway import asking
from keyhole.gateway.asking import AskAnswer
from keyhole.model.errors import Refused
from keyhole.policy.asks import Answer
from keyhole.policy.lookalikes import host_marks
from tests.rigs.gateway.clients import CONVERSE
from tests.rigs.gateway.origins import Origin, Service, echo, web
from tests.rigs.gateway.rig import Rig, policy
from tests.rigs.gateway.stage import AMPLE, Stage, service
from tests.rigs.gateway.talk import Talk, get, ok
from tests.rigs.http import http2
from tests.rigs.http.http2 import Listener
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyhole.gateway.asking import AskNotice
    from keyhole.gateway.door.handle import DoorHandle
    from keyhole.policy.policy import Policy
    from tests.rigs.gateway.namespace import Namespace

    Make = Callable[..., Origin]

PORT = 9000
ASK = '[approvals]\nask = ["hosts", "requests", "pushes"]\nwait = "60s"\n'
SHORT = '[approvals]\nask = ["hosts", "requests"]\nwait = "1s"\n'


def answer(rig: Rig, handle: DoorHandle | None, ask: str, said: Answer, seconds: int = 0) -> None:
    assert handle is not None
    asking = handle.asking
    assert asking is not None
    rig.call(lambda: asking.answer(AskAnswer(ask, said, seconds, 7, "test")))


def tunnelled(server: Origin, more: str = ASK, host: str = "late.example") -> str:
    return policy(more=more, **{f"{host}:{PORT}": server.address})


@pytest.fixture
def server(origin: Make) -> Origin:
    return origin(echo)


_opened: list[Talk] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test opened, also where it fails: a socket left open fails another test."""
    yield
    while _opened:
        _opened.pop().close()


def ask_for(namespace: Namespace, name: str = "late.example", port: int = PORT) -> Talk:
    talk = Talk(namespace.connect(name, port))
    _opened.append(talk)
    talk.send(b"x")
    return talk


def heard_until_end(talk: Talk) -> bytes:
    """Everything that a refused client gets: the gateway's own words, an end or a reset."""
    heard = b""
    with contextlib.suppress(OSError):
        while piece := talk.more():
            heard += piece
    return heard


def test_a_host_that_no_rule_names_waits_for_a_yes(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    assert (notice.ask.subject.host, notice.ask.subject.rule) == (
        "late.example", "late.example:9000"
    )  # fmt: skip
    assert server.connections == 0  # nothing was resolved, dialled or sent
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    assert talk.exactly(1) == b"x"
    opened = watch.until("approved", port=PORT, address=server.address)
    assert (opened.kind, opened.rule) == ("connect", f"asks.{notice.ask.id}")
    said = watch.until("approved", answer="once")
    assert dict(said.details) == {
        "ask": notice.ask.id, "what": "hosts", "grant": "late.example:9000", "port": PORT,
        "answer": "once", "by": 7, "via": "test",
    }  # fmt: skip
    talk.close()
    second = ask_for(namespace)  # once was once
    watch.asked(2)
    second.close()


def test_without_a_watcher_nobody_is_asked_and_with_one_the_default_is(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    """I3: silence is no, unless somebody is there to speak."""
    handle, watch = rig.open(namespace.door, tunnelled(server, more=""))
    assert namespace.python(CONVERSE, "late.example", str(PORT), "read") == "gaierror"
    asking = handle.asking
    assert asking is not None
    rig.call(lambda: asking.watch(watched=True))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    rig.call(lambda: asking.watch(watched=False))
    answer(rig, handle, notice.ask.id, Answer.SESSION)
    assert talk.exactly(1) == b"x"
    talk.close()
    again = ask_for(namespace)  # granted for this session
    assert again.exactly(1) == b"x"
    assert len(watch.asked()) == 1
    assert [str(each.host) for each in rig.call(lambda: handle.grants)] == ["late.example"]
    again.close()
    assert namespace.python(CONVERSE, "other.example", str(PORT), "read") == "gaierror"


def test_a_no_is_an_answer_in_the_clients_own_protocol(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    server = origin(web)
    handle, watch = rig.open(
        namespace.door, policy(more=ASK, **{"late.example:80": server.address})
    )
    talk = Talk(namespace.connect("late.example", 80))
    talk.send(b"GET / HTTP/1.1\r\nHost: late.example\r\n\r\n")
    (notice,) = watch.asked()
    answer(rig, handle, notice.ask.id, Answer.NO)
    refused = talk.answer()
    assert refused.status == 403
    assert b"not-approved" in refused.body
    talk.close()
    # The same again is refused without a question, for a while.
    talk = Talk(namespace.connect("late.example", 80))
    talk.send(b"GET / HTTP/1.1\r\nHost: late.example\r\n\r\n")
    assert talk.answer().status == 403
    talk.close()
    assert len(watch.asked()) == 1
    assert server.connections == 0


def test_what_nobody_answers_is_refused_and_a_late_yes_serves_the_retry(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server, SHORT))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    watch.until("unanswered", port=PORT)
    assert b"x" not in heard_until_end(talk)  # the origin would have sent it back
    assert server.connections == 0
    talk.close()
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    again = ask_for(namespace)
    assert again.exactly(1) == b"x"
    again.close()
    assert server.connections == 1


def test_a_yes_is_not_spent_on_a_client_that_has_given_up(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    talk.close()
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    again = ask_for(namespace)
    assert again.exactly(1) == b"x"
    again.close()


def test_many_that_wait_for_one_host_are_one_question(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talks = [ask_for(namespace) for _ in range(5)]
    (notice,) = watch.asked()
    asking = handle.asking
    assert asking is not None
    until(lambda: rig.call(lambda: asking.views()[0].waiting) == 5)
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    assert [talk.exactly(1) for talk in talks] == [b"x"] * 5
    assert len(watch.asked()) == 1
    for talk in talks:
        talk.close()


def test_what_is_asked_is_bounded_and_another_sandbox_has_its_own_places(
    namespace: Namespace, neighbour: Namespace, rig: Rig, server: Origin
) -> None:
    """I9, I12."""
    few = ASK + "most_pending = 2\n"
    _, watch = rig.open(namespace.door, tunnelled(server, few, "h1.example"))
    waiting = [ask_for(namespace, f"h{n}.example") for n in range(2)]
    watch.asked(2)
    refused = ask_for(namespace, "h2.example")
    watch.until("too-many-asked", port=PORT)
    handle, theirs = rig.open(neighbour.door, tunnelled(server, few))
    talk = ask_for(neighbour)
    (notice,) = theirs.asked()
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    assert talk.exactly(1) == b"x"
    for each in (*waiting, refused, talk):
        each.close()


def test_no_to_all_is_the_last_question_of_a_session(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    answer(rig, handle, notice.ask.id, Answer.NO_TO_ALL)
    watch.until("not-approved", port=PORT)
    talk.close()
    assert namespace.python(CONVERSE, "other.example", str(PORT), "read") == "gaierror"
    with pytest.raises(Refused):
        answer(rig, handle, notice.ask.id, Answer.ONCE)


def test_nobody_is_asked_about_a_name_that_the_hello_does_not_have(
    namespace: Namespace, rig: Rig, origin: Make
) -> None:
    """I4; control: the right name is asked about."""
    server = origin(echo)
    _, watch = rig.open(namespace.door, policy(more=ASK, **{"late.example:443": server.address}))
    context = ssl.create_default_context()
    with (
        namespace.connect("late.example", 443) as sock,
        pytest.raises(ssl.SSLError),
        context.wrap_socket(sock, server_hostname="other.example"),
    ):
        pass
    watch.until("sni-mismatch")
    assert watch.notices == []
    sock = namespace.connect("late.example", 443)
    sock.setblocking(False)
    secure = context.wrap_socket(
        sock, server_hostname="late.example", do_handshake_on_connect=False
    )
    with pytest.raises(ssl.SSLWantReadError):
        secure.do_handshake()
    watch.asked()
    secure.close()


def test_a_host_that_looks_like_an_allowed_one_is_marked(
    namespace: Namespace, rig: Rig, server: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all that is said of it: a question that lapsed can still be answered. The names are
    compared once (I12)."""
    compared: list[str] = []

    def marks(host: str, book: Policy) -> tuple[str, ...]:
        compared.append(host)
        return host_marks(host, book)

    monkeypatch.setattr(asking, "host_marks", marks)
    handle, watch = rig.open(
        namespace.door, policy("example.org", more=SHORT, **{"examp1e.org:9000": server.address})
    )
    ask_for(namespace, "examp1e.org")
    (notice,) = watch.asked()
    watch.until("unanswered", port=PORT)
    answer(rig, handle, notice.ask.id, Answer.NO)
    until(lambda: [each.reason for each in watch.notices] == ["held", "unanswered", "not-approved"])
    assert {each.marks for each in watch.notices} == {("the name looks like example.org",)}
    assert compared == ["examp1e.org"]


def test_a_lapsed_question_that_is_forgotten_is_announced(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    """Otherwise lists of questions show what nobody can answer, in place of those that wait."""
    few = SHORT + "most_pending = 1\n"
    handle, watch = rig.open(namespace.door, tunnelled(server, few))
    ask_for(namespace, "one.example")
    watch.until("unanswered", port=PORT)
    (lapsed,) = (each for each in watch.notices if each.reason == "unanswered")
    assert lapsed.ask.state == "lapsed"
    talk = ask_for(namespace, "two.example")
    watch.asked(2)
    (gone,) = (each for each in watch.notices[2:] if each.reason == "unanswered")
    assert (gone.ask.id, gone.ask.state) == (lapsed.ask.id, "pending")
    with pytest.raises(Refused):
        answer(rig, handle, lapsed.ask.id, Answer.ONCE)
    talk.close()


def test_another_policy_leaves_what_waits(namespace: Namespace, rig: Rig, server: Origin) -> None:
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    text = policy("new.example", more=ASK, **{f"late.example:{PORT}": server.address})
    session = rig.session(watch, text)
    rig.call(lambda: handle.change(session))
    answer(rig, handle, notice.ask.id, Answer.ONCE)
    assert talk.exactly(1) == b"x"
    rig.call(lambda: handle.change(rig.session(watch, tunnelled(server))))
    talk.send(b"y")
    assert talk.exactly(1) == b"y"  # a person allowed this very connection
    talk.close()


# ── requests ──────────────────────────────────────────────────────────────────────────────────────

OWN = service("own", "ok.example", allow="GET /free/**", more='deny = ["* /free/no"]')


@pytest.fixture
def inspected(stage: Stage, origin: Make, tls: ssl.SSLContext) -> Origin:
    server = origin(Service(lambda message: ok(message.body or b"done")), tls)
    stage.open(OWN + ASK, ok_example=server)
    return server


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: ok.example\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def first(stage: Stage) -> AskNotice:
    return stage.watch.asked()[0]


def test_a_request_that_no_rule_names_waits_and_nothing_of_it_was_sent(
    stage: Stage, inspected: Origin
) -> None:
    talk = stage.ask(post("/v1/things?x=1", b"body"))
    notice = first(stage)
    assert notice.ask.subject.rule == "POST /v1/things"
    assert notice.ask.subject.service == "own"
    assert inspected.connections == 0
    answer(stage.rig, stage.handle, notice.ask.id, Answer.SESSION)
    assert talk.answer().body == b"body"
    again = stage.ask(post("/v1/things", b"more"))
    assert again.answer().body == b"more"
    event = stage.watch.until("approved", path="/v1/things", method="POST")
    assert (event.rule, dict(event.details)["service"]) == (f"asks.{notice.ask.id}", "own")
    other = stage.ask(post("/v1/other", b"z"))  # the yes was for this path alone
    stage.watch.asked(2)
    other.close()


def test_once_is_for_one_of_the_requests_that_wait(stage: Stage, inspected: Origin) -> None:
    """I3: the person was asked about one."""
    talks = [stage.ask(post("/v1/things", b"body")) for _ in range(3)]
    asking = stage.handle.asking if stage.handle else None
    assert asking is not None
    until(lambda: [each.waiting for each in stage.rig.call(asking.views)] == [3])
    answer(stage.rig, stage.handle, first(stage).ask.id, Answer.ONCE)
    _, again = stage.watch.asked(2)
    stage.watch.until("approved", path="/v1/things")
    assert (again.waiting, again.ask.subject) == (2, first(stage).ask.subject)
    answer(stage.rig, stage.handle, again.ask.id, Answer.NO)
    assert sorted(talk.answer().status for talk in talks) == [200, 403, 403]


def test_a_refused_request_gets_its_answer_and_the_connection_goes_on(
    stage: Stage, inspected: Origin
) -> None:
    talk = stage.ask(get("/other"), get("/free/x"))
    answer(stage.rig, stage.handle, first(stage).ask.id, Answer.NO)
    refused = talk.answer()
    assert (refused.status, b"not-approved" in refused.body) == (403, True)
    assert talk.answer().body == b"done"


@pytest.mark.parametrize(
    ("path", "reason"), [("/free/no", b"denied-by-rule"), ("/x%2Fy", b"path-malformed")]
)
def test_what_the_policy_denies_by_name_is_not_asked_about(
    stage: Stage, inspected: Origin, path: str, reason: bytes
) -> None:
    assert reason in stage.ask(get(path)).answer().body
    assert stage.watch.notices == []


def test_a_client_that_leaves_is_seen_and_its_question_stays(
    stage: Stage, inspected: Origin
) -> None:
    talk = stage.ask(get("/other"))
    notice = first(stage)
    talk.close()
    stage.watch.until("client-left", path="/other")
    answer(stage.rig, stage.handle, notice.ask.id, Answer.ONCE)
    assert stage.ask(get("/other")).answer().body == b"done"
    assert inspected.connections == 1


def test_a_request_under_way_that_a_person_approved_survives_another_policy(
    stage: Stage, inspected: Origin
) -> None:
    talk = stage.ask(get("/other"))
    notice = first(stage)
    stage.change(OWN + ASK + '[egress]\nallow = ["new.example"]\n', ok_example=inspected)
    answer(stage.rig, stage.handle, notice.ask.id, Answer.ONCE)
    assert talk.answer().body == b"done"


def test_a_policy_that_denies_it_by_now_wins_over_the_answer(
    stage: Stage, inspected: Origin
) -> None:
    """I3."""
    talk = stage.ask(get("/other"))
    notice = first(stage)
    closed = OWN.replace('deny = ["* /free/no"]', 'deny = ["* /other"]')
    stage.change(closed + ASK, ok_example=inspected)
    answer(stage.rig, stage.handle, notice.ask.id, Answer.ONCE)
    assert b"denied-by-rule" in talk.answer().body


def test_a_request_of_http2_waits_alone(stage: Stage, inspected: Origin) -> None:
    """The other streams of its connection go on."""
    context = stage.client_context()
    context.set_alpn_protocols(["h2"])
    listener = Listener()
    heard: list[str] = []
    with context.wrap_socket(
        stage.namespace.connect("ok.example"), server_hostname="ok.example"
    ) as secure:

        def hears(word: str) -> bool:
            heard.extend(listener.hears(secure.recv(65536)))
            return any(each.startswith(word) for each in heard)

        asked = http2.get(1, path="/other") + http2.get(3, path="/free/x")
        secure.sendall(http2.PREFACE + http2.settings() + asked)
        notice = first(stage)
        until(lambda: hears("3 HEADERS"))
        assert not any(each.startswith("1 ") for each in heard)
        answer(stage.rig, stage.handle, notice.ask.id, Answer.ONCE)
        until(lambda: hears("1 HEADERS"))


def test_questions_over_the_bound_leave_the_rest_as_quick(stage: Stage, inspected: Origin) -> None:
    """I9: what is over the bound is refused at once, and a rule's own requests pass."""
    talk = stage.visit()
    for number in range(60):
        each = stage.visit()
        each.send(get(f"/q/{number}"))
    stage.watch.until("too-many-asked")
    talk.send(get("/free/x"))
    assert talk.answer().body == b"done"
    asking = stage.handle.asking if stage.handle else None
    assert asking is not None
    assert len(stage.rig.call(asking.views)) == 32


def test_requests_that_wait_count_as_under_way(
    stage: Stage, origin: Make, tls: ssl.SSLContext
) -> None:
    """I9: otherwise answers admit more at once than the policy says."""
    server = origin(Service(lambda message: ok(b"done")), tls)
    stage.open(OWN + ASK, AMPLE + "concurrent_requests = 2\n", ok_example=server)
    talks = [stage.ask(get(f"/q/{number}")) for number in range(2)]
    notices = stage.watch.asked(2)
    refused = stage.ask(get("/q/2")).answer()
    assert (refused.status, b"over-limit" in refused.body) == (429, True)
    answer(stage.rig, stage.handle, notices[0].ask.id, Answer.ONCE)
    answer(stage.rig, stage.handle, notices[1].ask.id, Answer.NO)
    assert sorted(talk.answer().status for talk in talks) == [200, 403]
    # Both places are free again.
    assert [stage.ask(get("/free/x")).answer().body for _ in range(2)] == [b"done"] * 2
    talks = [stage.ask(get(f"/r/{number}")) for number in range(2)]
    stage.watch.asked(4)
    for talk in talks:
        talk.close()
    stage.watch.until("client-left", path="/r/0")
    stage.watch.until("client-left", path="/r/1")
    assert stage.ask(get("/free/x")).answer().body == b"done"


def test_an_approved_request_does_not_pass_while_the_log_cannot_be_written(
    stage: Stage, inspected: Origin
) -> None:
    """I8; control: the next one passes."""
    talk = stage.ask(get("/other"))
    notice = first(stage)
    stage.watch.admitting = False
    answer(stage.rig, stage.handle, notice.ask.id, Answer.SESSION)
    refused = talk.answer()
    assert (refused.status, b"not-admitting" in refused.body) == (503, True)
    assert inspected.connections == 0
    stage.watch.admitting = True
    assert stage.ask(get("/other")).answer().body == b"done"


def test_an_approved_connection_is_not_dialled_while_the_log_cannot_be_written(
    namespace: Namespace, rig: Rig, server: Origin
) -> None:
    """I8; control: the next one is."""
    handle, watch = rig.open(namespace.door, tunnelled(server))
    talk = ask_for(namespace)
    (notice,) = watch.asked()
    watch.admitting = False
    answer(rig, handle, notice.ask.id, Answer.SESSION)
    watch.until("not-admitting", port=PORT)
    assert b"x" not in heard_until_end(talk)
    assert server.connections == 0
    watch.admitting = True
    assert ask_for(namespace).exactly(1) == b"x"


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────

PRICED = (
    '[services.own]\nuse = "model"\nhosts = ["ok.example"]\nsecret = "file:/nowhere"\n'
    'inject = { header = "Authorization", value = "Bearer {secret}" }\nallow = ["POST /free/**"]\n'
    'prices = { "*" = { input = "1 USD", output = "1 USD" } }\n'
    'budget = { session = "4 USD", ask = "50%" }\n'
)


@pytest.fixture
def billed(stage: Stage, origin: Make, tls: ssl.SSLContext) -> Service:
    """Every answer costs a dollar."""
    said = b'{"model":"m","usage":{"prompt_tokens":1000000,"completion_tokens":0}}'
    served = Service(lambda _: ok(said, b"Content-Type: application/json"))
    stage.open(PRICED + ASK, ok_example=origin(served, tls))
    return served


def buy(stage: Stage) -> Talk:
    return stage.ask(post("/free/x", b"{}"))


def test_a_share_of_a_budget_asks_and_its_end_stops(stage: Stage, billed: Service) -> None:
    """A yes for the session goes on to the hard line, which nobody is asked about."""
    for _ in range(2):
        assert buy(stage).answer().status == 200
    held = buy(stage)
    notice = first(stage)
    subject = notice.ask.subject
    assert (subject.kind, subject.rule) == ("budgets", "services.own.budget.session")
    assert subject.path == "2 USD of 4 USD"
    assert len(billed.seen) == 2  # nothing of it was sent
    answer(stage.rig, stage.handle, notice.ask.id, Answer.SESSION)
    assert held.answer().status == 200
    assert buy(stage).answer().status == 200
    over = buy(stage).answer()
    assert (over.status, b"over-budget" in over.body) == (403, True)
    assert len(stage.watch.asked()) == 1


def test_once_buys_one_answer_and_no_buys_none(stage: Stage, billed: Service) -> None:
    for _ in range(2):
        buy(stage).answer()
    held = buy(stage)
    answer(stage.rig, stage.handle, first(stage).ask.id, Answer.ONCE)
    assert held.answer().status == 200
    again = buy(stage)
    answer(stage.rig, stage.handle, stage.watch.asked(2)[1].ask.id, Answer.NO)
    refused = again.answer()
    assert (refused.status, b"not-approved" in refused.body) == (403, True)
    assert b"not-approved" in buy(stage).answer().body  # quiet for a while
    assert len(billed.seen) == 3


def test_a_request_that_no_rule_names_and_that_costs_is_asked_about_twice(
    stage: Stage, billed: Service
) -> None:
    """A yes to the one is no yes to the other."""
    for _ in range(2):
        buy(stage).answer()
    held = stage.ask(post("/closed", b"{}"))
    assert first(stage).ask.subject.kind == "requests"
    answer(stage.rig, stage.handle, first(stage).ask.id, Answer.SESSION)
    second = stage.watch.asked(2)[1]
    assert second.ask.subject.kind == "budgets"
    assert len(billed.seen) == 2
    answer(stage.rig, stage.handle, second.ask.id, Answer.ONCE)
    assert held.answer().status == 200
