"""A flood is counted, not written; and nothing goes uncounted (I8, I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.audit.log import AuditLog, LogBounds
from keyhole.audit.quota import (
    FOLD_SECONDS,
    MAX_FOLDS,
    OTHER_REASONS,
    SPENT_FOLD_SECONDS,
    SessionQuota,
)
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.audit.writing import (
    Hands,
    all_lines,
    allowed,
    checked,
    denied,
    pushed,
    session_event,
)

if TYPE_CHECKING:
    from pathlib import Path


def of(path: Path, session: str) -> list[dict[str, Any]]:
    return [line for line in all_lines(path) if line["session"] == session]


def told(lines: list[dict[str, Any]]) -> int:
    """How many events the lines speak of."""
    return sum(line.get("aggregate", {"count": 1})["count"] for line in lines)


def test_beyond_the_rate_events_are_counted_in_one_line(tmp_path: Path) -> None:
    """I8, I9; positive control: within the rate each has its line."""
    hands = Hands()
    with AuditLog(tmp_path, hands.clock(), LogBounds(per_second=10)) as log:
        for _ in range(10):
            log.record("s", denied())
        log.flush()
        assert len(of(tmp_path, "s")) == 10
        for step in range(500):
            log.record("s", denied(f"h{step}.example"))
            log.record("s", allowed())
            hands.now += 1e-6
        log.flush()
        lines = of(tmp_path, "s")[10:]
    folded = {(line["kind"], line["verdict"], line["reason"]): line for line in lines}
    assert len(lines) == len(folded) == 2
    flood = folded["connect", "deny", "no-rule"]
    assert flood["aggregate"]["count"] == 500
    assert flood["aggregate"]["first"] < flood["aggregate"]["last"] == flood["ts"]
    assert (flood["rule"], flood["host"]) == ("limits.audit_per_second", "")
    assert checked(tmp_path).whole


def test_the_rate_is_earned_again(tmp_path: Path) -> None:
    hands = Hands()
    with AuditLog(tmp_path, hands.clock(), LogBounds(per_second=10)) as log:
        for _ in range(3):
            for _ in range(25):
                log.record("s", denied())
            log.flush()
            hands.now += 1.0
    lines = of(tmp_path, "s")
    assert len(lines) == 3 * (10 + 1)
    assert told(lines) == 75


def test_a_session_has_the_rate_of_its_policy(tmp_path: Path) -> None:
    with AuditLog(tmp_path, Hands().clock(), LogBounds(per_second=10)) as log:
        log.begin("generous", 50)
        for _ in range(60):
            log.record("generous", denied())
            log.record("plain", denied())
    assert (len(of(tmp_path, "generous")), len(of(tmp_path, "plain"))) == (51, 11)
    assert told(of(tmp_path, "generous")) == told(of(tmp_path, "plain")) == 60


def test_one_sessions_flood_takes_nothing_from_its_neighbour(tmp_path: Path) -> None:
    """I9: neither lines nor memory, before the writer has looked even once."""
    bounds = LogBounds(per_second=50, pending_of_session=100, pending=1000, flush_every=60.0)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        log.record("quiet", allowed("first.example"))
        for _ in range(20_000):
            log.record("loud", denied())
        log.record("quiet", allowed("last.example"))
        assert len(log._intake.events) == 102
    assert [line["host"] for line in of(tmp_path, "quiet")] == ["first.example", "last.example"]
    assert told(of(tmp_path, "loud")) == 20_000


def test_all_sessions_together_may_have_a_rate_of_which_changes_take_nothing(
    tmp_path: Path,
) -> None:
    """I8: beyond it they are counted, and the line says by which rule."""
    bounds = LogBounds(per_second=10, all_per_second=15)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        for session in ("a", "b"):
            for _ in range(10):
                log.record(session, denied())
        for step in range(9):
            log.record("b", pushed(f"refs/heads/{step}"))
        log.flush()
    first, second = of(tmp_path, "a"), of(tmp_path, "b")
    assert len(first) == 10
    assert [line["kind"] for line in second].count("ref") == 9
    others = [line for line in second if line["kind"] != "ref"]
    assert (len(others), told(others)) == (6, 10)
    assert others[-1]["rule"] == "gateway.audit_per_second"


def test_all_sessions_together_are_bounded_in_memory(tmp_path: Path) -> None:
    """I9."""
    bounds = LogBounds(pending=1000, flush_every=60.0)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        for number in range(3000):
            log.record(f"s{number % 300}", denied())
        assert len(log._intake.events) == 1000
    assert told([line for line in all_lines(tmp_path) if line["session"]]) == 3000


def test_session_events_are_never_folded(tmp_path: Path) -> None:
    """I8; positive control: other events of the same flood are."""
    bounds = LogBounds(per_second=1, session=1, pending=10, pending_of_session=2, flush_every=60.0)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        log.record("s", session_event("started"))
        for _ in range(100):
            log.record("s", denied())
        log.record("s", session_event("stopped"))
    found = [line["reason"] for line in of(tmp_path, "s")]
    assert found == ["started", "stopped", "no-rule"]
    assert told(of(tmp_path, "s")) == 102


def refs(lines: list[dict[str, Any]]) -> list[str]:
    """The allowed refs that are named."""
    return [
        line["details"]["ref"]
        for line in lines
        if (line["kind"], line["verdict"]) == ("ref", "allow") and "details" in line
    ]


def test_what_a_push_changed_is_named_in_a_flood_of_refused_refs(tmp_path: Path) -> None:
    """I8: twenty pushes of 256 refused refs, with the one that counts in their midst; control: the
    refused are folded as all else."""
    with AuditLog(tmp_path, Hands().clock(), LogBounds(flush_every=60.0)) as log:
        for number in range(20 * 256):
            log.record("s", pushed(f"refs/heads/j{number}", Verdict.DENY, "ref-not-granted"))
        log.record("s", pushed("refs/heads/agent/evil"))
        log.record("s", pushed("refs/heads/agent/evil", reason="upstream-refused"))
    lines = of(tmp_path, "s")
    assert refs(lines) == ["refs/heads/agent/evil"] * 2
    assert len(lines) == 200 + 2 + 1
    assert told(lines) == 20 * 256 + 2
    assert checked(tmp_path).whole


def test_what_a_push_changed_is_named_though_the_session_spent_its_bytes(tmp_path: Path) -> None:
    """I8; control: another event of that session is counted."""
    with AuditLog(tmp_path, Hands().clock(), LogBounds(session=5000, per_second=1000)) as log:
        for _ in range(100):
            log.record("s", denied("x" * 500))
        log.flush()
        log.record("s", pushed("refs/heads/agent/evil"))
        log.record("s", allowed("evil.example"))
    lines = of(tmp_path, "s")
    assert refs(lines) == ["refs/heads/agent/evil"]
    assert "evil.example" not in [line["host"] for line in lines]


def test_changes_have_no_rate_but_as_many_bytes_as_all_else(tmp_path: Path) -> None:
    """I9: they cannot fill the log, nor take the room of the session's other lines."""
    hands = Hands()
    with AuditLog(tmp_path, hands.clock(), LogBounds(session=20_000, per_second=10)) as log:
        for number in range(300):
            log.record("s", pushed(f"refs/heads/agent/{number}"))
        log.flush()
        lines = of(tmp_path, "s")
        named = refs(lines)
        assert named == [f"refs/heads/agent/{number}" for number in range(len(named))]
        assert 50 < len(named) < 100
        (counted,) = (line for line in lines if "aggregate" in line)
        assert (counted["kind"], counted["verdict"]) == ("ref", "allow")
        assert counted["rule"] == "limits.audit_bytes"
        log.record("s", denied("still.example"))
        log.record("other", pushed("refs/heads/agent/other"))
    assert of(tmp_path, "s")[-1]["host"] == "still.example"
    assert refs(of(tmp_path, "other")) == ["refs/heads/agent/other"]
    assert told(of(tmp_path, "s")) == 301


