"""A rule is methods and a path; it speaks of what it names and covers no more (I3)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.rule import METHODS, AccessRule

METHOD_WORDS = st.lists(st.sampled_from(["GET", "HEAD", "POST", "*"]), min_size=1, max_size=3).map(
    ",".join
)
PATHS = st.lists(st.sampled_from(["a", "b", "A", "*", "**", "a*"]), max_size=4).map(
    lambda segments: "/" + "/".join(segments)
)
RULES = st.builds("{} {}".format, METHOD_WORDS, PATHS).map(AccessRule.parse)


@pytest.mark.parametrize(
    ("text", "methods", "segments"),
    [
        ("GET /v1/**", {"GET", "HEAD"}, ("v1", "**")),
        ("POST /v1/quotes", {"POST"}, ("v1", "quotes")),
        ("GET,POST /", {"GET", "HEAD", "POST"}, ()),
        ("HEAD /x", {"HEAD"}, ("x",)),
        ("* /v1/keys/**", {"*"}, ("v1", "keys", "**")),
        ("DELETE,PATCH,PUT /x", {"DELETE", "PATCH", "PUT"}, ("x",)),
        ("PROPFIND /dav/**", {"PROPFIND"}, ("dav", "**")),
    ],
)
def test_a_rule_is_methods_and_a_path(
    text: str, methods: set[str], segments: tuple[str, ...]
) -> None:
    rule = AccessRule.parse(text)
    assert rule.methods == methods
    assert rule.path == Glob(segments)
    assert rule.text == text


def test_get_implies_head_and_nothing_implies_get() -> None:
    get, head = AccessRule.parse("GET /x"), AccessRule.parse("HEAD /x")
    assert get.speaks_of("GET")
    assert get.speaks_of("HEAD")
    assert not get.speaks_of("POST")
    assert head.speaks_of("HEAD")
    assert not head.speaks_of("GET")


def test_a_star_speaks_of_every_method() -> None:
    rule = AccessRule.parse("* /x")
    assert all(rule.speaks_of(method) for method in METHODS)


def test_methods_are_compared_as_they_are_sent() -> None:
    """RFC 9110 §9.1: a method is case-sensitive."""
    assert not AccessRule.parse("GET /x").speaks_of("get")


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "TRACK", "PRI", "DEBUG", "GETS", "G ET"])
def test_a_method_that_is_never_allowed_cannot_be_named(method: str) -> None:
    """I3; the control is every method of the list."""
    assert method not in METHODS
    with pytest.raises(Unparsable):
        AccessRule.parse(f"{method} /x")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_listed_method_can_be_named(method: str) -> None:
    assert AccessRule.parse(f"{method} /x").speaks_of(method)


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "one space", "as in 'GET,POST /v1/**'"),
        ("GET", "one space", "as in 'GET,POST /v1/**'"),
        ("/v1/**", "one space", "as in 'GET,POST /v1/**'"),
        ("GET  /v1", "one space", "as in 'GET,POST /v1/**'"),
        (" GET /v1", "one space", "as in 'GET,POST /v1/**'"),
        (" /v1", "one space", "as in 'GET,POST /v1/**'"),
        ("GET ", "one space", "as in 'GET,POST /v1/**'"),
        ("GET /v1 ", "one space", "as in 'GET,POST /v1/**'"),
        ("GET, POST /v1", "one space", "as in 'GET,POST /v1/**'"),
        ("GET\t/v1", "one space", "as in 'GET,POST /v1/**'"),
        ("get /v1", "'get' is not a method", "GET"),
        ("GET,post /v1", "'post' is not a method", "POST"),
        ("FETCH /v1", "'FETCH' is not a method", None),
        ("GET,, /v1", "'' is not a method", None),
        ("GET|POST /v1", "'GET|POST' is not a method", None),
        ("GET v1", "starts with '/'", "/v1"),
        ("GET /a%2Fb", "decoded", None),
        ("GET /a/../b", "'..'", None),
    ],
)
def test_a_rule_in_any_other_form_is_refused(text: str, why: str, hint: str | None) -> None:
    with pytest.raises(Unparsable) as refusal:
        AccessRule.parse(text)
    assert why in refusal.value.message
    assert refusal.value.hint == hint


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("* /v1/**", "GET /v1/x"),
        ("* /v1/**", "* /v1/**"),
        ("GET,POST /v1/*", "GET /v1/x"),
        ("GET /v1/x", "HEAD /v1/x"),
        ("GET,POST /v1/**", "POST,GET /v1/x"),
        # Guards are matched without regard to case, so they cover another case too.
        ("* /v1/keys/**", "POST /V1/KEYS"),
    ],
)
def test_a_wide_rule_covers_a_narrow_one(wide: str, narrow: str) -> None:
    assert AccessRule.parse(wide).covers(AccessRule.parse(narrow))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("GET /v1/**", "* /v1/x"),
        ("GET /v1/**", "POST /v1/x"),
        ("HEAD /v1/**", "GET /v1/x"),
        ("GET /v1/x", "GET /v1/*"),
        ("* /v1/keys/**", "* /v1/**"),
        ("* /v1/keys/**", "POST /v1/key*"),
    ],
)
def test_a_rule_does_not_cover_what_says_more(one: str, two: str) -> None:
    """I3: a broad allow opens no guarded endpoint."""
    assert not AccessRule.parse(one).covers(AccessRule.parse(two))


REQUESTS = [
    (method, path)
    for method in ("GET", "HEAD", "POST")
    for depth in range(4)
    for path in product("ab", repeat=depth)
]


@given(RULES, RULES)
def test_whoever_covers_a_rule_speaks_of_each_of_its_requests(
    one: AccessRule, two: AccessRule
) -> None:
    if one.covers(two):
        for method, path in REQUESTS:
            if two.speaks_of(method) and two.path.folded().matches(path):
                assert one.speaks_of(method)
                assert one.path.folded().matches(path)


@pytest.mark.parametrize(
    ("one", "two", "common"),
    [
        ("GET /a/**", "GET /A/b", True),
        ("* /a", "POST /**", True),
        ("GET /a", "POST /a", False),
        ("GET /a", "GET /b", False),
    ],
)
def test_rules_overlap_if_there_is_a_request_of_both(one: str, two: str, common: bool) -> None:
    first, second = AccessRule.parse(one), AccessRule.parse(two)
    assert first.overlaps(second) is second.overlaps(first) is common


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_is_a_rule_or_refused(methods: str, path: str) -> None:
    for typed in (methods, f"{methods} /{path}", f"GET /{path}"):
        try:
            rule = AccessRule.parse(typed)
        except Unparsable:
            continue
        assert rule.text == typed
        assert rule.methods <= METHODS | {"*"}
