"""Pods of each policy, from what the agents of all nodes report."""

from __future__ import annotations

from types import SimpleNamespace

from keyhole.app.kube.pod_counts import count_pods


def _node(*pods: tuple[str, str, str]) -> SimpleNamespace:
    named = [{"namespace": space, "policy": policy, "door": door} for space, policy, door in pods]
    return SimpleNamespace(status={"pods": named})


def test_pods_with_an_open_door_count_for_their_policy() -> None:
    nodes = [
        _node(
            ("team", "agents", "open"), ("team", "agents", "closed"), ("other", "agents", "open")
        ),
        _node(("team", "agents", "open"), ("team", "", "waiting")),
        SimpleNamespace(status=None),
    ]
    assert count_pods(nodes) == {("team", "agents"): 2, ("other", "agents"): 1}
