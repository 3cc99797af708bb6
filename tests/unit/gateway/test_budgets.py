"""A service's own limits and its budget in a session hold, whoever asks and however (I9)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from keyhole.gateway.session import INDEX_BURST
from keyhole.inject.preset import Preset, PresetHost
from keyhole.model.host import HostPattern
from keyhole.policy.budget import PeriodSpending
from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.frames import OFFER, frame, right
from tests.rigs.gateway.stage import ALL, AMPLE, BEARER, SECRET, service
from tests.rigs.gateway.talk import Message, get, head, ok

JSON = b"Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
CHUNK = b"400\r\n" + bytes(1024) + b"\r\n"


def own(more: str, limits: str = AMPLE) -> Conversation:
    return Conversation(service("own", "ok.example", more=more), limits)


def model(budget: str, *, kept: bool = True) -> Conversation:
    """A language model's service, by the catalogue's entry."""
    text = f'[services.own]\nuse = "model"\nhosts = ["ok.example"]\ninject = {BEARER}\n'
    text += 'secret = "file:/nowhere"\n' if kept else ""
    text += f'allow = ["{ALL}", "WEBSOCKET /v1/responses"]\nbudget = {{ {budget} }}\n'
    return Conversation(text, secrets={"own": SECRET} if kept else {})


def used(talk: Conversation) -> dict[str, int]:
    """What was used of each budget of the service."""
    return {use.name.rpartition(".")[2]: use.used for use in talk.state.budgets()}


def post(path: str, body: bytes = b"{}", *lines: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def status(talk: Conversation, request: bytes, reply: bytes = ok()) -> int:
    """How a request ends, which the origin answers so if it comes there."""
    return (talk.told(reply) if talk.asks(request) else talk.answer()).status


def over_budget(answer: Message, name: str) -> None:
    """It is refused for good, and says by what."""
    told = json.loads(answer.body)
    assert (answer.status, told["retry"], answer.one("retry-after")) == (403, False, None)
    assert (told["reason"], told["rule"]) == ("over-budget", f"services.own.budget.{name}")


@pytest.mark.parametrize("whose", ["services.own", "limits"])
def test_a_rate_can_be_waited_for(whose: str) -> None:
    line = "requests_per_second = 2\n"
    talk = own(line) if whose != "limits" else own("", line)
    assert [status(talk, get("/a")) for _ in range(2)] == [200, 200]
    talk.asks(get("/a"))
    answer = talk.answer()
    told = json.loads(answer.body)
    assert (answer.status, told["rule"], told["retry"]) == (
        429,
        f"{whose}.requests_per_second",
        True,
    )
    assert answer.one("retry-after") == "1"
    talk.clock.now += 1
    assert status(talk, get("/a")) == 200


def test_a_package_index_has_a_burst_that_ends() -> None:
    """An install asks for every package at once. Controls: a service of the same host, which is
    no index alone then, and the rate afterwards (I9)."""
    index = Preset("python", (PresetHost(HostPattern.parse("ok.example")),))
    line = "requests_per_second = 2\n"
    both = Conversation(service("own", "ok.example"), line, presets=(index,))
    assert [status(both, get("/a")) for _ in range(3)] == [200, 200, 429]
    talk = Conversation("", line, secrets={}, presets=(index,))
    assert {status(talk, get("/a")) for _ in range(2 * INDEX_BURST)} == {200}
    assert status(talk, get("/a")) == 429
    assert talk.audit[-1].rule == "limits.requests_per_second"
    talk.clock.now += 1
    assert [status(talk, get("/a")) for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("whose", ["services.own", "limits"])
@pytest.mark.parametrize("how", ["answered", "client left", "origin left", "nonsense", "bad chunk"])
def test_a_place_among_concurrent_requests_is_free_again_however_a_request_ends(
    whose: str, how: str
) -> None:
    """Attack: have places leak, so that a neighbour in the same sandbox finds none; or the other
    way round, have them freed twice, so that there is no limit."""
    line = "concurrent_requests = 1\n"
    talk = own(line) if whose != "limits" else own("", AMPLE + line)
    for _ in range(2):
        waiting = talk.beside()
        assert waiting.asks(head("POST", "/wait", CHUNKED))
        assert status(talk, get("/a")) == 429
        assert talk.audit[-1].rule == f"{whose}.concurrent_requests"
        origin = waiting.peer
        assert origin is not None
        match how:
            case "answered":
                # A second request on the connection waits its turn, and finds a place.
                waiting.asks(b"0\r\n\r\n" + get("/behind"))
                assert waiting.told(ok()).status == 200
                assert waiting.told(ok()).status == 200
            case "client left":
                waiting.client.ends()
            case "origin left":
                origin.ends()
            case "nonsense":
                origin.says(b"nonsense\r\n\r\n")
            case _:
                waiting.client.says(b"zz\r\n")
        assert talk.state.busy == 0


def test_an_endpoint_has_a_size_of_its_own() -> None:
    more = 'bodies = { "POST /v1/files" = "64KiB", "POST /v1/small/**" = "1KiB" }'
    chunks = CHUNK * 2 + b"0\r\n\r\n"
    rows = [(post("/v1/files", bytes(60_000)), ""), (post("/v1/small/x", bytes(1024)), "")]
    rows += [(post("/v1/other", bytes(10_000)), "")]
    rows += [(post("/v1/other", bytes(11_000)), "services.own.allow[0]")]
    rows += [(head("POST", "/v1/files", CHUNKED) + CHUNK * 28 + chunks, "")]
    for path in ("/v1/small/x", "/V1/Small/x", "/v1/sm%61ll/x"):
        for sent in (post(path, bytes(1025)), head("POST", path, CHUNKED) + chunks):
            rows.append((sent, "services.own.bodies"))
    for sent, by in rows:
        talk = own(more, f'{AMPLE}body = "10KiB"')
        talk.client.says(sent)
        if by:
            answer = talk.answer()
            assert (answer.status, json.loads(answer.body)["rule"]) == (413, by)
        else:
            assert talk.told(ok()).status == 200


def test_bytes_over_a_budget_or_a_sessions_limit_are_refused_or_cut() -> None:
    for whose in ("services.own.budget", "limits"):
        sizes = ['upload = "20KiB"', 'download = "30KiB"']
        more = f"budget = {{ {', '.join(sizes)} }}" if whose != "limits" else ""
        talk = own(more, AMPLE + "\n".join(sizes) if whose == "limits" else AMPLE)
        assert status(talk, post("/a", bytes(15_000))) == 200
        if whose != "limits":
            talk.asks(post("/a", bytes(15_000)))
            over_budget(talk.answer(), "upload")
            talk = talk.beside()
        talk.client.says(head("POST", "/a", CHUNKED) + CHUNK * 8)
        assert talk.client.ended == "aborted"
        assert f"{whose}.upload" in [event.rule for event in talk.audit]
        assert talk.state.up <= 36_000
        talk = talk.beside()
        assert status(talk, get("/down"), ok(bytes(20_000))) == 200
        talk.client.says(get("/down"))
        talk.origins[-1].says(ok(bytes(20_000)))
        assert talk.client.ended == "aborted"
        assert f"{whose}.download" in [event.rule for event in talk.audit]


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


def events(*objects: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in objects)


def streamed(body: bytes) -> bytes:
    """A stream in small chunks."""
    pieces = [body[at : at + 11] for at in range(0, len(body), 11)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    fields = b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked"
    return b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b0\r\n\r\n" % (fields, chunks)


USAGE = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
MUTE = streamed(events(*[{"choices": [{"delta": {"content": "hi"}}]}] * 20))


@pytest.mark.parametrize(
    ("method", "reply", "tokens"),
    [
        ("POST", ok(json.dumps({"choices": [], "usage": USAGE}).encode(), JSON), 42),
        ("POST", streamed(events({"usage": None}, {"choices": [], "usage": USAGE})), 42),
        # 400 bytes were asked: a hundred tokens; and one for each event, or for each four bytes.
        ("POST", MUTE, 120),
        ("POST", ok(b'{"status": "queued", "usage": null}', JSON), 108),
        ("POST", ok(b'{"input_tokens": 900}', JSON), 0),
        ("POST", ok(b'{"error": "overloaded"}', JSON, status=b"529 Overloaded"), 0),
        ("GET", ok(b'{"data": []}', JSON), 0),
    ],
    ids=["JSON", "stream", "mute", "later", "count", "error", "models"],
)
def test_tokens_are_counted_as_answers_say_or_by_their_size(
    method: str, reply: bytes, tokens: int
) -> None:
    """A spent budget refuses the next request."""
    talk = model(f"tokens = {tokens or 1}")
    ask = get("/a") if method == "GET" else post("/a", b'"' + b"x" * 398 + b'"')
    assert status(talk, ask, reply) in (200, 529)
    assert used(talk) == {"tokens": tokens}
    assert bool(talk.asks(post("/v1/messages"))) is not bool(tokens)
    if tokens:
        over_budget(talk.answer(), "tokens")


def test_a_client_that_leaves_before_a_stream_says_its_tokens_pays_by_its_size() -> None:
    """Attack: take the text, leave before the last event, and the budget never ends."""
    talk = model("tokens = 100")
    leaving = talk.beside()
    leaving.client.says(post("/v1/messages", b"x" * 400))
    talk.origin.says(MUTE[: MUTE.rindex(b"data:")])
    assert b"hi" in leaving.client.heard()
    leaving.client.ends()
    assert used(talk)["tokens"] > 100
    talk.asks(post("/v1/messages"))
    over_budget(talk.answer(), "tokens")


@pytest.mark.parametrize(
    ("budget", "encoding"), [("tokens = 9", b"identity"), ("requests = 9", b"br")]
)
def test_an_answer_that_is_counted_is_asked_for_as_it_can_be_read(
    budget: str, encoding: bytes
) -> None:
    """Also where there is no secret that it would be searched for."""
    talk = model(budget, kept=False)
    heard = talk.asks(post("/a", b"{}", "Accept-Encoding: br", "Range: bytes=0-9"))
    assert b"Accept-Encoding: %b\r\n" % encoding in heard
    assert (b"Range" in heard) is (encoding == b"br")


def test_a_websocket_that_has_used_up_its_tokens_is_cut() -> None:
    """No further request would come to be refused."""
    talk = model("tokens = 80")
    talk.asks(get("/v1/responses", *OFFER))
    assert talk.told(right()).status == 101
    done = {"type": "response.completed", "response": {"usage": USAGE, "id": "x" * 100}}
    delta = {"type": "response.output_text.delta", "delta": "y" * 130}
    said = frame(json.dumps(delta).encode()) + frame(json.dumps(done).encode())
    for tokens, ended in ((42, ""), (84, "aborted")):
        talk.client.says(b"\x81\x80\0\0\0\0")
        talk.origin.says(said[:200], said[200:])
        assert (used(talk), talk.client.ended) == ({"tokens": tokens}, ended)
    assert talk.client.heard().startswith(said)
    assert "services.own.budget.tokens" in [event.rule for event in talk.audit]


# ── money ─────────────────────────────────────────────────────────────────────────────────────────

PRICES = (
    '"m-1" = { input = "1 USD", output = "2 USD" }, "m-2" = { input = "5 USD", output = "5 USD" }'
)


def priced(budget: str, *, kept: bool = True) -> Conversation:
    """The same with prices."""
    text = f'[services.own]\nuse = "model"\nhosts = ["ok.example"]\ninject = {BEARER}\n'
    text += 'secret = "file:/nowhere"\n' if kept else ""
    text += f'allow = ["{ALL}", "WEBSOCKET /v1/responses"]\nprices = {{ {PRICES} }}\n'
    text += f"budget = {{ {budget} }}\n" if budget else ""
    return Conversation(text, secrets={"own": SECRET} if kept else {})


def said(model: str, tokens: int, output: int = 0) -> bytes:
    usage = {"prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output}
    return ok(json.dumps({"model": model, "usage": usage}).encode(), JSON)


def test_money_ends_with_the_request_after_the_one_that_crossed_the_line() -> None:
    """The response that crosses it is passed on whole: the provider has billed it by then."""
    talk = priced('session = "3 USD"')
    assert status(talk, post("/v1/x"), said("m-1", 1_000_000)) == 200
    assert used(talk) == {"session": 10**9}
    assert status(talk, post("/v1/x"), said("m-2", 600_000)) == 200
    assert used(talk) == {"session": 4 * 10**9}
    talk.asks(post("/v1/x"))
    over_budget(talk.answer(), "session")
    details = dict(talk.audit[1].details)
    assert (talk.audit[1].kind, details["model"], details["nano_usd"]) == ("usage", "m-1", 10**9)
    assert (details["tokens"], details["input"], details["output"]) == (1_000_000, 1_000_000, 0)


def test_what_is_spent_is_counted_without_a_budget_and_told_to_the_account() -> None:
    talk = priced("")
    told: list[tuple[str, int]] = []
    session = replace(talk.state.session, spend=lambda name, spent: told.append((name, spent)))
    talk.state.session = session
    for _ in range(2):
        assert status(talk, post("/v1/x"), said("m-1", 10, 5)) == 200
    # Sums, not differences: a report that is lost changes nothing.
    assert told == [("own", 20_000), ("own", 40_000)]
    assert (talk.state.figures.spent, talk.state.figures.unpriced) == (40_000, 0)


def test_a_model_without_a_price_is_counted_dearer_than_all_and_told_once() -> None:
    talk = priced('session = "100 USD"')
    for _ in range(2):
        assert status(talk, post("/v1/x"), said("m-new", 1_000_000)) == 200
    assert used(talk) == {"session": 20 * 10**9}  # twice the dearest
    assert talk.state.figures.unpriced == 2_000_000
    assert dict(talk.audit[-1].details)["price"] == "unknown"
    lines = [each for each in talk.lines if "price of model m-new" in each]
    assert len(lines) == 1
    assert '"m-new" = { input' in lines[0]


def test_a_stream_that_is_left_early_costs_what_it_would_have_at_least() -> None:
    """Attack: leave before the last event, which alone has the report."""
    talk = priced('session = "1 USD"')
    body = b'data: {"model":"m-1"}\n\n' * 3
    talk.asks(post("/v1/x", bytes(4000)))
    origin = talk.peer
    assert origin is not None
    origin.says(head_of_stream() + chunk(body))
    talk.client.ends()
    assert used(talk) == {"session": 1000 * 1000 + 3 * 2000}
    (event,) = [each for each in talk.audit if each.kind == "usage"]
    assert dict(event.details)["estimated"] == "yes"


def head_of_stream() -> bytes:
    kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    return b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def test_a_budget_of_a_day_is_closed_until_somebody_says_what_was_spent() -> None:
    talk = priced('day = "3 USD"')
    talk.asks(post("/v1/x"))
    answer = talk.answer()
    assert json.loads(answer.body)["reason"] == "spending-unknown"
    talk = talk.beside()
    talk.state.know_spending({"own": PeriodSpending(day=2 * 10**9), "gone": PeriodSpending()})
    assert status(talk, post("/v1/x"), said("m-1", 1_000_000)) == 200
    talk.asks(post("/v1/x"))
    answer = talk.answer()
    over_budget(answer, "day")
    assert "used up today (UTC)" in json.loads(answer.body)["why"]


def test_a_soft_line_without_anyone_to_ask_is_the_end() -> None:
    """I3: silence is no."""
    talk = priced('session = "4 USD", ask = "50%"')
    assert status(talk, post("/v1/x"), said("m-1", 2_000_000)) == 200
    talk.asks(post("/v1/x"))
    over_budget(talk.answer(), "session")


def test_tokens_of_a_host_whose_answers_nobody_reads_are_not_guessed() -> None:
    """Without a secret and a budget its answers may be encoded. Control: with a budget they are
    read."""
    talk = priced("", kept=False)
    assert status(talk, post("/v1/x"), said("m-1", 10)) == 200
    assert not [each for each in talk.audit if each.kind == "usage"]
    counted = priced('session = "1 USD"', kept=False)
    assert status(counted, post("/v1/x"), said("m-1", 10)) == 200
    assert used(counted) == {"session": 10_000}
