"""ClusterKeyholePolicies: what they select, and what their tables may be (I3, I11)."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.generic_resource import Generic
from lightkube.models.meta_v1 import ObjectMeta

from keyhole.app.kube.cluster_wide import ClusterWide, read_or_close, selecting_namespace
from keyhole.model.errors import KeyholeError


def wide(name: str = "cluster", **spec: Any) -> ClusterWide:  # noqa: ANN401
    return ClusterWide.of(name, spec)


def test_without_a_selector_it_is_for_every_namespace() -> None:
    some = wide("some", namespaceSelector={"matchLabels": {"team": "a"}})
    every = wide("every")
    assert selecting_namespace([some, every], {"team": "a"}) == (every, some)
    assert selecting_namespace([some, every], {"team": "b"}) == (every,)
    assert selecting_namespace([some], None) == (some,), "of unknown labels the worst is assumed"


@pytest.mark.parametrize(
    "spec",
    [
        {"policy": "[egress]\nallow = ['example.org']"},
        {"policy": "upstream.proxy = 'http://proxy.example:3128'"},
        {"policy": "["},
        {"policy": 1},
        {"bounds": "host = []"},
        {"namespaceSelector": {}},
    ],
    ids=["another table", "a key without a heading", "no TOML", "no text", "bounds", "selector"],
)
def test_what_cannot_be_read_is_refused_and_closes_every_namespace_i3(spec: dict[str, Any]) -> None:
    with pytest.raises(KeyholeError):
        ClusterWide.of("cluster", spec)
    closed = read_or_close(Generic(metadata=ObjectMeta(name="cluster", generation=1), spec=spec))
    assert closed.broken
    assert closed.selects({"any": "namespace"})


def test_tables_and_bounds_are_read() -> None:
    found = wide(policy="# ours\n[upstream]\nprivate = ['*.corp.example']", bounds="services = []")
    assert found.bounds is not None
    assert found.bounds.services == ()
