"""Reports of several workers as one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from keyhole.app.daemon.joined_reports import JoinedMetrics, join_checks, join_reloads
from keyhole.control.prometheus import Family, Sample
from keyhole.control.values import HealthCheck, PolicyReload, Reloaded, ReloadOutcome


class FakePlane:
    """A data plane that may be gone."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()


def report(count: int, *, admitting: int = 1, lag: float = 0.0) -> list[Family]:
    return [
        Family("keyhole_decisions_total", "counter", "", [Sample(count, (("reason", "rule"),))]),
        Family("keyhole_connections", "gauge", "", [Sample(count)]),
        Family("keyhole_admitting", "gauge", "", [Sample(admitting)]),
        Family("keyhole_audit_lag_seconds", "gauge", "", [Sample(lag)]),
    ]


def values(metrics: JoinedMetrics) -> dict[str, float]:
    return {each.name: s.value for each in metrics.families() for s in each.samples}


def test_counters_are_summed_and_stay_when_a_worker_is_lost() -> None:
    """A counter that falls would be taken for a restart, and counted twice."""
    metrics = JoinedMetrics()
    one, other = (cast("Any", FakePlane()) for _ in range(2))
    metrics.hear(one, report(5, admitting=0, lag=2.0))
    metrics.hear(other, report(7, lag=0.5))
    assert values(metrics) == {
        "keyhole_decisions_total": 12,
        "keyhole_connections": 12,
        "keyhole_admitting": 0,
        "keyhole_audit_lag_seconds": 2.0,
    }
    one.gone.set()
    for _ in range(2):
        found = values(metrics)
        assert (found["keyhole_decisions_total"], found["keyhole_connections"]) == (12, 7)
        assert found["keyhole_admitting"] == 1


def test_a_check_holds_if_it_holds_for_all() -> None:
    good, bad = HealthCheck("keeper", on=True), HealthCheck("keeper", on=False, note="ended")
    ca = HealthCheck("ca", on=True)
    assert join_checks([[good, ca], [bad]]) == [bad, ca]
    assert join_checks([[bad], [good]]) == [bad]
    assert join_checks([[good], [good]]) == [good]


def test_a_policy_is_listed_once_with_what_changed() -> None:
    kept = PolicyReload("/p", ReloadOutcome.KEPT, "not accepted")
    unchanged = PolicyReload("/p", ReloadOutcome.UNCHANGED)
    assert join_reloads([Reloaded((unchanged,)), Reloaded((kept,))]).policies == (kept,)
    assert join_reloads([Reloaded((kept,)), Reloaded((unchanged,))]).policies == (kept,)
