"""Which requests of an agent's trial its profile and its service name."""

from __future__ import annotations

import pytest

from keyhole.app.proofs.agent_requests import MAX_REQUESTS, AgentRequest, find_requests
from keyhole.audit.log_line import DetailValue, LogRecord

QUIET = ("telemetry.example", "api.example POST /events/**")


def record(kind: str, host: str, reason: str, method: str = "", path: str = "") -> LogRecord:
    details: dict[str, DetailValue] = {"method": method, "path": path} if method else {}
    verdict = "allow" if reason in ("rule", "type-not-answered") else "deny"
    return LogRecord(1, "", 0.0, "s", kind, verdict, reason, "", host, "", details, 0)


@pytest.mark.parametrize(
    ("event", "known"),
    [
        (record("request", "api.example", "rule", "POST", "/v1/messages"), True),
        (record("request", "api.example", "guarded-endpoint", "GET", "/keys"), True),
        (record("request", "api.example", "no-rule", "POST", "/events/batch?x=1"), True),
        (record("request", "api.example", "no-rule", "POST", "/new"), False),
        (record("request", "api.example", "websocket-not-granted", "GET", "/stream"), False),
        (record("dns", "telemetry.example", "no-rule"), True),
        (record("dns", "new.example", "no-rule"), False),
        (record("connect", "192.0.2.1", "literal-address"), False),
    ],
)
def test_a_request_has_drifted_that_no_rule_and_no_profile_names(
    event: LogRecord, known: bool
) -> None:
    (found,) = find_requests([event], QUIET)
    assert found.known is known
    assert found.allowed is (event.verdict == "allow")


def test_requests_are_listed_once_and_without_their_queries() -> None:
    events = [
        record("session", "", "rule"),
        record("dns", "api.example", "rule"),
        record("dns", "api.example", "type-not-answered"),
        record("request", "api.example", "rule", "GET", "/a?key=1"),
        record("request", "api.example", "rule", "GET", "/a?key=2"),
        record("dns", "new.example", "no-rule"),
    ]
    found = find_requests(events, QUIET)
    assert found == (
        AgentRequest("api.example", "GET", "/a", allowed=True, known=True),
        AgentRequest("new.example", "", "", allowed=False, known=False),
    )
    assert [each.shown for each in found] == ["GET https://api.example/a", "new.example"]


def test_an_agent_cannot_fill_the_list() -> None:
    events = [record("dns", f"h{number}.example", "no-rule") for number in range(MAX_REQUESTS + 9)]
    assert len(find_requests(events, ())) == MAX_REQUESTS
