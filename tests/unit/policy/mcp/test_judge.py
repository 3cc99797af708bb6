"""The judge of an MCP server: requests with their fields, sessions, both transports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed, ResponseUnfit
from keyhole.model.host import HostPattern
from keyhole.model.path import RequestPath
from keyhole.policy.body import BodyFacts, BodyJudgement
from keyhole.policy.mcp.answers import MAX_ERROR, MAX_FAILED, McpAnswer
from keyhole.policy.mcp.judge import MAX_NOTES, McpJudge
from keyhole.policy.mcp.memory import MAX_HELD, MAX_SESSIONS
from keyhole.policy.mcp.raw_messages import MAX_ANSWER
from keyhole.policy.mcp_grant import McpGrant, ServerRequest, ToolGrant
from keyhole.policy.policy import ServiceHost

HOST = ServiceHost((HostPattern.parse("mcp.example"),))
GRANT = McpGrant(tools=(ToolGrant("list_*"), ToolGrant("get", (("team", ("ENG",)),))))
TOOLS = [{"name": "list_issues"}, {"name": "drop"}]
STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json; charset=utf-8"}


def message(method: str, given: object = 1, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": given, "method": method, "params": params}


CALL = message("tools/call", name="list_issues")
DROP = message("tools/call", 2, name="drop")
INITIALIZE = message("initialize", protocolVersion="2025-11-25", capabilities={"roots": {}},
                     clientInfo={"name": "x"})  # fmt: skip


class Rig:
    def __init__(self, grant: McpGrant = GRANT) -> None:
        self.judge = McpJudge("linear", grant)

    def facts(self, word: str, target: str = "/mcp", **fields: str) -> BodyFacts:
        path, _, query = target.partition("?")
        decision = RequestDecision(Verdict.ALLOW, Reason.RULE, "catalogue.mcp.allow[0]", "linear")
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return BodyFacts(HOST, word, RequestPath.parse(path), decision, query, named)

    def post(self, value: object, target: str = "/mcp", **fields: str) -> BodyJudgement:
        body = json.dumps(value).encode()
        facts = self.facts("POST", target, **fields)
        return self.judge.judge(
            replace(facts, body=body, size=len(body), json=json.loads(body), flaw="")
        )

    def get(self, target: str = "/mcp", **fields: str) -> BodyJudgement:
        return self.judge.judge(self.facts("GET", target, **fields))

    def open_session(self, given: str = "s1") -> None:
        reader = reader_of(self.post(INITIALIZE))
        reader.begin(200, {**JSON, "mcp-session-id": given})

    def open_older(self, place: bytes = b"/messages?session_id=1") -> McpAnswer:
        reader = reader_of(self.get("/sse"))
        reader.begin(200, STREAM)
        reader.feed(b"event: endpoint\ndata: " + place + b"\n\n")
        return reader


def reader_of(said: BodyJudgement) -> McpAnswer:
    assert said.allowed, said
    assert isinstance(said.reader, McpAnswer)
    return said.reader


def refusal(said: BodyJudgement) -> Reason:
    assert not said.allowed
    assert said.decision.verdict is Verdict.DENY
    assert said.reader is None
    return said.decision.reason


def test_everything_at_the_host_is_wanted() -> None:
    facts = Rig().facts("GET")
    assert Rig().judge.wants(HOST, "GET", facts.path, facts.decision)


def test_a_granted_call_is_sent_as_it_was_read_under_its_rule() -> None:
    said = Rig().post(CALL)
    assert said.allowed
    assert said.body is None
    assert said.decision.rule == "services.linear.tools"
    assert Rig().post(message("ping")).decision.rule == "catalogue.mcp.allow[0]"


def test_a_call_that_is_not_granted_is_answered_with_an_error_that_says_why() -> None:
    said = Rig().post(DROP)
    assert refusal(said) is Reason.TOOL_NOT_GRANTED
    assert said.decision.rule == "services.linear.tools"
    assert said.status == 200
    error = json.loads(said.answer or b"")
    assert (error["id"], error["error"]["code"]) == (2, 403)
    assert "drop" in error["error"]["message"]


def test_nothing_of_a_batch_with_one_refused_call_is_sent() -> None:
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert Rig().post([CALL, notification]).allowed  # control
    said = Rig().post([CALL, DROP, notification])
    assert refusal(said) is Reason.TOOL_NOT_GRANTED
    errors = json.loads(said.answer or b"")
    assert [error["id"] for error in errors] == [1, 2]
    assert "nothing of this batch was sent" in errors[0]["error"]["message"]
    swallowed = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "drop"}}
    assert refusal(Rig().post([CALL, swallowed])) is Reason.MCP_CLOSED
    assert refusal(Rig().post([notification, swallowed])) is Reason.MCP_CLOSED


def test_a_call_as_a_notification_is_swallowed() -> None:
    said = Rig().post({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "drop"}})
    assert refusal(said) is Reason.MCP_CLOSED
    assert (said.answer, said.status) == (b"", 202)


def test_abilities_are_taken_out_and_the_rest_stays_as_it_was() -> None:
    body = (
        b'{"jsonrpc":"2.0", "id":1,"method":"initialize","params":{"protocolVersion": "x",'
        b'"capabilities":{"roots":{},"sampling":{}},"clientInfo":{"v":1.00}}}'
    )
    rig = Rig(McpGrant(server_requests=frozenset({ServerRequest.ROOTS})))
    facts = replace(rig.facts("POST"), body=body, json=json.loads(body), flaw="")
    said = rig.judge.judge(facts)
    assert said.body is not None
    assert b'"capabilities":{"roots":{}}' in said.body
    assert b"1.00" in said.body
    assert json.loads(Rig().post([INITIALIZE]).body or b"")[0]["params"]["capabilities"] == {}
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}, "progressToken": 1}
    sent = json.loads(Rig().post(message("tools/list", _meta=meta)).body or b"")
    assert sent["params"]["_meta"] == {"io.modelcontextprotocol/clientCapabilities": {},
                                       "progressToken": 1}  # fmt: skip
    without = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    assert json.loads(Rig().post(without).body or b"")[1] == without[1]
    assert refusal(rig.judge.judge(replace(facts, body=b""))) is Reason.MCP_MALFORMED


def test_a_body_that_is_not_read_is_refused() -> None:
    """I3: a form, an encoded body, JSON with a name twice."""
    rig = Rig()
    facts = rig.facts("POST")
    assert refusal(rig.judge.judge(facts)) is Reason.BODY_UNJUDGED
    assert refusal(rig.post({"jsonrpc": "2.0"})) is Reason.MCP_MALFORMED
    assert refusal(rig.post(CALL | {"id": None})) is Reason.MCP_MALFORMED


@pytest.mark.parametrize("word", ["PUT", "PATCH", "HEAD", "OPTIONS", "WEBSOCKET", "DELETE"])
def test_methods_that_mcp_does_not_have_are_refused(word: str) -> None:
    rig = Rig()
    assert refusal(rig.judge.judge(rig.facts(word))) is Reason.MCP_CLOSED


# ── sessions and endpoints ────────────────────────────────────────────────────────────────────────


def test_a_session_of_another_sandbox_does_not_exist() -> None:
    """I5: an id that this sandbox was not given is of no use here."""
    one, other = Rig(), Rig()
    one.open_session("s1")
    assert one.post(CALL, mcp_session_id="s1").allowed
    assert one.get(mcp_session_id="s1").allowed
    assert one.judge.judge(one.facts("DELETE", mcp_session_id="s1")).allowed
    for said in (
        other.post(CALL, mcp_session_id="s1"),
        other.get(mcp_session_id="s1"),
        other.judge.judge(other.facts("DELETE", mcp_session_id="s1")),
        one.post(CALL, mcp_session_id="s1, s2"),
    ):
        assert refusal(said) is Reason.MCP_SESSION
        assert said.status == 404


def test_only_a_greeting_opens_a_session_and_the_table_is_bounded() -> None:
    """I9."""
    rig = Rig()
    reader_of(rig.post(CALL)).begin(200, {**JSON, "mcp-session-id": "s0"})
    assert refusal(rig.post(CALL, mcp_session_id="s0")) is Reason.MCP_SESSION
    reader_of(rig.post(INITIALIZE)).begin(200, {**JSON, "mcp-session-id": "a b"})
    assert refusal(rig.post(CALL, mcp_session_id="a b")) is Reason.MCP_SESSION
    for number in range(MAX_SESSIONS + 1):
        rig.open_session(f"n{number}")
    assert refusal(rig.post(CALL, mcp_session_id="n0")) is Reason.MCP_SESSION
    assert rig.post(CALL, mcp_session_id=f"n{MAX_SESSIONS}").allowed


def test_a_stream_resumes_from_events_of_this_sandbox_alone() -> None:
    """I5. Attack: the id of another sandbox's event with a session of one's own; a server finds the
    stream by the event."""
    rig = Rig()
    rig.open_session("s1")
    assert refusal(rig.get(last_event_id="7")) is Reason.MCP_SESSION
    assert refusal(rig.get(mcp_session_id="s1", last_event_id="7")) is Reason.MCP_SESSION
    assert refusal(rig.post(CALL, mcp_session_id="s1", last_event_id="7")) is Reason.MCP_SESSION
    reader = reader_of(rig.post(CALL))
    reader.begin(200, STREAM)
    assert reader.feed(b"id: 7\ndata:\n\n") == b"id: 7\ndata: \n\n"
    assert rig.get(last_event_id="7").allowed
    assert rig.get(mcp_session_id="s1", last_event_id="7").allowed
    assert rig.post(CALL, mcp_session_id="s1", last_event_id="7").allowed


def test_a_query_is_refused_unless_an_endpoint_names_it() -> None:
    """Attack: `/mcp?read_only=false` where the person meant the server's read-only form."""
    named = Rig(McpGrant(GRANT.tools, endpoints=("/mcp?read_only=true",)))
    assert named.post(CALL, "/mcp?read_only=true").allowed
    for target in ("/mcp", "/mcp?read_only=false", "/mcp?read_only=true&x=1", "/other"):
        assert refusal(named.post(CALL, target)) is Reason.MCP_CLOSED
    assert Rig().post(CALL, "/any").allowed
    assert refusal(Rig().post(CALL, "/messages?session_id=1")) is Reason.MCP_CLOSED


