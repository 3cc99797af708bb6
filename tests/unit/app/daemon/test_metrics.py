"""What a long-lived gateway counts: the audit's own events, and what its sessions hold now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from keyhole.app.daemon.metrics import MAX_SERIES, Metrics
from keyhole.control.prometheus import exposition
from keyhole.control.values import SessionPhase
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.policy.budget import BudgetUse

if TYPE_CHECKING:
    from keyhole.app.daemon.served_sessions import ServedSession
    from keyhole.audit.log import AuditLog

LOG = cast("AuditLog", SimpleNamespace(pending=3, lag=0.5, admitting=True))


def said(metrics: Metrics, *entries: ServedSession) -> list[str]:
    text = exposition(metrics.families(entries)).decode()
    return [line for line in text.splitlines() if line[0] != "#"]


def request(ms: int, reason: str = "rule", verdict: Verdict = Verdict.ALLOW) -> Event:
    return Event(EventKind.REQUEST, verdict, reason, details=(("path", "/v1"), ("ms", ms)))


def test_decisions_are_counted_by_reason_and_waiting_by_its_length() -> None:
    metrics = Metrics(LOG)
    for event in (request(3), request(40), request(99_000), request(1, "no-rule", Verdict.DENY)):
        metrics.observe(event)
    metrics.observe(Event(EventKind.DNS, Verdict.ALLOW, "rule"))
    found = said(metrics)
    assert 'keyhole_decisions_total{kind="request",reason="rule",verdict="allow"} 3.0' in found
    assert 'keyhole_decisions_total{kind="request",reason="no-rule",verdict="deny"} 1.0' in found
    assert 'keyhole_decisions_total{kind="dns",reason="rule",verdict="allow"} 1.0' in found
    assert 'keyhole_request_seconds_bucket{le="0.005"} 2.0' in found
    assert 'keyhole_request_seconds_bucket{le="0.05"} 3.0' in found
    assert 'keyhole_request_seconds_bucket{le="30.0"} 3.0' in found
    assert 'keyhole_request_seconds_bucket{le="+Inf"} 4.0' in found
    assert "keyhole_request_seconds_count 4.0" in found
    assert "keyhole_audit_lag_seconds 0.5" in found


def test_what_sessions_hold_is_summed_and_no_session_is_named() -> None:
    """I9: a sandbox makes no series, however many there are."""
    figures = SimpleNamespace(connections=2, up=10, down=20)
    budgets = (BudgetUse("services.a.budget.tokens", 5, 5), BudgetUse("services.b", 1, 9))
    handle = SimpleNamespace(figures=figures, kept=4, budgets=budgets)
    live = SimpleNamespace(handle=handle)
    one = cast("ServedSession", SimpleNamespace(state=SessionPhase.OPEN, live=live))
    other = cast("ServedSession", SimpleNamespace(state=SessionPhase.PREPARED, live=None))
    found = said(Metrics(LOG), one, one, other)
    assert 'keyhole_sessions{state="open"} 2.0' in found
    assert "keyhole_connections 4.0" in found
    assert "keyhole_pool_connections 8.0" in found
    assert 'keyhole_budgets{state="spent"} 2.0' in found
    assert 'keyhole_budgets{state="within"} 2.0' in found
    assert "keyhole_session_bytes_down 40.0" in found


def test_reasons_without_end_make_no_series_without_end() -> None:
    """I9, should a reason ever be made of what somebody sent."""
    metrics = Metrics(LOG)
    for number in range(MAX_SERIES + 50):
        metrics.observe(request(1, f"reason-{number}"))
    assert sum(line.startswith("keyhole_decisions_total") for line in said(metrics)) == MAX_SERIES
