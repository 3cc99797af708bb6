"""`keyhole kube status`: shows the agents, policies and pods of a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.cli.amounts import age, moment
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Cell, Column, Fit, Grid, cell, show

if TYPE_CHECKING:
    from keyhole.app.kube.cluster_status import AgentRow, ClusterStatus, PodRow, PolicyRow

_GOOD, _BAD = "green", "red"


def show_cluster(status: ClusterStatus, *, as_json: bool) -> int:
    """Print it; 0 if everything is well, otherwise 1."""
    if as_json:
        print_json(_as_json(status))
    else:
        show(_grids(status))
    return EXIT_OK if status.good else EXIT_DENIED


def _grids(status: ClusterStatus) -> tuple[Grid, ...]:
    columns = (Column("NODE"), Column("AGENT"), Column("VERSION"), Column("HEARD"),
               *(Column(name, right=True) for name in ("OPEN", "WAITING", "CLOSED")))  # fmt: skip
    agents = Grid(
        columns,
        tuple(_agent(each) for each in status.agents),
        "" if status.agents else "no agent has reported yet",
    )
    policies = Grid(
        (Column("NAMESPACE"), Column("POLICY"), Column("VALID"), Column("PODS", right=True),
         Column("FAULT", Fit.WRAPPED)),
        tuple(_policy(each) for each in status.policies),
        "" if status.policies else "no policy",
    )  # fmt: skip
    pods = Grid(
        (Column("NAMESPACE"), Column("POD"), Column("DOOR"), Column("POLICY"), Column("NODE"),
         Column("WHY", Fit.WRAPPED)),
        tuple(_pod(each) for each in status.pods),
        "" if status.pods else "no pod that a policy selects",
    )  # fmt: skip
    return agents, policies, pods


def _agent(row: AgentRow) -> tuple[Cell, ...]:
    heard = age(time.time() - row.heard.timestamp()) if row.heard else "never"
    state = cell("silent", _BAD) if row.silent else cell("serves", _GOOD)
    counts = (cell(row.doors[door]) for door in ("open", "waiting", "closed"))
    return cell(row.node), state, cell(row.version), cell(heard), *counts


def _policy(row: PolicyRow) -> tuple[Cell, ...]:
    words = {True: cell("yes", _GOOD), False: cell("no", _BAD), None: cell("–")}
    pods = "–" if row.pods is None else row.pods
    fault = row.faults[0] if row.faults else ""
    return (
        cell(row.namespace or "(cluster)"),
        cell(row.name),
        words[row.valid],
        cell(pods),
        cell(fault),
    )


def _pod(row: PodRow) -> tuple[Cell, ...]:
    door = cell(row.door, _GOOD if row.door == "open" else _BAD)
    texts = map(cell, (row.policy, row.node, row.why))
    return cell(row.namespace), cell(row.name), door, *texts


def _as_json(status: ClusterStatus) -> dict[str, object]:
    return {
        "good": status.good,
        "agents": [
            {
                "node": each.node,
                "version": each.version,
                "heard": moment(each.heard.timestamp()) if each.heard else None,
                "silent": each.silent,
                "doors": each.doors,
            }
            for each in status.agents
        ],
        "policies": [
            {
                "namespace": each.namespace or None,
                "name": each.name,
                "valid": each.valid,
                "pods": each.pods,
                "faults": list(each.faults),
            }
            for each in status.policies
        ],
        "pods": [
            {
                "namespace": each.namespace,
                "name": each.name,
                "node": each.node,
                "policy": each.policy or None,
                "door": each.door,
                "why": each.why or None,
            }
            for each in status.pods
        ],
    }
