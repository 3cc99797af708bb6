"""Keyhole's resources in a cluster, and what the API server says about a pod.

Objects of the API server are read here, once, into values of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from httpx2 import HTTPError
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from msgspec import Struct

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightkube.generic_resource import Generic

AWAY = (ApiError, OSError, HTTPError)
"""Errors of an API server that is away, or that declines."""

NOT_FOUND = 404

GROUP, VERSION = "keyhole.dev", "v1alpha1"

KeyholePolicy = create_namespaced_resource(GROUP, VERSION, "KeyholePolicy", "keyholepolicies")
ClusterKeyholePolicy = create_global_resource(
    GROUP, VERSION, "ClusterKeyholePolicy", "clusterkeyholepolicies"
)
KeyholeNode = create_global_resource(GROUP, VERSION, "KeyholeNode", "keyholenodes")

SANDBOXES, CLAIMS = "agents.x-k8s.io", "extensions.agents.x-k8s.io"
"""The groups of agent-sandbox."""

Sandbox = create_namespaced_resource(SANDBOXES, "v1beta1", "Sandbox", "sandboxes")
SandboxClaim = create_namespaced_resource(CLAIMS, "v1beta1", "SandboxClaim", "sandboxclaims")

MAX_LABELS = 256
"""Labels of a pod and terms of a selector that are looked at."""


MAX_NAMESPACE_POLICIES = 256
"""KeyholePolicies of one namespace. Attack: its author writes so many that a node keeps none of
another namespace, whose doors then stay closed (I12)."""


class ApiObject(Protocol):
    """An object of the API server, of any kind."""

    @property
    def metadata(self) -> ObjectMeta | None: ...


def metadata_of(resource: ApiObject) -> ObjectMeta:
    """The metadata of an object, which the API server gives each."""
    return resource.metadata or ObjectMeta()


def key_of(resource: ApiObject) -> tuple[str, str]:
    """The namespace and name of an object; the namespace is empty where it has none."""
    metadata = metadata_of(resource)
    return metadata.namespace or "", metadata.name or ""


def spec_of(resource: Generic) -> dict[str, Any]:
    """The spec of an object of our own kinds, or of agent-sandbox's."""
    return resource.spec if isinstance(resource.spec, dict) else {}


def status_of(resource: Generic) -> dict[str, Any]:
    """The status of such an object; empty while it has none."""
    status: object = resource.status
    return status if isinstance(status, dict) else {}


class PodIdentity(Struct, frozen=True):
    """A pod, as the kubelet and the API server name it; never as it names itself (I5)."""

    uid: str
    namespace: str
    name: str
    account: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodSelector(Struct, frozen=True):
    """Which pods of a namespace a policy is for, or which claims or namespaces. The empty one is
    for none: an API that reads it as all would turn a forgotten line into a policy for everything
    (I3)."""

    labels: Mapping[str, str] = {}
    terms: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @classmethod
    def read(cls, spec: object, key: str = "podSelector") -> PodSelector:
        """Read the LabelSelector under a key. Raises Unparsable."""
        if not isinstance(spec, dict):
            raise Unparsable(f"{key} wants matchLabels or matchExpressions")
        labels = spec.get("matchLabels") or {}
        terms = tuple(
            (str(each["key"]), str(each["operator"]), tuple(map(str, each.get("values") or ())))
            for each in spec.get("matchExpressions") or ()
        )
        if not labels and not terms:
            raise Unparsable(f"{key} selects nothing; name a label")
        for _, operator, _ in terms:
            if operator not in _OPERATORS:
                raise Unparsable(f"{key}: no operator is called {operator}")
        return cls({str(key): str(value) for key, value in labels.items()}, terms)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        if not self.labels and not self.terms:
            return False
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            _OPERATORS[operator](labels.get(key), values) for key, operator, values in self.terms
        )


_OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}
"""The operators of a LabelSelector."""


class ClusterPolicy(Struct, frozen=True):
    """One KeyholePolicy."""

    namespace: str
    name: str
    selector: PodSelector
    """The pods that it is for."""
    text: str
    """The policy, as a policy file has it."""
    generation: int = 0
    claims: PodSelector = PodSelector()
    """The SandboxClaims that it is for: it holds for the pods that they are given."""

    @classmethod
    def read(cls, resource: Generic) -> ClusterPolicy:
        """Read a resource. Raises Unparsable."""
        generation = metadata_of(resource).generation or 0
        return cls.of(*key_of(resource), spec_of(resource), generation)

    @classmethod
    def of(
        cls, namespace: str, name: str, spec: Mapping[str, object], generation: int = 0
    ) -> ClusterPolicy:
        """The same of the parts of a resource. Raises Unparsable."""
        text = spec.get("policy")
        if not isinstance(text, str):
            raise Unparsable("spec.policy wants the text of a policy")
        pods, claims = PodSelector(), PodSelector()
        if "claimSelector" in spec:
            claims = PodSelector.read(spec["claimSelector"], "claimSelector")
        if "podSelector" in spec or "claimSelector" not in spec:
            pods = PodSelector.read(spec.get("podSelector"))
        return cls(namespace, name, pods, text, generation, claims)
