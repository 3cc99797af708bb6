"""Decisions as watchers see them: in the log, from now on, and no session hides another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.watch.recorded_decisions import RecordedDecisions, take_by_turns
from keyhole.app.watch.watched_gateways import WatchedGateways
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.cli import watch as watch_verb
from keyhole.cli.watch import PlainWatch
from keyhole.cli.watch_rows import decision_json, decision_line
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

A, B = "a" * 12, "b" * 12
PLENTY = LogBounds(per_second=10**6)


def asked(kind: EventKind, host: str) -> Event:
    return Event(kind, Verdict.DENY, "no-rule", "default", host, (("port", 443), ("path", "/x")))


def test_decisions_are_those_that_are_written_from_now_on(tmp_path: Path) -> None:
    """Questions are announced by gateways, and the log's own lines are nobody's decisions."""
    audit = tmp_path / "audit"
    early = RecordedDecisions(audit)
    assert early.look() == []
    with AuditLog(audit, bounds=PLENTY) as log:
        log.record(A, asked(EventKind.CONNECT, "old.example"))
        log.flush()
        decisions = RecordedDecisions(audit)
        log.record(A, asked(EventKind.ASK, "question.example"))
        log.record("", asked(EventKind.SESSION, "own.example"))
        log.record(A, asked(EventKind.CONNECT, "new.example"))
        log.flush()
        assert [each.host for each in decisions.look()] == ["new.example"]
        assert decisions.look() == []
        assert [each.host for each in early.look()] == ["old.example", "new.example"]


def test_a_decision_s_text_is_never_first_and_cannot_move_the_cursor(tmp_path: Path) -> None:
    """I8."""
    with AuditLog(tmp_path / "audit", bounds=PLENTY) as log:
        decisions = RecordedDecisions(tmp_path / "audit")
        log.record(A, asked(EventKind.REQUEST, "h\x1b[2J.example"))
        log.flush()
        (record,) = decisions.look()
    line = decision_line(record)
    assert line[8:].startswith(f"  {A}  deny  request  h\\x1b[2J.example  /x  443  (no-rule")
    assert "\x1b" not in line
    written = decision_json(record)
    assert (written["event"], written["session"]) == ("decision", A)


def test_one_sandbox_s_flood_hides_no_decision_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: what is not shown is counted, and the log has it."""
    monkeypatch.setattr(watch_verb, "MAX_SHOWN", 4)
    with AuditLog(tmp_path / "audit", bounds=PLENTY) as log:
        decisions = RecordedDecisions(tmp_path / "audit")
        for number in range(20):
            log.record(A, asked(EventKind.CONNECT, f"flood{number}.example"))
        log.record(B, asked(EventKind.CONNECT, "quiet.example"))
        log.flush()
        watch = PlainWatch(WatchedGateways(tmp_path), decisions, as_json=False)
        watch._show_decisions()
        shown = capsys.readouterr().out.splitlines()
        log.record(B, asked(EventKind.CONNECT, "few.example"))
        log.flush()
        watch._show_decisions()
        assert "few.example" in capsys.readouterr().out  # control
    assert [each.split()[4] for each in shown[:-1]] == [
        "flood0.example", "flood1.example", "flood2.example", "quiet.example"
    ]  # fmt: skip
    assert "17 decisions are not shown" in shown[-1]


def test_turns_keep_the_order_of_time(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit", bounds=PLENTY) as log:
        decisions = RecordedDecisions(tmp_path / "audit")
        for host in ("a1", "a2", "a3"):
            log.record(A, asked(EventKind.CONNECT, host))
        for host in ("b1", "b2"):
            log.record(B, asked(EventKind.CONNECT, host))
        log.flush()
        found = decisions.look()
    assert [each.host for each in take_by_turns(found, 3)] == ["a1", "a2", "b1"]
    assert take_by_turns(found, 5) == found
