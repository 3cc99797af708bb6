"""The ports of a pod that its kubelet connects to: those of its probes and of its hooks.

Read from the pod's object at the API server. Nobody can change the probes of an existing pod, and
its own processes cannot change the object at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.policy.ports import DOOR_PORT, MAX_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PROBED = 16
"""Ports of one pod to which its kubelet may connect (I9)."""

_CONTAINERS = ("initContainers", "containers")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_HOOKS = ("postStart", "preStop")
_KINDS = ("httpGet", "tcpSocket", "grpc")


def probe_ports(pod: dict[str, Any]) -> tuple[int, ...]:
    """The ports, sorted. A probe that names its own host does not connect to the pod."""
    spec = pod.get("spec") or {}
    containers = [each for kind in _CONTAINERS for each in spec.get(kind) or ()]
    found = {port for each in containers for port in _ports_of(each)}
    return tuple(sorted(found)[:MAX_PROBED])


def _ports_of(container: dict[str, Any]) -> Iterator[int]:
    named = {each.get("name"): each.get("containerPort") for each in container.get("ports") or ()}
    lifecycle = container.get("lifecycle") or {}
    asked = [*map(container.get, _PROBES), *map(lifecycle.get, _HOOKS)]
    for probe in asked:
        for kind in _KINDS:
            action = (probe or {}).get(kind) or {}
            if not action or action.get("host"):
                continue
            port = named.get(action.get("port"), action.get("port"))
            if isinstance(port, str) and port.isdecimal():
                port = int(port)
            if isinstance(port, int) and 0 < port <= MAX_PORT and port != DOOR_PORT:
                yield port
