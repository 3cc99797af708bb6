"""`keyhole kube status` finds pods that a policy selects and that have no door (I3)."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from lightkube import codecs

from keyhole.app.kube.cluster_status import NO_DOOR, ClusterStatus, pods_without_door
from keyhole.app.kube.resources import KeyholePolicy
from keyhole.sandbox.pods.cni_plugin import STAMP


def policy(spec: dict[str, Any]) -> Any:  # noqa: ANN401
    assert KeyholePolicy  # its kind is known to the library
    metadata = {"name": "agents", "namespace": "team"}
    return codecs.from_dict(
        {
            "apiVersion": "keyhole.dev/v1alpha1", "kind": "KeyholePolicy",
            "metadata": metadata, "spec": spec,
        }
    )  # fmt: skip


AGENTS = policy({"podSelector": {"matchLabels": {"role": "agent"}}, "policy": "version = 1"})


def pod(phase: str = "Running", **metadata: object) -> Any:  # noqa: ANN401
    given = {"name": "old", "namespace": "team", "labels": {"role": "agent"}, **metadata}
    return codecs.from_dict(
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": given,
            "spec": {"containers": [], "nodeName": "node-1"}, "status": {"phase": phase},
        }
    )  # fmt: skip


def test_a_pod_that_is_older_than_its_policy_is_shown_without_a_door_i3() -> None:
    (row,) = pods_without_door([AGENTS], [pod()])
    assert (row.namespace, row.name, row.node, row.policy) == ("team", "old", "node-1", "agents")
    assert (row.door, "delete it" in row.why) == (NO_DOOR, True)
    assert not ClusterStatus((), (), (row,)).good


@pytest.mark.parametrize(
    "other",
    [
        pod(annotations={STAMP: "agents"}),
        pod(labels={"role": "web"}),
        pod(namespace="other"),
        pod("Succeeded"),
        pod(deletionTimestamp=datetime.datetime.now(datetime.UTC).isoformat()),
    ],
    ids=["stamped", "other labels", "another namespace", "ended", "being deleted"],
)
def test_a_pod_that_needs_no_door_or_is_known_to_an_agent_is_not_shown_so(
    other: Any,  # noqa: ANN401
) -> None:
    assert not list(pods_without_door([AGENTS], [other]))


def test_a_policy_that_cannot_be_read_hides_no_pod_of_another_i3() -> None:
    broken = policy({"podSelector": {}, "policy": "version = 1"})
    assert len(list(pods_without_door([broken, AGENTS], [pod()]))) == 1
