"""Selectors, as the API server's own."""

from __future__ import annotations

import pytest

from keyhole.app.kube.resources import ClusterPolicy, PodSelector
from keyhole.model.errors import Unparsable


def selector(*terms: tuple[str, str, list[str]], **labels: str) -> PodSelector:
    expressions = [{"key": k, "operator": o, "values": v} for k, o, v in terms]
    return PodSelector.read({"matchLabels": labels, "matchExpressions": expressions})


@pytest.mark.parametrize(
    ("chosen", "labels", "selects"),
    [
        (selector(role="agent"), {"role": "agent", "team": "x"}, True),
        (selector(role="agent"), {"role": "other"}, False),
        (selector(role="agent"), {}, False),
        (selector(("role", "In", ["a", "b"])), {"role": "b"}, True),
        (selector(("role", "In", ["a", "b"])), {}, False),
        (selector(("role", "NotIn", ["a"])), {"role": "a"}, False),
        (selector(("role", "NotIn", ["a"])), {}, True),
        (selector(("role", "Exists", [])), {"role": ""}, True),
        (selector(("role", "Exists", [])), {}, False),
        (selector(("role", "DoesNotExist", [])), {}, True),
        (selector(("role", "DoesNotExist", [])), {"role": "a"}, False),
        (selector(("team", "Exists", []), role="agent"), {"role": "agent"}, False),
    ],
)
def test_a_selector_selects_by_all_of_its_terms(
    chosen: PodSelector, labels: dict[str, str], selects: bool
) -> None:
    assert chosen.selects(labels) is selects


@pytest.mark.parametrize("spec", [None, {}, [], {"matchLabels": {}}, {"matchExpressions": []}])
def test_an_empty_selector_is_refused_i3(spec: object) -> None:
    with pytest.raises(Unparsable):
        PodSelector.read(spec)


def test_an_operator_that_does_not_exist_is_refused_i3() -> None:
    with pytest.raises(Unparsable, match="no operator"):
        selector(("role", "Like", ["a"]))


def test_a_policy_without_a_text_is_refused_i3() -> None:
    with pytest.raises(Unparsable, match="text of a policy"):
        ClusterPolicy.of("team", "one", {"podSelector": {"matchLabels": {"role": "agent"}}})


def test_a_policy_may_be_for_claims_alone_and_then_selects_no_pod_i3() -> None:
    claims = {"matchLabels": {"tenant": "blue"}}
    policy = ClusterPolicy.of("team", "blue", {"claimSelector": claims, "policy": "version = 1"})
    assert policy.claims.selects({"tenant": "blue"})
    assert not policy.selector.selects({})
    assert not policy.selector.selects({"tenant": "blue"})
    with pytest.raises(Unparsable, match="claimSelector selects nothing"):
        ClusterPolicy.of("team", "blue", {"claimSelector": {}, "policy": "version = 1"})
    with pytest.raises(Unparsable, match="podSelector"):
        ClusterPolicy.of("team", "blue", {"policy": "version = 1"})
