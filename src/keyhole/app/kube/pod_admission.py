"""Decides what is done to pods at admission: which are stamped, and which are refused.

Called by `admission_server.py` with objects as the API server sends them. A pod that a policy
selects gets the stamp by which the CNI plugin knows it, the volume with its certificates, and
variables with placeholders; what would lead around its door is refused (I2).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.kube.csi_server import DRIVER
from keyhole.app.kube.pod_files import PLACE, pod_variables
from keyhole.app.setup.client_setup import SessionPlaceholders
from keyhole.sandbox.pods.cni_plugin import STAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from keyhole.app.kube.resources import ClusterPolicy
    from keyhole.policy.policy import Policy

SEED = "keyhole.dev/placeholders"
"""The annotation from which a pod's placeholders are made: an environment is fixed before the
session begins, and both sides must know them. They are worth nothing elsewhere."""

VOLUME = "keyhole"
NAMESERVER = "192.0.2.53"
"""Any address answers; loopback would not be captured."""

_FURTHER_NETWORKS = "k8s.v1.cni.cncf.io/networks"
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


class Admission(Struct, frozen=True):
    """The answer to the API server. The zero refuses (I3)."""

    allowed: bool = False
    why: str = ""
    patch: tuple[dict[str, Any], ...] = ()


PASSED = Admission(allowed=True)


def seeded_noise(seed: str) -> Callable[[int], bytes]:
    """Bytes for placeholders that follow from a seed."""
    count = 0

    def noise(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{count} {seed}".encode()).digest(size)

    return noise


def selecting(policies: Sequence[ClusterPolicy], labels: Mapping[str, str]) -> list[ClusterPolicy]:
    """The policies of a namespace that select a pod with these labels."""
    return [each for each in policies if each.selector.selects(labels)]


def admit_pod(
    pod: dict[str, Any], chosen: Sequence[ClusterPolicy], policy: Policy | None, seed: str
) -> Admission:
    """Decide a new pod, which these policies select; `policy` is the one that they are, read."""
    if not chosen:
        return PASSED
    if len(chosen) > 1:
        names = ", ".join(sorted(each.name for each in chosen))
        return Admission(why=f"more than one KeyholePolicy selects this pod: {names}")
    if policy is None:
        return Admission(why=f"the KeyholePolicy {chosen[0].name} is not valid")
    refused = next(objections(pod), "")
    if refused:
        return Admission(why=refused)
    return Admission(allowed=True, patch=tuple(_patch(pod, chosen[0], policy, seed)))


def check_pod(pod: dict[str, Any], chosen: Sequence[ClusterPolicy]) -> Admission:
    """Decide a new pod as it will be stored: another webhook may have changed what was stamped."""
    stamp = _annotations(pod).get(STAMP)
    if stamp != (chosen[0].name if len(chosen) == 1 else None):
        return Admission(why=f"the annotation {STAMP} is Keyhole's")
    refused = next(objections(pod), "") if chosen else ""
    return Admission(why=refused) if refused else PASSED


def admit_change(
    old: dict[str, Any], new: dict[str, Any], policies: Sequence[ClusterPolicy]
) -> Admission:
    """Decide a change of a pod: what was stamped stays so, under the same policy."""
    before, after = _annotations(old), _annotations(new)
    if STAMP not in before:
        if STAMP in after:
            return Admission(why=f"the annotation {STAMP} is Keyhole's")
        return PASSED
    if any(before.get(name) != after.get(name) for name in (STAMP, SEED)):
        return Admission(why=f"the annotations {STAMP} and {SEED} cannot be changed")
    names = [{each.name for each in selecting(policies, labels_of(pod))} for pod in (old, new)]
    if names[0] != names[1]:
        return Admission(why="these labels select another KeyholePolicy; make a new pod")
    refused = next(objections(new), "")
    return Admission(why=refused) if refused else PASSED


def objections(pod: dict[str, Any]) -> Iterator[str]:
    """What in a pod would lead around its door, or to the node."""
    spec = pod.get("spec") or {}
    for name in _HOST_NAMESPACES:
        if spec.get(name):
            yield f"{name} would share the node's; a pod behind a door has its own"
    if _annotations(pod).get(_FURTHER_NETWORKS):
        yield "a pod behind a door has no further network"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f"the volume {volume.get('name')} is a path of the node"
    for container in _containers(spec):
        context = container.get("securityContext") or {}
        added = (context.get("capabilities") or {}).get("add") or ()
        if context.get("privileged"):
            yield f"the container {container.get('name')} is privileged"
        if added:
            yield f"the container {container.get('name')} adds capabilities: {', '.join(added)}"
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield f"the container {container.get('name')} has a port of the node"


def _patch(
    pod: dict[str, Any], chosen: ClusterPolicy, policy: Policy, seed: str
) -> Iterator[dict[str, Any]]:
    """RFC 6902."""
    spec = pod.get("spec") or {}
    stamped = _annotations(pod) | {STAMP: chosen.name, SEED: seed}
    yield {"op": "add", "path": "/metadata/annotations", "value": stamped}
    volumes = [each for each in spec.get("volumes") or () if each.get("name") != VOLUME]
    own = {"name": VOLUME, "csi": {"driver": DRIVER, "readOnly": True}}
    yield {"op": "add", "path": "/spec/volumes", "value": [*volumes, own]}
    yield {"op": "add", "path": "/spec/dnsPolicy", "value": "None"}
    yield {"op": "add", "path": "/spec/dnsConfig", "value": {"nameservers": [NAMESERVER]}}
    stand_ins = SessionPlaceholders(policy, seeded_noise(seed))
    variables = pod_variables(policy, stand_ins)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield from _prepare_container(f"/spec/{kind}/{index}", container, variables)


def _prepare_container(
    path: str, container: dict[str, Any], variables: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    mounts = [each for each in container.get("volumeMounts") or () if each.get("name") != VOLUME]
    own = {"name": VOLUME, "mountPath": PLACE, "readOnly": True}
    yield {"op": "add", "path": f"{path}/volumeMounts", "value": [*mounts, own]}
    given = container.get("env") or []
    named = {each.get("name") for each in given}
    added = [
        {"name": name, "value": value}
        for name, value in sorted(variables.items())
        if name not in named
    ]
    yield {"op": "add", "path": f"{path}/env", "value": [*given, *added]}


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in _CONTAINERS:
        yield from spec.get(kind) or ()


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def is_stamped(pod: dict[str, Any]) -> bool:
    """Whether a pod has a door."""
    return STAMP in _annotations(pod)


def labels_of(pod: dict[str, Any]) -> dict[str, str]:
    """The labels of a pod."""
    return (pod.get("metadata") or {}).get("labels") or {}