def test_the_older_transport_sends_where_its_own_stream_said() -> None:
    rig = Rig()
    rig.open_older()
    assert rig.post(CALL, "/messages?session_id=1").allowed
    assert refusal(rig.post(CALL, "/messages?session_id=2")) is Reason.MCP_CLOSED
    assert refusal(Rig().post(CALL, "/messages?session_id=1")) is Reason.MCP_CLOSED


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        (b"/m?s=1", b"/m?s=1"),
        (b"https://mcp.example/m?s=1", b"/m?s=1"),
        (b"https://mcp.example:443/m", b"/m"),
    ],
)
def test_an_endpoint_is_passed_on_as_a_path(said: bytes, passed: bytes) -> None:
    reader = reader_of(Rig().get("/sse"))
    reader.begin(200, STREAM)
    event = reader.feed(b"event: endpoint\ndata: " + said + b"\n\n")
    assert event == b"event: endpoint\ndata: " + passed + b"\n\n"


@pytest.mark.parametrize(
    "said",
    [
        b"//evil.example/m",
        b"https://evil.example/m",
        b"https://mcp.example.evil.example/m",
        b"https://mcp.example@evil.example/m",
        b"https://-/m",
        b"http://mcp.example/m",
        b"messages",
        b"/m#x",
        b"/m\\x",
        b"/m x",
        b"/\xe2\x80\xa8",
        b"",
        b"javascript:alert(1)",
        b"/m\ndata: /n",
    ],
)
def test_an_endpoint_elsewhere_cuts_the_stream(said: bytes) -> None:
    """I4: a server cannot send a sandbox's messages, and its credential, to another host."""
    with pytest.raises(Malformed):
        Rig().open_older(said)


