"""A pod under gVisor, whose network is that of the pod: it has the door and nothing else (I2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lightkube.resources.core_v1 import Event

from tests.rigs.kube.binaries import GVISOR, build_programs
from tests.rigs.kube.estate import SECRET
from tests.rigs.kube.node import NODE
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.rigs.kube.estate import Estate

pytestmark = pytest.mark.attack


def test_a_pod_under_gvisor_has_its_door_and_no_interface_i1_i2(estate: Estate) -> None:
    """The control is a pod under gVisor without a door, which reaches the node."""
    build_programs(GVISOR)
    estate.apply(
        {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "gvisor-door"}, "handler": "runsc-door",
        }
    )  # fmt: skip
    for name, selected in (("guarded", True), ("bare", False)):
        pod = estate.pod(name, selected=selected)
        pod["spec"]["runtimeClassName"] = "gvisor-door"
        estate.create(pod)
    for name in ("guarded", "bare"):
        until(lambda name=name: estate.phase(name) == "Running", told=lambda: _events(estate))  # type: ignore[misc]
        assert "4.4.0" in estate.inside(name, "cat", "/proc/version")[1], "gVisor's own kernel"
    node = ("curl", "-sS", "-k", "--max-time", "5", f"https://{NODE}:6443/readyz")
    assert estate.inside("bare", *node)[0] == 0, "the control"
    assert estate.inside("guarded", *node)[0] != 0
    asked = ("curl", "-sS", "--max-time", "20", "https://one.example/v1/gvisor")
    assert estate.inside("guarded", *asked)[0] == 0
    assert estate.origin.credentials("/v1/gvisor") == [f"Bearer {SECRET}"]
    links = estate.inside("guarded", "ip", "-o", "link")[1]
    assert len(links.strip().splitlines()) == 1
    for name in ("guarded", "bare"):
        estate.remove(name)


def _events(estate: Estate) -> list[str]:
    listed = estate.client.list(Event, namespace="default")
    return sorted({each.message or "" for each in listed if each.type == "Warning"})
