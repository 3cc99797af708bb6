"""Bodies are collected, judged, and sent as they were read, rewritten, answered or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.gateway import body_judges
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.policy.body import AnswerRewriter, BodyJudge, BodyJudgement, refuse_unjudged
from tests.rigs.gateway.conversation import Conversation
from tests.rigs.gateway.frames import OFFER, PING, frame, masked, right
from tests.rigs.gateway.stage import service
from tests.rigs.gateway.talk import get, head, ok

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import Service, ServiceHost


class Upper(AnswerRewriter):
    """Reads what is JSON, and writes it in capitals."""

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        return fields.get("content-type") == "application/json"

    def feed(self, piece: bytes) -> bytes:
        return piece.upper()

    def end(self) -> bytes:
        return b"!"


class Words(BodyJudge):
    """Does what the member `do` says."""

    fields = frozenset({"x-beta"})
    reads_answers = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BodyFacts] = []

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        return path.segments[:1] == ("judged",)

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        self.seen.append(facts)
        if facts.word == "WEBSOCKET":
            return BodyJudgement(facts.decision)
        if facts.word == "GET":
            return BodyJudgement(facts.decision, reader=Upper())
        if facts.flaw or not isinstance(facts.json, dict):
            return refuse_unjudged(facts, "send JSON")
        match facts.json["do"]:
            case "send":
                return BodyJudgement(facts.decision)
            case "rewrite":
                return BodyJudgement(facts.decision, body=b"{}")
            case "answer":
                said = RequestDecision(Verdict.DENY, Reason.FEATURE_CLOSED, "rule[1]", "own")
                return BodyJudgement(said, "a tool", answer=b'{"no": 1}', status=200)
            case _:
                said = RequestDecision(Verdict.DENY, Reason.FEATURE_CLOSED, "rule[0]", "own")
                return BodyJudgement(said, "web-search is closed")


class Messages(Words):
    """Judges messages, too."""

    def judge_message(self, facts: BodyFacts) -> BodyJudgement:
        return self.judge(replace(facts, word="POST"))


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> list[Words]:
    """Every judge that was made."""
    made: list[Words] = []

    def make(_: Service) -> BodyJudge:
        made.append(Messages())
        return made[-1]

    monkeypatch.setattr(body_judges, "make_judge", make)
    return made


JSON = "Content-Type: application/json"


def talk() -> Conversation:
    return Conversation(service("own", "ok.example", allow="* /**"))


def post(path: str, body: bytes, *lines: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def said(do: str, more: str = "") -> bytes:
    return json.dumps({"do": do, "more": more}).encode()


def test_an_allowed_body_is_sent_as_it_was_read(judges: list[Words]) -> None:
    one, body = talk(), b' {"do":  "s\\u0065nd"} '
    heard = one.asks(post("/judged", body, JSON, "X-Beta: a", "X-Beta: b"))
    assert heard.endswith(b"\r\n\r\n" + body)
    assert judges[0].seen[0].fields == {"content-type": "application/json", "x-beta": "a, b"}
    assert one.told(ok(b"fine")).status == 200
    assert one.reasons == ["rule"]


def test_a_refused_body_is_not_sent_and_the_connection_goes_on(judges: list[Words]) -> None:
    one = talk()
    assert one.asks(post("/judged", said("no"), JSON)) == b""
    answer = one.answer("POST")
    assert answer.status == 403
    assert json.loads(answer.body)["why"] == "web-search is closed"
    assert json.loads(answer.body)["reason"] == "feature-closed"
    assert (one.reasons, one.audit[0].rule) == (["feature-closed"], "rule[0]")
    assert dict(one.audit[0].details)["why"] == "web-search is closed"
    assert one.asks(post("/judged", said("send"), JSON)) != b""


def test_a_body_may_be_rewritten_or_answered(judges: list[Words]) -> None:
    one = talk()
    heard = one.asks(post("/judged", said("rewrite"), JSON))
    assert heard.endswith(b"\r\n\r\n{}")
    assert b"content-length: 2\r\n" in heard.lower()
    assert one.told(ok(b"fine")).status == 200
    assert one.asks(post("/judged", said("answer"), JSON)) == b""
    answer = one.answer("POST")
    assert (answer.status, answer.body) == (200, b'{"no": 1}')
    assert one.reasons == ["rule", "feature-closed"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Type: text/plain"],
        [JSON, "Content-Encoding: gzip"],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: application/json; charset=utf-16"],
    ],
    ids=["a type that lies", "encoded", "parts", "another charset"],
)
def test_a_body_that_cannot_be_read_is_refused(judges: list[Words], lines: list[str]) -> None:
    """I3."""
    one = talk()
    assert one.asks(post("/judged", said("send"), *lines)) == b""
    assert (one.answer("POST").status, one.reasons) == (403, ["body-unjudged"])


def test_a_body_without_a_type_is_read_as_json_or_refused_i3(judges: list[Words]) -> None:
    """As boto3 sends it. What is not JSON is not sent, nor is JSON that the judge refuses."""
    one = talk()
    assert one.asks(post("/judged", said("send"))) != b""
    assert one.told(ok(b"fine")).status == 200
    for body in (b"word=send", said("no")):
        assert one.asks(post("/judged", body)) == b""
        assert one.answer("POST").status == 403
    assert one.reasons == ["rule", "body-unjudged", "feature-closed"]


def test_a_long_body_waits_in_a_file_and_is_sent_whole(judges: list[Words]) -> None:
    one, body = talk(), said("send", "x" * (2 << 20))
    heard = one.asks(post("/judged", body, JSON))
    assert heard.endswith(body)
    assert one.told(ok(b"fine")).status == 200
    assert (one.state.gathered, one.state.quarantined) == (0, 0)
    assert one.asks(post("/judged", said("no", "x" * (2 << 20)), JSON)) == b""
    assert one.answer("POST").status == 403
    assert (one.state.gathered, one.state.quarantined) == (0, 0)


def test_requests_that_the_judge_does_not_want_are_streamed(judges: list[Words]) -> None:
    one = talk()
    assert one.asks(post("/other", b"anything")).endswith(b"anything")
    assert judges[0].seen == []


def test_a_response_is_read_and_rewritten_also_without_a_body(judges: list[Words]) -> None:
    one = talk()
    heard = one.asks(get("/judged", "Accept-Encoding: gzip"))
    assert b"accept-encoding: identity\r\n" in heard.lower()
    assert one.told(ok(b"fine", b"Content-Type: application/json")).body == b"FINE!"
    one.asks(get("/judged"))
    assert one.told(ok(b"fine", b"Content-Type: text/plain")).body == b"fine"


def test_bodies_that_are_collected_are_judged_by_the_new_policy(judges: list[Words]) -> None:
    one, body = talk(), said("send")
    request = post("/judged", body, JSON)
    one.client.says(request[:-1])
    one.change(service("own", "ok.example", allow="POST /**"))
    assert one.asks(request[-1:]).endswith(body)
    assert [len(judge.seen) for judge in judges] == [0, 1]


def test_a_judge_stays_while_its_service_is_the_same(judges: list[Words]) -> None:
    one = talk()
    one.change(service("own", "ok.example", allow="* /**"))
    assert len(judges) == 1
    one.change(service("own", "ok.example", allow="GET /**"))
    assert len(judges) == 2


def test_a_response_whose_reader_is_the_old_judges_is_cut(judges: list[Words]) -> None:
    one = talk()
    one.asks(get("/judged"))
    one.change(service("own", "ok.example", allow="GET /**"))
    assert one.reasons == ["policy-changed"]


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────


def shaken() -> Conversation:
    """A conversation that has become a WebSocket."""
    one = Conversation(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    one.client.says(get("/judged", *OFFER))
    assert one.told(right()).status == 101
    one.origin.heard()
    return one


def test_an_allowed_message_passes_as_it_came(judges: list[Words]) -> None:
    """Over fragments, and control frames between them; in pieces of any size."""
    one, ping = shaken(), masked(b"ping", PING)
    text = said("send")
    first, second = masked(text[:5], final=False), masked(text[5:], 0, key=b"abcd")
    one.client.says(first + ping)
    assert one.origin.heard() == ping
    one.client.says(*(second[n : n + 1] for n in range(len(second))))
    assert one.origin.heard() == first + second
    one.client.says(masked(text) + masked(text))
    assert one.origin.heard() == masked(text) * 2
    assert one.reasons == ["rule"]


def test_a_refused_message_closes_the_websocket_and_says_why(judges: list[Words]) -> None:
    one = shaken()
    one.client.says(masked(said("send")), masked(said("no")) + masked(said("send")))
    assert one.origin.heard() == masked(said("send"))
    assert one.client.heard() == b"\x88\x1f\x03\xf0keyhole: web-search is closed"
    assert one.client.ended == "closed"
    assert one.reasons == ["rule", "feature-closed"]
    assert one.state.gathered == 0


def test_a_message_that_is_no_text_or_no_json_is_refused(judges: list[Words]) -> None:
    """I3."""
    for bad in (masked(said("send"), 2), masked(b"x"), masked(b'{"do":"send","do":"send"}')):
        one = shaken()
        one.client.says(bad)
        assert one.origin.heard() == b""
        assert one.reasons == ["rule", "body-unjudged"]


def test_within_a_frame_of_the_origin_a_refusal_is_a_reset(judges: list[Words]) -> None:
    one = shaken()
    one.origin.says(frame(b"x" * 100)[:50])
    one.client.heard()
    one.client.says(masked(said("no")))
    assert (one.client.heard(), one.client.ended) == (b"", "aborted")


def test_a_message_may_be_rewritten(judges: list[Words]) -> None:
    one = shaken()
    one.client.says(masked(said("rewrite")))
    assert one.origin.heard() == b"\x81\x82\0\0\0\0{}"


def test_many_frames_of_one_read_are_judged_in_several_turns(judges: list[Words]) -> None:
    """I12."""
    one, frames = shaken(), masked(b"", PING) * 600 + masked(said("send"))
    one.client.says(frames)
    assert one.origin.heard() == frames


def long_frame(text: bytes) -> bytes:
    return b"\x81\xff" + len(text).to_bytes(8, "big") + b"\0\0\0\0" + text


def test_a_long_message_is_judged_in_slices(judges: list[Words]) -> None:
    one, text = shaken(), said("send", "x" * (1 << 20))
    one.client.says(long_frame(text), masked(said("send")))
    assert one.origin.heard() == long_frame(text) + masked(said("send"))
    one.client.says(long_frame(said("no", "x" * (1 << 20))))
    assert one.origin.heard() == b""
    assert one.reasons == ["rule", "feature-closed"]


def test_another_judge_ends_the_websocket(judges: list[Words]) -> None:
    one = shaken()
    one.change(service("own", "ok.example", allow="GET,WEBSOCKET,POST /**"))
    assert one.reasons[:2] == ["rule", "policy-changed"]
    same = shaken()
    same.change(service("own", "ok.example", allow="GET,WEBSOCKET /**"))
    same.client.says(masked(said("send")))
    assert same.origin.heard() == masked(said("send"))


# ── by the head alone ─────────────────────────────────────────────────────────────────────────────

QUEUES = (
    '[services.own]\nuse = "queues"\nhosts = ["ok.example"]\nsecret = "file:/nowhere"\n'
    'operations = ["ListQueues", "Describe*"]\nallow_also = ["WEBSOCKET /store/**"]\n'
)
FORM = "Content-Type: application/x-www-form-urlencoded; charset=utf-8"
LIST = b"Action=ListQueues&Version=1"
DELETE = b"Action=DeleteQueue&Version=1"


def why(one: Conversation, method: str = "POST") -> tuple[int, str, str]:
    answer = one.answer(method)
    told = json.loads(answer.body)
    return answer.status, told["reason"], told["why"]


def test_a_form_is_read_before_it_is_sent() -> None:
    """I3, with the control: an open operation is sent as it was read."""
    one = Conversation(QUEUES)
    assert one.asks(post("/", LIST, FORM)).endswith(b"\r\n\r\n" + LIST)
    assert one.told(ok(b"fine")).status == 200
    assert one.asks(post("/", DELETE, FORM)) == b""
    status, reason, told = why(one)
    assert (status, reason) == (403, "operation-closed")
    assert told == (
        "it asks for DeleteQueue, which services.own leaves closed; "
        'operations = ["DeleteQueue"] opens it'
    )
    assert one.audit[-1].rule == "catalogue.queues.DeleteQueue"
    assert dict(one.audit[-1].details)["why"] == told
    assert one.asks(post("/", LIST, FORM)) != b""  # the connection goes on


def test_a_form_in_chunks_or_that_waits_for_a_word_is_read_as_well() -> None:
    """I3: however it comes."""
    for body, sent in ((LIST, True), (DELETE, False)):
        one = Conversation(QUEUES)
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:5], body[5:]))
        heard = one.asks(
            head("POST", "/", FORM, "Transfer-Encoding: chunked") + pieces + b"0\r\n\r\n"
        )
        assert bool(heard) is sent
        one = Conversation(QUEUES)
        length = f"Content-Length: {len(body)}"
        assert one.asks(head("POST", "/", FORM, length, "Expect: 100-continue")) == b""
        assert one.client.heard().startswith(b"HTTP/1.1 100 ")
        assert bool(one.asks(body)) is sent


@pytest.mark.parametrize(
    "lines",
    [
        [FORM, "Content-Encoding: gzip"],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: text/plain"],
        [],
        [FORM, "X-Amz-Target: AmazonSQS.ListQueues"],
        [FORM, "X_Amz_Target: AmazonSQS.ListQueues"],
        [FORM, "X-Amz-Target: a.ListQueues", "X-Amz-Target: a.DeleteQueue"],
    ],
    ids=["encoded", "parts", "another type", "no type", "two names", "underscores", "thrice"],
)
def test_a_body_that_may_name_another_operation_is_refused(lines: list[str]) -> None:
    one = Conversation(QUEUES)
    assert one.asks(post("/", LIST, *lines)) == b""
    assert why(one)[1] in ("operation-unclear", "body-unjudged")


def test_an_upload_is_judged_by_its_head_and_passes_as_it_comes() -> None:
    """A body that decides nothing is not collected: its first bytes are sent before its last have
    come."""
    one = Conversation(QUEUES)
    length = "Content-Length: 3000000"
    heard = one.asks(head("PUT", "/store/x?uploadId=1", length) + b"first")
    assert heard.endswith(b"\r\n\r\nfirst")
    assert one.connection.state.gathered == 0
    assert one.asks(b"second") == b"second"


@pytest.mark.parametrize(
    ("target", "line", "word"),
    [
        ("/store/x", "X-Amz-Copy-Source: other/secret", "copy"),
        ("/store/x", "x_amz_copy_source: other/secret", "copy"),
        ("/store/x?acl", "X-Other: 1", "acl"),
        ("/store/x?uploadId=1&a%63l", "X-Other: 1", "acl"),
    ],
)
def test_an_upload_that_is_something_else_is_refused_before_its_body_comes(
    target: str, line: str, word: str
) -> None:
    """I3; control: the test above. Its body is not read, so the connection ends."""
    one = Conversation(QUEUES)
    assert one.asks(head("PUT", target, line, "Content-Length: 3000000")) == b""
    status, reason, told = why(one, "PUT")
    assert (status, reason) == (403, "operation-closed")
    assert f"it asks for {word} (" in told
    assert one.client.ended
    assert one.lines  # the person is told, too


def test_a_refused_request_without_a_body_leaves_the_connection_open() -> None:
    one = Conversation(QUEUES)
    assert one.asks(get("/store/x?acl")) == b""
    assert why(one, "GET")[1] == "operation-closed"
    assert one.asks(get("/store/x")) != b""


def test_a_websocket_that_is_judged_by_its_head_passes_its_messages() -> None:
    """Its messages are no operations. Control: with a mark, it is refused."""
    one = Conversation(QUEUES)
    one.client.says(get("/store/x", *OFFER))
    assert one.told(right()).status == 101
    assert one.asks(masked(b"hello")).endswith(masked(b"hello"))
    other = Conversation(QUEUES)
    assert other.asks(get("/store/x?acl", *OFFER)) == b""
    assert why(other, "GET")[1] == "operation-closed"


def test_an_upload_under_way_is_cut_when_the_policy_of_its_service_changes() -> None:
    one = Conversation(QUEUES)
    one.asks(head("PUT", "/store/x", "X-Amz-Meta-A: 1", "Content-Length: 3000000") + b"first")
    one.change(QUEUES.replace('"Describe*"', '"copy"'))
    assert one.reasons == ["policy-changed"]


def test_a_form_that_is_being_collected_is_judged_by_the_new_policy() -> None:
    for new, sent in (('"DeleteQueue"', True), ('"Get*"', False)):
        one = Conversation(QUEUES)
        one.asks(post("/", DELETE, FORM)[:-5])
        one.change(QUEUES.replace('"Describe*"', new))
        assert bool(one.asks(DELETE[-5:])) is sent


def test_a_form_in_the_clients_hands_is_refused_when_the_new_policy_closes_its_mark() -> None:
    opened = QUEUES.replace('"Describe*"', '"DeleteQueue"')
    one = Conversation(opened)
    one.asks(post("/?Action=DeleteQueue", b"Version=1", FORM)[:-5])
    one.change(QUEUES)
    assert one.reasons == ["policy-changed"]
