"""A rule is methods and a path; it speaks of what it names and covers no more (I3)."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.rule import (
    BODILESS,
    GRPC,
    METHODS,
    PATTERN,
    WEBSOCKET,
    WORDS,
    AccessRule,
    plain_method,
    request_word,
    rule_text,
    spelled,
)

METHOD_WORDS = st.lists(
    st.sampled_from(["GET", "HEAD", "POST", "*", "GET+body", "HEAD+body", "WEBSOCKET"]),
    min_size=1,
    max_size=3,
).map(",".join)
PATHS = st.lists(st.sampled_from(["a", "b", "A", "*", "**", "a*"]), max_size=4).map(
    lambda segments: "/" + "/".join(segments)
)
CALLS = st.builds("GRPC {}/{}".format, *[st.sampled_from(["a", "b", "A", "*", "a*"])] * 2)
RULES = (st.builds("{} {}".format, METHOD_WORDS, PATHS) | CALLS).map(AccessRule.parse)


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
        ("GET+body /_search", {"GET+body", "HEAD+body"}, ("_search",)),
        ("DELETE+body,POST /x", {"DELETE+body", "POST"}, ("x",)),
        ("WEBSOCKET /v1/realtime", {"WEBSOCKET"}, ("v1", "realtime")),
        ("GRPC acme.v1.Quotes/Get", {"GRPC"}, ("acme.v1.Quotes", "Get")),
        ("GRPC acme.*/List*", {"GRPC"}, ("acme.*", "List*")),
        ("GRPC */*", {"GRPC"}, ("*", "*")),
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
    assert all(rule.allows(method) for method in METHODS | {GRPC})
    assert all(rule.speaks_of(word) for word in WORDS)


@pytest.mark.parametrize(
    ("text", "allowed", "denied"),
    [
        ("GET /x", {"GET", "HEAD"}, {"GET", "HEAD", "GET+body", "HEAD+body", "WEBSOCKET"}),
        ("* /x", METHODS | {GRPC}, WORDS),
        ("GET+body /x", {"GET", "HEAD", "GET+body", "HEAD+body"}, {"GET+body", "HEAD+body"}),
        ("DELETE+body /x", {"DELETE", "DELETE+body"}, {"DELETE+body"}),
        ("DELETE /x", {"DELETE"}, {"DELETE", "DELETE+body"}),
        ("POST /x", {"POST", GRPC}, {"POST", GRPC}),
        # The content type is the client's to choose, so a call is denied in every form.
        ("GRPC x/y", {GRPC}, WORDS),
        ("WEBSOCKET /x", {"WEBSOCKET"}, {"WEBSOCKET"}),
    ],
)
def test_a_body_or_a_websocket_is_allowed_by_name_and_denied_by_any_wider_word(
    text: str, allowed: set[str], denied: set[str]
) -> None:
    """I3: neither `GET` nor `*` allows them, and both forbid them. A call is a POST."""
    rule = AccessRule.parse(text)
    assert {word for word in WORDS if rule.allows(word)} == allowed
    assert {word for word in WORDS if rule.speaks_of(word)} == denied


def test_a_call_is_a_post_and_nothing_else() -> None:
    """I3."""
    assert request_word("POST", body=True, websocket=False, grpc=True) == GRPC
    assert request_word("GET", body=True, websocket=False, grpc=True) == "GET+body"
    assert request_word("GRPC", body=True, websocket=False, grpc=True) == ""


@pytest.mark.parametrize(
    ("word", "path", "text"),
    [
        ("GET+body", "/x", "GET+body /x"),
        (GRPC, "/acme.Quotes/Get", "GRPC acme.Quotes/Get"),
        (GRPC, "/acme.Quotes", "POST /acme.Quotes"),
        (GRPC, "/acme.Quotes/Get/More", "POST /acme.Quotes/Get/More"),
        (GRPC, "/a b/Get", "POST /a b/Get"),
    ],
)
def test_a_request_is_named_by_a_rule_that_allows_it(word: str, path: str, text: str) -> None:
    assert rule_text(word, path) == text


@pytest.mark.parametrize(
    ("method", "body", "websocket", "word"),
    [
        ("GET", False, False, "GET"),
        ("GET", True, False, "GET+body"),
        ("DELETE", True, False, "DELETE+body"),
        ("POST", True, False, "POST"),
        ("PROPFIND", True, False, "PROPFIND"),
        ("GET", False, True, WEBSOCKET),
        ("GET+body", False, False, ""),
        ("WEBSOCKET", False, False, ""),
        ("CONNECT", False, True, ""),
        ("get", False, False, ""),
    ],
)
def test_a_request_has_one_word(method: str, body: bool, websocket: bool, word: str) -> None:
    """I3: and what a client calls its method is never taken for a word of the rules."""
    assert request_word(method, body=body, websocket=websocket) == word


def test_a_word_has_one_method_and_one_spelling() -> None:
    assert {plain_method(word) for word in WORDS} == METHODS
    assert {word for word in WORDS if plain_method(word) != word} == {
        *(f"{method}+body" for method in BODILESS),
        WEBSOCKET,
        GRPC,
    }
    for word in WORDS:
        assert spelled(word) == spelled(word.lower()) == spelled(word.upper()) == word


def test_the_pattern_for_editors_knows_the_same_words() -> None:
    for word in (
        *WORDS,
        "*",
        "GRPC,POST",
        "GET,DELETE+body",
        "POST+body",
        "get",
        "FETCH",
        "GET,",
        "GETS",
    ):
        try:
            AccessRule.parse(f"{word} /x")
            known = True
        except Unparsable:
            known = False
        assert bool(re.search(PATTERN, f"{word} /x")) is known, word
    assert re.search(PATTERN, "GRPC acme.v1.Quotes/*")


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
        ("websocket /v1", "'websocket' is not a method", "WEBSOCKET"),
        ("get+BODY /v1", "'get+BODY' is not a method", "GET+body"),
        ("POST+body /v1", "'POST+body' is not a method", "POST"),
        ("FETCH+body /v1", "'FETCH+body' is not a method", None),
        ("*+body /v1", "'*+body' is not a method", None),
        ("GET,, /v1", "'' is not a method", None),
        ("GET|POST /v1", "'GET|POST' is not a method", None),
        ("GRPC /a.B/C", "a service and a method", "GRPC a.B/C"),
        ("GRPC /a.B", "a service and a method", "GRPC a.B/*"),
        ("GRPC a.B", "a service and a method", "GRPC a.B/*"),
        ("GRPC a.B/", "a service and a method", "GRPC a.B/*"),
        ("GRPC *", "a service and a method", "GRPC */*"),
        ("GRPC **", "'*' stands for any part", "GRPC */*"),
        ("GRPC a.**/C", "'*' stands for any part", "GRPC a.*/C"),
        ("GRPC a.B/C/D", "letters, digits", "as in 'GRPC google.pubsub.v1.Publisher/Publish'"),
        ("GRPC a..B/C", "letters, digits", "as in 'GRPC google.pubsub.v1.Publisher/Publish'"),
        ("GRPC a.B/%43", "letters, digits", "as in 'GRPC google.pubsub.v1.Publisher/Publish'"),
        ("POST,GRPC a.B/C", "stands alone", "write a rule of its own for it"),
        ("grpc a.B/C", "'grpc' is not a method", "GRPC"),
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
        ("* /v1/**", "WEBSOCKET /v1/x"),
        ("GET /v1/**", "WEBSOCKET /v1/x"),
        ("WEBSOCKET /v1/**", "WEBSOCKET /v1/x"),
        ("DELETE /v1/**", "DELETE+body /v1/x"),
        ("POST /a.B/*", "GRPC a.B/C"),
        ("GRPC a.B/*", "GRPC a.B/C"),
        ("GRPC a.B/*", "*,WEBSOCKET /a.B/C"),
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
        ("POST /v1/**", "WEBSOCKET /v1/x"),
        # It allows a GET without a body, too.
        ("GET+body /v1/**", "GET+body /v1/x"),
        ("WEBSOCKET /v1/**", "GET /v1/x"),
        ("GET /a.B/*", "GRPC a.B/C"),
        ("GET /v1/x", "GET /v1/*"),
        ("* /v1/keys/**", "* /v1/**"),
        ("* /v1/keys/**", "POST /v1/key*"),
    ],
)
def test_a_rule_does_not_cover_what_says_more(one: str, two: str) -> None:
    """I3: a broad allow opens no guarded endpoint."""
    assert not AccessRule.parse(one).covers(AccessRule.parse(two))


REQUESTS = [
    (word, path)
    for word in ("GET", "HEAD", "POST", "GET+body", "HEAD+body", "WEBSOCKET", "GRPC")
    for depth in range(4)
    for path in product("ab", repeat=depth)
]


@given(RULES, RULES)
def test_a_deny_that_covers_a_rule_forbids_each_request_that_it_would_allow(
    one: AccessRule, two: AccessRule
) -> None:
    if one.covers(two):
        for word, path in REQUESTS:
            if two.allows(word) and two.path.folded().matches(path):
                assert one.speaks_of(word)
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
        assert rule.methods <= WORDS | {"*"}
