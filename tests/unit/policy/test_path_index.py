"""The path index finds what a plain walk over all rules would find."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.model.glob import Glob
from keyhole.model.rule import ALLOWED_BY, AccessRule
from keyhole.policy.path_index import PathIndex
from keyhole.policy.policy import RankedRule, Tier

SEGMENTS = st.sampled_from(["a", "b", "ab", "abc", "a.json", "v1", "Ä"])
PATTERN_SEGMENTS = st.one_of(
    SEGMENTS, st.sampled_from(["*", "**", "a*", "*b", "a*c", "*.json", "*b*", "a*b*", "v*"])
)
METHODS = st.sampled_from(["GET", "POST", "GET,POST", "*"])
RULES = st.builds(
    lambda methods, segments, tier: (methods, tuple(segments), tier),
    METHODS,
    st.lists(PATTERN_SEGMENTS, max_size=5),
    st.sampled_from(list(Tier)),
)


def ranked(index: int, methods: str, segments: tuple[str, ...], tier: Tier) -> RankedRule:
    plain = AccessRule.parse(f"{methods} /")
    return RankedRule(AccessRule(plain.methods, Glob(segments), ""), tier, f"r{index}")


@settings(max_examples=600)
@given(
    st.lists(RULES, max_size=12),
    st.sampled_from(["GET", "POST", "PUT"]),
    st.lists(SEGMENTS, max_size=5),
)
def test_the_index_agrees_with_a_walk_over_all_rules(
    rules: list[tuple[str, tuple[str, ...], Tier]], method: str, segments: list[str]
) -> None:
    path = tuple(segments)
    made = [ranked(i, *rule) for i, rule in enumerate(rules)]
    index = PathIndex()
    for rule in made:
        index.find(
            ALLOWED_BY[method], path
        )  # what was remembered for it must not outlive the next rule
        index.add(rule)
    found = index.find(ALLOWED_BY[method], path)
    matching = [r for r in made if r.rule.allows(method) and r.rule.path.matches(path)]
    assert (found.tier if found else None) == min((r.tier for r in matching), default=None)
    assert found is None or found in matching


def test_a_folding_rule_is_held_in_folded_form() -> None:
    index = PathIndex()
    rule = RankedRule(AccessRule.parse("GET /Repos/*.JSON"), Tier.DENY, "r", folds=True)
    index.add(rule)
    assert index.find(ALLOWED_BY["GET"], ("repos", "x.json")) is rule
    assert index.find(ALLOWED_BY["GET"], ("Repos", "x.JSON")) is None


def test_globs_that_begin_and_end_alike_are_told_apart() -> None:
    index = PathIndex()
    texts = ("GET /a*c", "GET /a*b*c", "GET /x*y", "GET /a*b*c/d")
    rules = [RankedRule(AccessRule.parse(text), Tier.ALLOW, text) for text in texts]
    for rule in rules:
        index.add(rule)
    assert index.find(ALLOWED_BY["GET"], ("axc",)) is rules[0]
    assert index.find(ALLOWED_BY["GET"], ("xzy",)) is rules[2]
    assert index.find(ALLOWED_BY["GET"], ("abc", "d")) is rules[3]
    assert index.find(ALLOWED_BY["GET"], ("axc", "d")) is None


def test_the_first_of_two_equal_rules_speaks() -> None:
    index = PathIndex()
    first = RankedRule(AccessRule.parse("GET /x"), Tier.ALLOW, "first")
    index.add(first)
    index.add(RankedRule(AccessRule.parse("GET /x"), Tier.ALLOW, "second"))
    assert index.find(ALLOWED_BY["GET"], ("x",)) is first


def test_hostile_patterns_cost_no_more_than_their_states() -> None:
    """I9: forty `**` against a hundred segments end at once."""
    index = PathIndex()
    pattern = "/**/a" * 40 + "/z"
    index.add(RankedRule(AccessRule.parse(f"GET {pattern}"), Tier.ALLOW, "r"))
    assert index.find(ALLOWED_BY["GET"], ("a",) * 100) is None
    assert index.find(ALLOWED_BY["GET"], (*("a",) * 100, "z")) is not None
