"""Counters of a long-lived gateway, for Prometheus.

Audit events feed them, so that both agree. Hosts and sessions are not labels: a sandbox must not be
able to create series (I9).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from keyhole.control.prometheus import Family, Sample
from keyhole.model.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.session.live_session import LiveSession
    from keyhole.audit.log import AuditLog
    from keyhole.control.values import SessionPhase
    from keyhole.model.event import Event

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of waiting times: from an origin on this host to a slow model."""

MAX_SERIES = 512
"""The most combinations of kind, verdict and reason. All are fixed words, and there are fewer."""


class MeteredSession(Protocol):
    """The parts of a session that are counted."""

    @property
    def live(self) -> LiveSession | None:
        """The live session, once its door is open."""

    @property
    def state(self) -> SessionPhase:
        """The session's state."""


class Metrics:
    """Counts of decisions and their durations since the gateway started."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._up = self._down = 0

    def observe(self, event: Event) -> None:
        """Count one event."""
        key = (event.kind.value, event.verdict.name.lower(), event.reason)
        if key in self._decisions or len(self._decisions) < MAX_SERIES:
            self._decisions[key] += 1
        if event.kind is EventKind.REQUEST:
            for name, value in event.details:
                if name == "ms" and isinstance(value, int | float):
                    self._buckets[bisect_left(SECONDS, value / 1000)] += 1
                    self._seconds += value / 1000

    def families(self, entries: Iterable[MeteredSession]) -> list[Family]:
        """All metrics at this moment."""
        handles = [entry.live.handle for entry in entries if entry.live]
        figures = [handle.figures for handle in handles]
        states = Counter(entry.state.value for entry in entries)
        budgets = [use for handle in handles for use in handle.budgets]
        spent = sum(use.used >= use.limit for use in budgets)
        decisions = [
            Sample(count, (("kind", kind), ("verdict", verdict), ("reason", reason)))
            for (kind, verdict, reason), count in sorted(self._decisions.items())
        ]
        return [
            Family("keyhole_decisions_total", "counter", "Decisions, by reason.", decisions),
            Family(
                "keyhole_request_seconds",
                "histogram",
                "How long inspected requests waited for the head of their answer.",
                self._histogram(),
            ),
            Family(
                "keyhole_sessions",
                "gauge",
                "Sessions, by state.",
                [Sample(count, (("state", state),)) for state, count in sorted(states.items())],
            ),
            _gauge("keyhole_connections", "Open connections.", sum(f.connections for f in figures)),
            _gauge("keyhole_session_bytes_up", "Bytes sent by the sessions that are held.",
                   sum(f.up for f in figures)),
            _gauge("keyhole_session_bytes_down", "Bytes received by them.",
                   sum(f.down for f in figures)),
            _gauge("keyhole_pool_connections", "Connections to origins that wait for a request.",
                   sum(handle.kept for handle in handles)),
            Family(
                "keyhole_budgets",
                "gauge",
                "Budgets of the sessions that are held, by whether something is left.",
                [Sample(len(budgets) - spent, (("state", "within"),)),
                 Sample(spent, (("state", "spent"),))],
            ),
            _gauge("keyhole_audit_pending", "Audit events that wait to be written.",
                   self._log.pending),
            _gauge("keyhole_audit_lag_seconds", "How long the oldest of them has waited.",
                   self._log.lag),
            _gauge("keyhole_admitting", "Whether the audit log can be written.",
                   int(self._log.admitting)),
        ]  # fmt: skip

    def _histogram(self) -> list[Sample]:
        found, total = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._buckets, strict=True):
            total += count
            found.append(Sample(total, (("le", bound),), "_bucket"))
        return [*found, Sample(self._seconds, (), "_sum"), Sample(total, (), "_count")]


def _gauge(name: str, words: str, value: float) -> Family:
    return Family(name, "gauge", words, [Sample(value)])
