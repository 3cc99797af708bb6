"""Joins the reports of a gateway's workers into one: metrics, health checks, reloaded policies.

Used by `gateway_operations.py`. A reader of metrics sees the gateway as a whole: a worker is no
label, and what a lost one had counted stays counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.control.prometheus import Family, Sample
from keyhole.control.values import HealthCheck, Reloaded, ReloadOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess
    from keyhole.control.values import PolicyReload

_GAUGE = "gauge"
_JOINED: dict[str, Callable[[float, float], float]] = {
    "keyhole_admitting": min,
    "keyhole_audit_lag_seconds": max,
}
"""Gauges that are not summed."""


class JoinedMetrics:
    """The last known metrics of each worker, and the counters of those that were lost."""

    def __init__(self) -> None:
        self._lost: list[Family] = []
        self._known: dict[DaemonDataPlaneProcess, list[Family]] = {}

    def hear(self, plane: DaemonDataPlaneProcess, families: Iterable[Family]) -> None:
        """A worker's metrics."""
        self._known[plane] = list(families)

    def families(self) -> list[Family]:
        """All metrics of the gateway."""
        for plane in [each for each in self._known if each.gone.is_set()]:
            counted = [each for each in self._known.pop(plane) if each.kind != _GAUGE]
            self._lost = join_families([self._lost, counted])
        return join_families([self._lost, *self._known.values()])


def join_families(reports: Iterable[Iterable[Family]]) -> list[Family]:
    """One family of each name, with one sample for each combination of labels."""
    heads: dict[str, Family] = {}
    found: dict[str, dict[tuple[tuple[tuple[str, str], ...], str], float]] = {}
    for report in reports:
        for family in report:
            heads.setdefault(family.name, family)
            values = found.setdefault(family.name, {})
            join = _JOINED.get(family.name, float.__add__)
            for sample in family.samples:
                key, value = (sample.labels, sample.suffix), float(sample.value)
                values[key] = join(values[key], value) if key in values else value
    return [
        Family(
            name,
            head.kind,
            head.help,
            [Sample(value, labels, suffix) for (labels, suffix), value in found[name].items()],
        )
        for name, head in heads.items()
    ]


def join_checks(reports: Iterable[Iterable[HealthCheck]]) -> list[HealthCheck]:
    """One check of each name: it holds if it holds for all workers."""
    found: dict[str, HealthCheck] = {}
    for report in reports:
        for check in report:
            if check.name not in found or not check.on:
                found[check.name] = check
    return list(found.values())


def join_reloads(answers: Iterable[Reloaded]) -> Reloaded:
    """One outcome for each policy: sessions of one policy may be with several workers."""
    found: dict[str, PolicyReload] = {}
    for answer in answers:
        for policy in answer.policies:
            known = found.get(policy.path)
            if known is None or policy.outcome is not ReloadOutcome.UNCHANGED:
                found[policy.path] = policy
    return Reloaded(tuple(found.values()))