def test_counts_of_changes_are_due_by_themselves() -> None:
    quota = SessionQuota(per_second=1, max_bytes=10)
    assert quota.sift("s", 0.0, pushed("refs/heads/agent/x"), now=0.0) is None
    assert quota.due() == SPENT_FOLD_SECONDS
    assert [line.weight for line in quota.collect(SPENT_FOLD_SECONDS)] == [1]
    quota.sift("s", 61.0, pushed("refs/heads/agent/x"), now=61.0)
    assert [line.weight for line in quota.finish(["s"])] == [1]
    assert quota.due() is None


def test_changes_are_bounded_in_memory(tmp_path: Path) -> None:
    """I9: by session and in all; what is beyond is counted (I8)."""
    bounds = LogBounds(pending=100, pending_of_session=10, pending_changes=40, flush_every=60.0)
    with AuditLog(tmp_path, Hands().clock(), bounds) as log:
        for number in range(100):
            log.record("s", denied())
            log.record("s", pushed(f"refs/heads/agent/{number}"))
        assert len(log._intake.events) == 10 + 40
        for session in range(10):
            for number in range(100):
                log.record(f"s{session}", pushed(f"refs/heads/agent/{number}"))
        assert len(log._intake.events) == 2 * 100
    assert told(of(tmp_path, "s")) == 200
    assert told([line for line in all_lines(tmp_path) if line["session"]]) == 1200


