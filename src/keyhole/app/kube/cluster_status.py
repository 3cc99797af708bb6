"""What the API server knows about Keyhole in a cluster, for `keyhole kube status`."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from httpx2 import HTTPStatusError
from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.core_v1 import Pod
from msgspec import Struct

from keyhole.app.kube.pod_states import DoorState
from keyhole.app.kube.resources import (
    AWAY,
    ClusterKeyholePolicy,
    ClusterPolicy,
    KeyholeNode,
    KeyholePolicy,
    key_of,
    metadata_of,
    status_of,
)
from keyhole.model.errors import KeyholeError, ResourceUnusable
from keyhole.sandbox.pods.cni_plugin import STAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lightkube.generic_resource import Generic

SILENT_SECONDS = 180.0
"""The age of an agent's last report after which the agent counts as down: three intervals."""

NO_DOOR = "none"
NOT_STAMPED = (
    "it has an open network: it is older than the policy, or its namespace is exempt; delete it and"
    " make it again"
)

NOT_INSTALLED = (
    "this cluster knows no KeyholePolicy: Keyhole is not installed there; docs/kubernetes.md says"
    " how to do that"
)

_FORBIDDEN, _MISSING = 403, 404
_ENDED = ("Succeeded", "Failed")


class AgentRow(Struct, frozen=True):
    """The agent of one node, as it last reported."""

    node: str
    version: str
    heard: datetime.datetime | None
    doors: dict[str, int]
    silent: bool


class PolicyRow(Struct, frozen=True):
    """One policy. The namespace of a ClusterKeyholePolicy is empty."""

    namespace: str
    name: str
    valid: bool | None
    """None: no agent has read it yet."""
    pods: int | None
    faults: tuple[str, ...]


class PodRow(Struct, frozen=True):
    """One pod that a policy selects."""

    namespace: str
    name: str
    node: str
    policy: str
    door: str
    why: str


class ClusterStatus(Struct, frozen=True):
    """The status of the whole cluster."""

    agents: tuple[AgentRow, ...]
    policies: tuple[PolicyRow, ...]
    pods: tuple[PodRow, ...]

    @property
    def good(self) -> bool:
        """Whether there are agents, all of them report, every policy is valid, and no pod waits for
        its door, has lost it, or has none."""
        return (
            bool(self.agents)
            and not any(each.silent for each in self.agents)
            and not any(each.faults for each in self.policies)
            and all(each.door == DoorState.OPEN.value for each in self.pods)
        )


def read_cluster_status(namespace: str | None) -> ClusterStatus:
    """Ask the API server of the user's kubeconfig. With a namespace, ask only for its policies and
    pods. Raises ResourceUnusable."""
    try:
        client = Client(KubeConfig.from_env(), field_manager="keyhole-status")
        nodes: list[Any] = list(client.list(KeyholeNode))
        policies: list[Any] = list(client.list(KeyholePolicy, namespace=namespace or "*"))
        wide: list[Any] = [] if namespace else list(client.list(ClusterKeyholePolicy))
        places = sorted({key_of(each)[0] for each in policies})
        found = [pod for each in places for pod in client.list(Pod, namespace=each)]
    except ConfigError as error:
        raise ResourceUnusable(f"no cluster is configured here: {error}") from None
    except ApiError as error:
        raise ResourceUnusable(_declined(error)) from None
    except HTTPStatusError as error:
        # An API server answers about a group that it does not know without a Status.
        if error.response.status_code == _MISSING:
            raise ResourceUnusable(NOT_INSTALLED) from None
        raise ResourceUnusable(str(error)) from None
    except AWAY as error:
        raise ResourceUnusable(f"the API server does not answer: {error}") from None
    now = datetime.datetime.now(datetime.UTC)
    pods = tuple(
        _pod(node, each)
        for node in nodes
        for each in status_of(node).get("pods") or ()
        if namespace in (None, each.get("namespace"))
    )
    return ClusterStatus(
        tuple(_agent(each, now) for each in nodes),
        tuple(_policy(each) for each in (*wide, *policies)),
        (*pods, *pods_without_door(policies, found)),
    )


def pods_without_door(policies: Iterable[Generic], pods: Iterable[Pod]) -> Iterator[PodRow]:
    """The pods that a policy selects and that admission has not stamped: no agent knows of them.
    Attack: a pod is created before its policy, and its owner takes it for protected (I3)."""
    read = list(_read(policies))
    for pod in pods:
        metadata, status = metadata_of(pod), pod.status
        if STAMP in (metadata.annotations or {}) or metadata.deletionTimestamp is not None:
            continue
        if status is not None and status.phase in _ENDED:
            continue
        namespace, name = key_of(pod)
        labels = metadata.labels or {}
        chosen = [p.name for p in read if p.namespace == namespace and p.selector.selects(labels)]
        if chosen:
            node = (pod.spec.nodeName if pod.spec else None) or ""
            yield PodRow(namespace, name, node, ", ".join(chosen), NO_DOOR, NOT_STAMPED)


def _read(policies: Iterable[Generic]) -> Iterator[ClusterPolicy]:
    for each in policies:
        try:
            yield ClusterPolicy.read(each)
        except KeyholeError:
            continue  # it selects nothing, and its status says why


def _declined(error: ApiError) -> str:
    if error.status.code == _MISSING:
        return NOT_INSTALLED
    if error.status.code == _FORBIDDEN:
        return f"you may not read this: {error}"
    return str(error)


def _agent(node: Generic, now: datetime.datetime) -> AgentRow:
    status = status_of(node)
    heard = None
    if isinstance(status.get("heard"), str):
        heard = datetime.datetime.fromisoformat(status["heard"])
    silent = heard is None or (now - heard).total_seconds() > SILENT_SECONDS
    doors = {each.value: int((status.get("doors") or {}).get(each.value, 0)) for each in DoorState}
    return AgentRow(key_of(node)[1], str(status.get("version", "")), heard, doors, silent)


def _policy(policy: Generic) -> PolicyRow:
    status = status_of(policy)
    valid = {"True": True, "False": False}.get(status.get("valid", ""))
    return PolicyRow(
        *key_of(policy), valid, status.get("pods"), tuple(map(str, status.get("faults") or ()))
    )


def _pod(node: Generic, pod: dict[str, str]) -> PodRow:
    return PodRow(
        pod.get("namespace", ""), pod.get("name", ""), key_of(node)[1], pod.get("policy", ""),
        pod.get("door", ""), pod.get("why", ""),
    )  # fmt: skip
