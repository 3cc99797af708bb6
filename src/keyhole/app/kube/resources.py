"""Keyhole's resources in a cluster, and what the API server says about a pod.

Objects of the API server are read here, once, into values of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from msgspec import Struct

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GROUP, VERSION = "keyhole.dev", "v1alpha1"

KeyholePolicy = create_namespaced_resource(GROUP, VERSION, "KeyholePolicy", "keyholepolicies")
ClusterKeyholePolicy = create_global_resource(
    GROUP, VERSION, "ClusterKeyholePolicy", "clusterkeyholepolicies"
)

MAX_LABELS = 256
"""Labels of a pod and terms of a selector that are looked at."""


def key_of(resource: Any) -> tuple[str, str]:  # noqa: ANN401 - an object of the API server
    """The namespace and name of an object; the namespace is empty where it has none."""
    return resource.metadata.namespace or "", resource.metadata.name or ""


class PodIdentity(Struct, frozen=True):
    """A pod, as the kubelet and the API server name it; never as it names itself (I5)."""

    uid: str
    namespace: str
    name: str
    account: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodSelector(Struct, frozen=True):
    """Which pods of a namespace a policy is for. The empty one is for none: an API that reads it
    as all would turn a forgotten line into a policy for everything (I3)."""

    labels: Mapping[str, str] = {}
    terms: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @classmethod
    def read(cls, spec: Any) -> PodSelector:  # noqa: ANN401 - an object of the API server
        """Read a LabelSelector. Raises Unparsable."""
        if not isinstance(spec, dict):
            raise Unparsable("podSelector wants matchLabels or matchExpressions")
        labels = spec.get("matchLabels") or {}
        terms = tuple(
            (str(each["key"]), str(each["operator"]), tuple(map(str, each.get("values") or ())))
            for each in spec.get("matchExpressions") or ()
        )
        if not labels and not terms:
            raise Unparsable("podSelector selects no pod; name a label")
        for _, operator, _ in terms:
            if operator not in _OPERATORS:
                raise Unparsable(f"podSelector: no operator is called {operator}")
        return cls({str(key): str(value) for key, value in labels.items()}, terms)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is selected."""
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
    text: str
    """The policy, as a policy file has it."""
    generation: int = 0

    @classmethod
    def read(cls, resource: Any) -> ClusterPolicy:  # noqa: ANN401 - an object of the API server
        """Read a resource. Raises Unparsable."""
        spec = resource.spec if isinstance(resource.spec, dict) else {}
        return cls.of(*key_of(resource), spec, resource.metadata.generation or 0)

    @classmethod
    def of(cls, namespace: str, name: str, spec: Any, generation: int = 0) -> ClusterPolicy:  # noqa: ANN401
        """The same of the parts of a resource. Raises Unparsable."""
        text = spec.get("policy")
        if not isinstance(text, str):
            raise Unparsable("spec.policy wants the text of a policy")
        return cls(namespace, name, PodSelector.read(spec.get("podSelector")), text, generation)