def test_a_session_that_spent_its_bytes_is_counted_ever_after(tmp_path: Path) -> None:
    """I9; positive control: its neighbour writes on."""
    hands = Hands()
    bounds = LogBounds(session=10_000, per_second=1000)
    with AuditLog(tmp_path, hands.clock(), bounds) as log:
        for _ in range(1000):
            log.record("s", denied("x" * 500))
        log.record("other", denied("x" * 500))
        log.flush()
        written = [line for line in of(tmp_path, "s") if "aggregate" not in line]
        assert 10 <= len(written) <= 20
        hands.now += 5.0
        log.record("s", denied())
        log.flush()
        assert of(tmp_path, "s")[-1]["rule"] == "limits.audit_bytes"
    assert told(of(tmp_path, "s")) == 1001
    assert len(of(tmp_path, "other")) == 1


def test_counts_are_due_in_a_second_and_in_a_minute_once_the_bytes_are_spent() -> None:
    """I9."""
    quota = SessionQuota(per_second=3, max_bytes=600)
    assert quota.sift("s", 0.0, denied(), now=0.0) is not None
    assert quota.due() is None
    for _ in range(5):
        quota.sift("s", 0.0, denied("x" * 10), now=0.0)
    assert quota.due() == FOLD_SECONDS
    assert quota.collect(0.9) == []
    assert [line.weight for line in quota.collect(1.0)] == [3]
    for _ in range(5):
        quota.sift("s", 9.0, denied("x" * 500), now=9.0)
    assert quota.due() == 9.0 + SPENT_FOLD_SECONDS
    assert quota.collect(60.0) == []
    assert [line.weight for line in quota.collect(69.0)] == [5]


def test_reasons_that_multiply_share_a_line(tmp_path: Path) -> None:
    """I9."""
    with AuditLog(tmp_path, Hands().clock(), LogBounds(per_second=1)) as log:
        for number in range(1000):
            log.record("s", Event(EventKind.DNS, Verdict.DENY, f"reason-{number}"))
    lines = of(tmp_path, "s")
    assert len(lines) <= MAX_FOLDS + 2
    assert told(lines) == 1000
    assert any(line["reason"] == OTHER_REASONS for line in lines)


def test_a_finished_session_is_forgotten_and_its_counts_written(tmp_path: Path) -> None:
    with AuditLog(tmp_path, Hands().clock(), LogBounds(per_second=1)) as log:
        for _ in range(9):
            log.record("s", denied())
        log.finish("s")
        log.flush()
        assert told(of(tmp_path, "s")) == 9
        assert log._quota._sessions == {}


def test_a_flood_does_not_rotate_the_evidence_before_it_away(tmp_path: Path) -> None:
    """I9: under the default proportions; the log keeps far more than a session may write."""
    hands = Hands()
    bounds = LogBounds(file=1, total=400_000, session=40_000, per_second=200)
    with AuditLog(tmp_path, hands.clock(), bounds) as log:
        log.record("victim", denied("what-the-attacker-wants-gone.example"))
        for _ in range(300):
            for _ in range(300):
                log.record("loud", denied("x" * 1000))
            log.flush()
            hands.now += 1.0
    assert [line["host"] for line in of(tmp_path, "victim")] == [
        "what-the-attacker-wants-gone.example"
    ]
    assert told(of(tmp_path, "loud")) == 90_000
    assert checked(tmp_path).whole
