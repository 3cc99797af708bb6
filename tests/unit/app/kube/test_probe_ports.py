"""The ports that a kubelet connects to (I2, I9)."""

from __future__ import annotations

from typing import Any

from keyhole.app.kube.probe_ports import MAX_PROBED, probe_ports


def pod(*containers: dict[str, Any], kind: str = "containers") -> dict[str, Any]:
    return {"spec": {kind: list(containers)}}


def test_every_kind_of_probe_names_a_port() -> None:
    container = {
        "ports": [{"name": "web", "containerPort": 8080}],
        "startupProbe": {"httpGet": {"port": "web"}},
        "livenessProbe": {"tcpSocket": {"port": 5432}},
        "readinessProbe": {"grpc": {"port": 9090}},
        "lifecycle": {"preStop": {"httpGet": {"port": "8081"}}},
    }
    assert probe_ports(pod(container)) == (5432, 8080, 8081, 9090)
    assert probe_ports(pod(container, kind="initContainers")) == (5432, 8080, 8081, 9090)


def test_a_probe_that_does_not_ask_the_pod_opens_nothing_i2() -> None:
    for probe in (
        {"exec": {"command": ["true"]}},
        {"httpGet": {"port": 8080, "host": "192.0.2.1"}},
        {"httpGet": {"port": "unknown"}},
        {"tcpSocket": {"port": 15001}},
        {"tcpSocket": {"port": 0}},
        {},
    ):
        assert probe_ports(pod({"livenessProbe": probe})) == ()
    assert probe_ports({}) == ()


def test_the_number_of_ports_is_bounded_i9() -> None:
    containers = [{"livenessProbe": {"tcpSocket": {"port": 2000 + n}}} for n in range(64)]
    assert len(probe_ports(pod(*containers))) == MAX_PROBED
