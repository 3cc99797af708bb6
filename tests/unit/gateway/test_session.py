"""What a person is told while a session lives."""

from __future__ import annotations

from keyhole.gateway.refusal_reports import MAX_PATHS, MAX_REPORTS
from keyhole.gateway.session import MAX_PUSH_REPORTS, Session, SessionState
from tests.rigs.policies import book


def told_of() -> tuple[SessionState, list[str]]:
    """A session's state, and the lines that it puts before a person."""
    lines: list[str] = []
    session = Session("s", book(""), lambda _: None, lambda: True, lines.append)
    return SessionState(session, 0.0), lines


def junk(start: int, count: int) -> dict[str, str]:
    return {f"refs/heads/j{n}": "keyhole: no" for n in range(start, start + count)}


def test_a_person_reads_a_few_refs_of_a_refused_push_and_how_many_more() -> None:
    """I9; the control is a push that is told whole."""
    state, lines = told_of()
    state.tell_refused_push("ok.example", "acme/widgets", junk(0, 10))
    assert lines[0] == "denied push of refs/heads/j0 to ok.example/acme/widgets (no)"
    assert len(lines) == 10
    lines.clear()
    state.tell_refused_push("ok.example", "acme/widgets", junk(100, 256))
    assert len(lines) == 11
    assert lines[-1] == "and 246 more refs of that push; the log has each"
    lines.clear()
    state.tell_refused_push("ok.example", "acme/widgets", junk(100, 256))  # tried again
    assert lines == []
    state.tell_refused_push("ok.example", "acme/widgets", junk(500, 11))
    assert lines[-1] == "and 1 more ref of that push; the log has each"


def test_refused_pushes_spend_their_own_lines_alone() -> None:
    """I9: whatever is pushed, and it does not hide what else is refused."""
    state, lines = told_of()
    for push in range(100):
        state.tell_refused_push("ok.example", "acme/widgets", junk(256 * push, 256))
    assert len(lines) == MAX_PUSH_REPORTS + 1
    assert lines[-1] == "further refused pushes are in the log alone"
    lines.clear()
    for number in range(MAX_REPORTS):
        state.tell(f"h{number}.example", 443, "no-rule")
    assert len(lines) == MAX_REPORTS
    assert all(line.startswith("denied h") for line in lines)


def test_telemetry_does_not_hide_a_refusal_that_breaks_something() -> None:
    state, lines = told_of()
    for _ in range(30):
        state.reports.request("POST", "api.example", "/telemetry?id=1", "path-not-allowed")
    state.reports.request("GET", "api.example", "/domain_info?d=x", "path-not-allowed")
    assert len(lines) == 2
    assert "https://api.example/domain_info" in lines[1]
    assert dict(state.reports.repeated()) == {lines[0]: 30}


def test_paths_of_a_host_are_named_up_to_a_bound_and_each_reason_has_its_own() -> None:
    """I9."""
    state, lines = told_of()
    for number in range(1000):
        state.reports.request("GET", "api.example", f"/p/{number}", "path-not-allowed")
    assert len(lines) == MAX_PATHS + 1
    assert "`keyhole log --denied --host api.example` lists them" in lines[-1]
    assert dict(state.reports.repeated()) == {lines[-1]: 1000 - MAX_PATHS}
    state.tell("api.example", 443, "no-rule")
    state.tell("api.example", 443, "no-rule")
    state.tell("api.example", 443, "sni-mismatch")
    assert len(lines) == MAX_PATHS + 3


def test_a_host_that_was_granted_is_reported_again() -> None:
    state, lines = told_of()
    for _ in range(2):
        state.tell("h.example", 443, "no-rule")
        state.tell("other.example", 443, "no-rule")
        state.reports.forget("h.example")
    assert [line.split()[1] for line in lines] == [
        "h.example:443", "other.example:443", "h.example:443",
    ]  # fmt: skip


def test_lines_of_a_session_end_with_one_that_says_so() -> None:
    """I9."""
    state, lines = told_of()
    for number in range(2 * MAX_REPORTS):
        state.tell(f"h{number}.example", 443, "no-rule")
    assert len(lines) == MAX_REPORTS + 1
    assert lines[-1] == "further refusals are in the log alone"
