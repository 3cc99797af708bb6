"""ClusterKeyholePolicies: bounds for the policies of namespaces, and tables that are added to them.

Admission and the agents read them. Their author administers the cluster, so their tables may name
commands and files of the nodes. One that cannot be read closes every namespace that it may select
(I3), because its bounds are unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.resources import PodSelector, key_of, metadata_of, spec_of
from keyhole.model.errors import KeyholeError, Refused, Unparsable
from keyhole.model.toml import parse_toml
from keyhole.policy.bounds import PolicyBounds, read_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightkube.generic_resource import Generic

MAX_CLUSTER_WIDE = 64
"""ClusterKeyholePolicies that are kept (I9)."""

TABLES = ("upstream", "approvals", "services")
"""The tables that such a policy may add to those of namespaces."""


class ClusterWide(Struct, frozen=True):
    """One ClusterKeyholePolicy."""

    name: str
    selector: PodSelector | None = None
    """The namespaces that it applies to; None: all."""
    text: str = ""
    """Tables that are added to each policy of these namespaces."""
    bounds: PolicyBounds | None = None
    broken: str = ""
    """Why it cannot be read; then no policy of its namespaces is valid."""
    generation: int = 0

    @classmethod
    def read(cls, resource: Generic) -> ClusterWide:
        """Read a resource. Raises Refused, Unparsable, PolicyFaults."""
        generation = metadata_of(resource).generation or 0
        return cls.of(key_of(resource)[1], spec_of(resource), generation)

    @classmethod
    def of(cls, name: str, spec: Mapping[str, object], generation: int = 0) -> ClusterWide:
        """Read the parts of a resource. Raises Refused, Unparsable, PolicyFaults."""
        text, bounds = spec.get("policy") or "", spec.get("bounds") or ""
        if not isinstance(text, str) or not isinstance(bounds, str):
            raise Unparsable("spec.policy and spec.bounds want the text of tables")
        _check_tables(text)
        selector = None
        if spec.get("namespaceSelector") is not None:
            selector = PodSelector.read(spec["namespaceSelector"], "namespaceSelector")
        read = read_bounds(name, bounds) if bounds else None
        return cls(name, selector, text, read, generation=generation)

    def selects(self, labels: Mapping[str, str] | None) -> bool:
        """Whether it applies to a namespace with these labels. If they are not known (None), it
        does."""
        return self.selector is None or labels is None or self.selector.selects(labels)


def read_or_close(resource: Generic) -> ClusterWide:
    """Read a resource. If that fails, return one that closes every namespace."""
    try:
        return ClusterWide.read(resource)
    except KeyholeError as error:
        return ClusterWide(key_of(resource)[1], broken=str(error))


def selecting_namespace(
    found: Sequence[ClusterWide], labels: Mapping[str, str] | None
) -> tuple[ClusterWide, ...]:
    """Those that apply to a namespace, sorted by name."""
    chosen = (each for each in found if each.selects(labels))
    return tuple(sorted(chosen, key=lambda each: each.name))


def _check_tables(text: str) -> None:
    try:
        tables = parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"spec.policy is not TOML: {error}") from None
    for name in tables:
        if name not in TABLES:
            raise Refused(f"spec.policy: '{name}' is not one of {', '.join(TABLES)}")
    # The text is appended to a policy, where a key before the first heading would become part of
    # that policy's last table.
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "[")
    if not first.startswith("["):
        raise Refused("spec.policy begins with the heading of a table")