def test_a_refused_call_of_the_older_transport_is_answered_on_its_stream() -> None:
    rig = Rig()
    stream = rig.open_older()
    said = rig.post(DROP, "/messages?session_id=1")
    assert said.allowed
    assert json.loads(said.body or b"") == {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    assert [note.decision.reason for note in rig.judge.notes] == [Reason.TOOL_NOT_GRANTED]
    event = stream.feed(b'data: {"jsonrpc":"2.0","id":2,"result":{}}\n\n')
    assert b"is not granted" in event
    assert refusal(rig.post([DROP, CALL], "/messages?session_id=1")) is Reason.TOOL_NOT_GRANTED


# ── fields that repeat the body ───────────────────────────────────────────────────────────────────


def test_fields_that_repeat_the_body_must_say_what_it_says() -> None:
    call = message("tools/call", name="get", arguments={"team": "ENG", "n": [{"a": 1}, True, None]})
    rig = Rig()
    good = {"mcp_method": "tools/call", "mcp_name": "get", "mcp_param_team": "ENG",
            "mcp_param_a": "1", "mcp_param_b": "true",
            "mcp_param_c": "=?base64?RU5H?="}  # fmt: skip
    assert rig.post(call, **good).allowed
    for bad in (
        {"mcp_method": "ping"},
        {"mcp_method": "tools/call, ping"},
        {"mcp_name": "drop"},
        {"mcp_name": "=?base64?ZHJvcA==?="},
        {"mcp_name": "=?base64?x?="},
        {"mcp_name": "=?base64?/w==?="},
        {"mcp_param_team": "HR"},
        {"mcp_param_d": "None"},
    ):
        assert refusal(rig.post(call, **{**good, **bad})) is Reason.MCP_MALFORMED
    assert refusal(rig.post(message("ping"), mcp_name="drop")) is Reason.MCP_MALFORMED
    assert rig.post(call, mcp_name="get").allowed
    batch = [call, CALL | {"id": 2}]
    assert rig.post(batch).allowed
    assert refusal(rig.post(batch, mcp_method="tools/call")) is Reason.MCP_MALFORMED


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def answered(status: int, fields: dict[str, str], *pieces: bytes) -> bytes:
    reader = reader_of(Rig().post(CALL))
    assert reader.begin(status, fields)
    return b"".join(map(reader.feed, pieces)) + reader.end()


LISTED = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": TOOLS}}).encode()
FILTERED = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name": "list_issues"}]}}'


def test_json_and_streams_are_filtered_alike_over_any_boundary() -> None:
    assert answered(200, JSON, LISTED[:20], LISTED[20:]) == FILTERED
    at = LISTED.index(b'"result"')
    stream = b"id: 1\r\ndata: " + LISTED[:at] + b"\r\ndata:" + LISTED[at:] + b"\r\n\r\n"
    expected = b"id: 1\ndata: " + FILTERED + b"\n\n"
    assert answered(200, STREAM, *(bytes([each]) for each in stream)) == expected
    assert answered(200, STREAM, b"data: " + LISTED) == b""  # never ended


def test_events_that_are_dropped_leave_their_ids() -> None:
    closed = b'id: 4\nretry: 9\ndata: {"jsonrpc":"2.0","method":"vendor/x"}\n\n'
    assert answered(200, STREAM, closed) == b"id: 4\nretry: 9\n\n"
    assert answered(200, STREAM, b"event: vendor\ndata: x\n\n: still here\n\n") == b":\n\n:\n\n"


@pytest.mark.parametrize("media", ["text/html", "text/event-stream2", "application/json-seq"])
def test_an_answer_of_another_type_is_refused(media: str) -> None:
    """Attack: a list as `text/plain`, which a lenient client reads all the same."""
    assert answered(200, JSON, LISTED)  # control
    with pytest.raises(Malformed):
        answered(200, {"content-type": media}, LISTED)


def test_a_type_that_lies_is_read_as_it_says() -> None:
    with pytest.raises(Malformed):
        answered(200, JSON, b"data: " + LISTED + b"\n\n")
    assert answered(200, STREAM, LISTED + b"\n\n") == b":\n\n"


def test_answers_without_a_body_have_none() -> None:
    assert answered(202, {}, b"x") == b""
    assert answered(200, {}, b"x") == b""
    assert answered(307, {"location": "/x"}, LISTED) == b""


def test_an_error_passes_in_the_servers_own_words_bounded() -> None:
    assert answered(500, {"content-type": "text/html"}, b"<p>down</p>") == b"<p>down</p>"
    assert len(answered(500, {}, b"x" * MAX_FAILED, b"x" * 10)) == MAX_ERROR
    assert answered(404, JSON, LISTED) == FILTERED


def test_a_credential_that_the_server_refuses_starts_no_login_inside() -> None:
    with pytest.raises(ResponseUnfit) as caught:
        answered(401, {"www-authenticate": "Bearer"})
    assert caught.value.reason == Reason.CREDENTIAL_REFUSED


def test_a_message_is_bounded_and_so_are_all_of_a_session_together() -> None:
    """I9: four megabytes each, and no more than four at the same time."""
    piece = b"x" * (MAX_ANSWER - 100)
    with pytest.raises(Malformed):
        answered(200, JSON, piece, b"x" * 200)
    with pytest.raises(Malformed):
        answered(200, STREAM, b"data: " + piece, b"x" * 200)
    rig, readers = Rig(), []
    for _ in range(MAX_HELD // MAX_ANSWER):
        readers.append(reader_of(rig.post(CALL)))
        readers[-1].begin(200, JSON)
        readers[-1].feed(piece)
    last = reader_of(rig.post(CALL))
    last.begin(200, JSON)
    with pytest.raises(Malformed):
        last.feed(b"x" * 1000)
    readers.clear()  # they were cut
    again = reader_of(rig.post(CALL))
    again.begin(200, JSON)
    del last
    again.feed(b"x" * 1000)


def test_notes_are_bounded_and_carry_the_tool() -> None:
    rig = Rig()
    reader = reader_of(rig.post(CALL))
    reader.begin(200, JSON)
    reader.feed(LISTED)
    reader.end()
    called, note = rig.judge.notes
    assert (called.what, called.decision.reason) == ("calls the tool 'list_issues'", Reason.RULE)
    assert note.seen is not None
    assert (note.seen.name, note.seen.accepted) == ("list_issues", True)
    assert note.decision.verdict is Verdict.ALLOW
    stream = rig.open_older()
    for number in range(MAX_NOTES + 1):
        asked = {"jsonrpc": "2.0", "id": number, "method": "roots/list"}
        stream.feed(b"data: " + json.dumps(asked).encode() + b"\n\n")
    assert len(rig.judge.notes) == MAX_NOTES
