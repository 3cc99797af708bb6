"""`keyhole kube status`, for people and for scripts."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING

from keyhole.app.kube.cluster_status import AgentRow, ClusterStatus, PodRow, PolicyRow
from keyhole.cli.kube_status import show_cluster

if TYPE_CHECKING:
    import pytest

NOW = datetime.datetime.now(datetime.UTC)
DOORS = {"open": 1, "waiting": 0, "closed": 0}
AGENT = AgentRow("node-1", "0.1.0", NOW, DOORS, silent=False)
POLICY = PolicyRow("team", "agents", valid=True, pods=1, faults=())
POD = PodRow("team", "worker", "node-1", "agents", "open", "")


def test_a_cluster_that_is_well_is_shown_and_ends_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show_cluster(ClusterStatus((AGENT,), (POLICY,), (POD,)), as_json=False) == 0
    printed = capsys.readouterr().out
    for expected in ("node-1", "serves", "agents", "yes", "worker", "open"):
        assert expected in printed


def test_what_is_not_well_is_shown_with_its_reason_and_ends_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = AgentRow("node-2", "0.1.0", None, DOORS, silent=True)
    faulty = PolicyRow("", "wide\x1b[31m", valid=False, pods=None, faults=("3:1: no such key",))
    waiting = PodRow("team", "late", "node-1", "", "waiting", "no KeyholePolicy selects it")
    status = ClusterStatus((AGENT, silent), (POLICY, faulty), (POD, waiting))
    assert show_cluster(status, as_json=False) == 1
    printed = capsys.readouterr().out
    for expected in ("silent", "never", "(cluster)", "3:1: no such key", "no KeyholePolicy"):
        assert expected in printed
    assert "\x1b" not in printed


def test_a_cluster_without_agents_is_not_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_cluster(ClusterStatus((), (), ()), as_json=False) == 1
    assert "no agent has reported yet" in capsys.readouterr().out


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_cluster(ClusterStatus((AGENT,), (POLICY,), (POD,)), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["good"] is True
    assert told["agents"][0]["doors"] == DOORS
    assert told["policies"] == [
        {"namespace": "team", "name": "agents", "valid": True, "pods": 1, "faults": []}
    ]
    assert told["pods"][0]["why"] is None
