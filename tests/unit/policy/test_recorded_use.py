"""What the log tells of a sandbox is judged by any policy; a log may hold anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import Reason
from keyhole.model.event import EventKind
from keyhole.model.host import Host
from keyhole.policy.push import RefChange
from keyhole.policy.recorded_use import MAX_PATH, RecordedUse, is_decision, judge_use, read_use
from tests.rigs.policies import book

BOOK = book("""
[egress]
allow = ["example.org", "db.example:5432"]
[services.plain]
hosts = ["plain.example"]
allow = ["GET /x/*"]
[services.forge]
repos = ["a/b"]
push = ["agent/*"]
""")
HOST = Host("plain.example")


@pytest.mark.parametrize(
    ("kind", "host", "details", "use", "text"),
    [
        ("dns", "new.example", {"type": "A"}, RecordedUse(Host("new.example")), "new.example"),
        ("connect", "db.example", {"port": 5432}, RecordedUse(Host("db.example"), 5432),
         "db.example:5432"),
        ("request", "plain.example", {"method": "GET", "path": "/x/1"},
         RecordedUse(HOST, 443, "GET", "/x/1"), "GET https://plain.example/x/1"),
        ("ref", "git.example", {"repository": "a/b", "ref": "refs/heads/x", "change": "force"},
         RecordedUse(Host("git.example"), 443, "", "/a/b", "refs/heads/x", RefChange.FORCE),
         "git push https://git.example/a/b refs/heads/x"),
        ("connect", "192.0.2.1", {"port": 443}, None, ""),
        ("connect", "a.example", {"port": "443"}, None, ""),
        ("connect", "a.example", {"port": 99999}, None, ""),
        ("request", "a.example", {"method": "BREW", "path": "/"}, None, ""),
        ("request", "a.example", {"method": "GET", "path": "/" + "a" * MAX_PATH}, None, ""),
        ("request", "a.example", {"method": "GET", "path": "x"}, None, ""),
        ("ref", "a.example", {"repository": "a/../b", "ref": "refs/heads/x"}, None, ""),
        ("ref", "a.example", {"ref": "refs/heads/x"}, None, ""),
        ("limit", "a.example", {}, None, ""),
    ],
)  # fmt: skip
def test_an_event_is_a_use_or_nothing(
    kind: str, host: str, details: dict[str, object], use: RecordedUse | None, text: str
) -> None:
    assert read_use(kind, host, details) == use
    assert use is None or str(use) == text


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (RecordedUse(Host("example.org")), Reason.RULE),
        (RecordedUse(Host("example.org"), 443, "POST", "/any"), Reason.RULE),
        (RecordedUse(Host("new.example")), Reason.NO_RULE),
        (RecordedUse(Host("example.org"), 22), Reason.PORT_NOT_GRANTED),
        (RecordedUse(HOST), Reason.RULE),
        (RecordedUse(HOST, 443, "GET", "/x/1"), Reason.RULE),
        (RecordedUse(HOST, 443, "GET", "/y"), Reason.NO_RULE),
        (RecordedUse(Host("git.example"), 443, "GET", "/a/b/info/refs"), Reason.RULE),
        (RecordedUse(Host("git.example"), 443, "", "/a/b", "refs/heads/agent/x"), Reason.RULE),
        (RecordedUse(Host("git.example"), 443, "", "/a/b", "refs/heads/x"), Reason.REF_NOT_GRANTED),
    ],
)
def test_a_use_is_judged_as_the_door_would(use: RecordedUse, reason: Reason) -> None:
    assert judge_use(BOOK, use).reason is reason


@pytest.mark.parametrize(
    ("kind", "verdict", "reason", "rule", "counts"),
    [
        ("connect", "allow", "rule", "", True),
        ("connect", "allow", "learning", "", True),
        ("connect", "allow", "name-unresolved", "", True),
        ("connect", "allow", "closed", "", False),
        ("connect", "allow", "approved", "", True),
        ("request", "allow", "approved", "", True),
        ("dns", "allow", "rule", "", False),
        ("dns", "deny", "no-rule", "", True),
        ("request", "deny", "over-limit", "", False),
        ("request", "deny", "made-up", "", False),
        ("request", "allow", "secret-scrubbed", "", False),
        ("connect", "deny", "unanswered", "approvals.ask", True),
        ("request", "deny", "too-many-asked", "approvals.ask", True),
        ("request", "deny", "unanswered", "services.model.budget.day", False),
        ("request", "deny", "not-approved", "approvals.ask", False),
    ],
)
def test_only_decisions_of_rules_count(
    kind: str, verdict: str, reason: str, rule: str, counts: bool
) -> None:
    assert is_decision(kind, verdict, reason, rule) is counts


_SCALARS = st.text(max_size=12) | st.integers() | st.floats()


@given(
    st.sampled_from([*EventKind]) | st.text(max_size=5),
    st.text(max_size=12) | st.just("plain.example"),
    st.dictionaries(
        st.sampled_from(["port", "path", "method", "ref", "repository", "change"]), _SCALARS
    ),
)
def test_whatever_a_log_has_can_be_judged(kind: str, host: str, details: dict[str, object]) -> None:
    use = read_use(kind, host, details)
    if use is not None:
        judge_use(BOOK, use)
        assert str(use)
