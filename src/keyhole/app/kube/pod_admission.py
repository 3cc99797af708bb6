"""Decides at admission which pods are stamped, and which are refused.

Called by `admission_server.py` with objects as the API server sends them. A pod that a policy
selects gets the stamp by which the CNI plugin recognises it, the volume with its certificates, and
variables with placeholders. A pod that could get around its door is refused (I2).
"""

from __future__ import annotations

import hashlib
import re
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
"""The annotation from which admission and the agent both make a pod's placeholders: the pod's
environment is fixed before its session begins. Placeholders are useless elsewhere."""

_SEED = re.compile("[0-9a-f]{32}")

VOLUME = "keyhole"
NAMESERVER = "192.0.2.53"
"""In the pod every address answers DNS, except loopback, which is not captured."""

_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 - the beginning of a name
"""The volume with the token of a pod's service account, which the API server adds by itself."""

_NETWORKS = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network")
"""Annotations that give a pod other networks. Attack: the second one replaces the network to which
our plugin is chained, so that the runtime would not call it at all (I2)."""

_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod, which its kubelet starts from a file without asking admission."""

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_VOLUMES = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim",
     "projected", "secret")
)  # fmt: skip
"""Kinds of volumes that give no access to the node, nor through its kernel to a server: those of
the `restricted` Pod Security Standard, and images."""
_UNCONFINED = "Unconfined"


class Admission(Struct, frozen=True):
    """The answer to the API server. The zero refuses (I3)."""

    allowed: bool = False
    why: str = ""
    patch: tuple[dict[str, Any], ...] = ()


PASSED = Admission(allowed=True)


def seeded_noise(seed: str) -> Callable[[int], bytes]:
    """A source of bytes for placeholders that depend only on a seed."""
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
    """Decide a new pod, which these policies select; `policy` is that policy, parsed."""
    if not chosen:
        return PASSED
    if len(chosen) > 1:
        names = ", ".join(sorted(each.name for each in chosen))
        return Admission(why=f"more than one KeyholePolicy selects this pod: {names}")
    if policy is None:
        return Admission(why=f"the KeyholePolicy {chosen[0].name} is not valid")
    if _MIRROR in _annotations(pod):
        return Admission(why="a static pod has no door, so no KeyholePolicy selects it")
    refused = next(objections(pod), "")
    if refused:
        return Admission(why=refused)
    seed = _kept_seed(pod, chosen[0]) or seed
    return Admission(allowed=True, patch=tuple(_patch(pod, chosen[0], policy, seed)))


def _kept_seed(pod: dict[str, Any], chosen: ClusterPolicy) -> str:
    """The seed of a pod that was stamped a moment ago. The API server asks again after another
    webhook has changed the pod, whose variables have placeholders of the first seed already."""
    given = _annotations(pod)
    seed = given.get(SEED, "")
    return seed if given.get(STAMP) == chosen.name and _SEED.fullmatch(seed) else ""


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
    """Decide a change of a pod: a stamped pod stays stamped, under the same policy."""
    before, after = _annotations(old), _annotations(new)
    names = [{each.name for each in selecting(policies, labels_of(pod))} for pod in (old, new)]
    if STAMP not in before:
        if STAMP in after:
            return Admission(why=f"the annotation {STAMP} is Keyhole's")
        if names[1] - names[0]:
            return Admission(why="a pod that runs gets no door; make a new one with these labels")
        return PASSED
    if any(before.get(name) != after.get(name) for name in (STAMP, SEED)):
        return Admission(why=f"the annotations {STAMP} and {SEED} cannot be changed")
    if names[0] != names[1]:
        return Admission(why="these labels select another KeyholePolicy; make a new pod")
    refused = next(objections(new), "")
    return Admission(why=refused) if refused else PASSED


def bound_pod(pod: dict[str, Any], binding: dict[str, Any]) -> dict[str, Any]:
    """The pod after a Binding was applied, with the labels and annotations of the Binding."""
    before, given = pod.get("metadata") or {}, binding.get("metadata") or {}
    joined = {
        name: (before.get(name) or {}) | (given.get(name) or {})
        for name in ("labels", "annotations")
    }
    return pod | {"metadata": before | joined}


def objections(pod: dict[str, Any]) -> Iterator[str]:
    """The settings of a pod that could get around its door, or reach the node."""
    spec = pod.get("spec") or {}
    for name in _HOST_NAMESPACES:
        if spec.get(name):
            yield f"{name} would share the node's; a pod behind a door has its own"
    if any(_annotations(pod).get(name) for name in _NETWORKS):
        yield "a pod behind a door has no further network"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f"the volume {volume.get('name')} is a path of the node"
        for kind in volume.keys() - _VOLUMES - {"name", "hostPath"}:
            yield f"the volume {volume.get('name')} is reached by the node's network ({kind})"
    if _has_no_filter(spec):
        yield "the pod runs without a seccomp profile, which closes other kinds of sockets"
    for container in _containers(spec):
        yield from _container_objections(container)


def _container_objections(container: dict[str, Any]) -> Iterator[str]:
    name, context = container.get("name"), container.get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    if context.get("privileged"):
        yield f"the container {name} is privileged"
    if added:
        yield f"the container {name} adds capabilities: {', '.join(added)}"
    if _has_no_filter(container):
        yield f"the container {name} runs without a seccomp profile"
    if context.get("procMount") not in (None, "Default"):
        yield f"the container {name} sees all of /proc"
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"the container {name} has a port of the node"


def _has_no_filter(part: dict[str, Any]) -> bool:
    profile = (part.get("securityContext") or {}).get("seccompProfile") or {}
    return profile.get("type") == _UNCONFINED


def _patch(
    pod: dict[str, Any], chosen: ClusterPolicy, policy: Policy, seed: str
) -> Iterator[dict[str, Any]]:
    """RFC 6902."""
    spec = pod.get("spec") or {}
    stamped = _annotations(pod) | {STAMP: chosen.name, SEED: seed}
    yield {"op": "add", "path": "/metadata/annotations", "value": stamped}
    # A pod behind a door cannot reach the API server. Attack: hostile code sends the token of the
    # pod's account to an accomplice, through a host that the policy allows (I1).
    dropped = {VOLUME}
    if spec.get("automountServiceAccountToken") is not True:
        yield {"op": "add", "path": "/spec/automountServiceAccountToken", "value": False}
        dropped |= set(_token_volumes(spec))
    volumes = [each for each in spec.get("volumes") or () if each.get("name") not in dropped]
    own = {"name": VOLUME, "csi": {"driver": DRIVER, "readOnly": True}}
    yield {"op": "add", "path": "/spec/volumes", "value": [*volumes, own]}
    yield {"op": "add", "path": "/spec/dnsPolicy", "value": "None"}
    yield {"op": "add", "path": "/spec/dnsConfig", "value": {"nameservers": [NAMESERVER]}}
    context = spec.get("securityContext") or {}
    if not context.get("seccompProfile"):
        # AF_VSOCK works in an empty network, too; the runtime's own profile blocks it.
        value = context | {"seccompProfile": {"type": "RuntimeDefault"}}
        yield {"op": "add", "path": "/spec/securityContext", "value": value}
    stand_ins = SessionPlaceholders(policy, seeded_noise(seed))
    variables = pod_variables(policy, stand_ins)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            path = f"/spec/{kind}/{index}"
            yield from _prepare_container(path, container, variables, dropped)


def _token_volumes(spec: dict[str, Any]) -> Iterator[str]:
    """The volumes that the API server added; a token that the pod itself asks for stays."""
    for volume in spec.get("volumes") or ():
        name = str(volume.get("name"))
        sources = (volume.get("projected") or {}).get("sources") or ()
        if name.startswith(_TOKEN_VOLUME) and any("serviceAccountToken" in s for s in sources):
            yield name


def _prepare_container(
    path: str, container: dict[str, Any], variables: Mapping[str, str], dropped: set[str]
) -> Iterator[dict[str, Any]]:
    given_mounts = container.get("volumeMounts") or ()
    mounts = [each for each in given_mounts if each.get("name") not in dropped]
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


def labels_of(pod: dict[str, Any]) -> dict[str, str]:
    """The labels of a pod."""
    return (pod.get("metadata") or {}).get("labels") or {}
