"""Why: the decision in words, with what would allow it."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, Route
from keyhole.policy.explain import SAID, Explanation, explain
from keyhole.policy.target import parse_target
from tests.worlds import book, loaded

POLICY = """
[egress]
allow = ["example.org", "db.corp.example:5432"]
[services.model]
secret = "store:model"
[services.forge]
secret = "store:forge"
repos = ["a/b"]
push = ["agent/*", "**"]
[services.reader]
use = "forge"
repos = ["c/d"]
[services.plain]
hosts = ["plain.example"]
allow = ["GET /x"]
deny = ["GET /x/y"]
[services.bare]
forge = "generic"
hosts = ["bare.example"]
secret = "store:b"
repos = ["r"]
push = ["x"]
protect = []
deny_paths = []
force = true
"""
BOOK = book(POLICY)


def why(text: str, method: str = "GET") -> Explanation:
    return explain(BOOK, parse_target((text,), method))


@pytest.mark.parametrize(
    ("text", "reason", "route", "service"),
    [
        ("example.org", Reason.RULE, Route.TUNNEL, None),
        ("https://example.org/any?thing", Reason.RULE, Route.TUNNEL, None),
        ("api.model.example", Reason.RULE, Route.INSPECT, "model"),
        ("https://api.model.example/v1/models", Reason.RULE, Route.INSPECT, "model"),
        ("git push https://git.example/a/b agent/x", Reason.RULE, Route.INSPECT, "forge"),
        ("git push https://git.example/a/b feature/y", Reason.RULE, Route.INSPECT, "forge"),
        ("https://plain.example/x", Reason.RULE, Route.INSPECT, "plain"),
        ("git push --force https://bare.example/r x", Reason.RULE, Route.INSPECT, "bare"),
    ],
)  # fmt: skip
def test_what_is_allowed_says_by_what_and_how(
    text: str, reason: Reason, route: Route, service: str | None
) -> None:
    found = why(text)
    assert found.decision.allowed
    assert (found.decision.reason, found.route, found.service) == (reason, route, service)
    assert found.fix is None


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        ("10.0.0.1", Reason.LITERAL_ADDRESS, None),
        ("evil.example", Reason.NO_RULE, '[egress]\nallow = ["evil.example"]'),
        ("https://evil.example:8443/x", Reason.NO_RULE, '[egress]\nallow = ["evil.example:8443"]'),
        ("example.org:22", Reason.PORT_NOT_GRANTED, '[egress]\nallow = ["example.org:22"]'),
        ("https://plain.example/z", Reason.NO_RULE, '[services.plain]\nallow = ["GET /z"]'),
        ("https://plain.example/x/y", Reason.DENIED_BY_RULE, None),
        ("https://api.git.example/user/repos", Reason.NO_RULE, 'api = "pull-requests"'),
        ("https://api.git.example/repos/z/z/issues", Reason.REPOSITORY_NOT_GRANTED, None),
        ("https://git.example/e/f.git/info/refs?service=git-upload-pack",
         Reason.REPOSITORY_NOT_GRANTED, '[services.forge]\nrepos = ["e/f"]'),
        ("https://api.git.example/graphql", Reason.GRAPHQL, None),
        ("https://plain.example/%2e", Reason.PATH_MALFORMED, None),
        ("https://api.model.example/v1/keys/1", Reason.GUARDED_ENDPOINT,
         '[services.model]\nallow = ["GET /v1/keys/1"]   # beside'),
        ("https://git.example/c/d/info/refs?service=git-receive-pack", Reason.READ_ONLY,
         '[services.reader]\npush = ["agent/*"]'),
        ("git push https://git.example/c/d x", Reason.READ_ONLY,
         '[services.reader]\npush = ["x"]'),
        ("git push https://git.example/e/f x", Reason.REPOSITORY_NOT_GRANTED,
         '[services.reader]\nrepos = ["e/f"]'),
        ("git push https://git.example/e x", Reason.REPOSITORY_NOT_GRANTED, None),
        ("git push https://git.example/a/b main", Reason.REF_PROTECTED,
         '[services.forge]\npush = ["main"]   # named exactly'),
        ("git push -f https://git.example/a/b agent/x", Reason.FORCE_NOT_GRANTED, "force = true"),
        ("git push -d https://git.example/a/b agent/x", Reason.DELETE_NOT_GRANTED, "delete = true"),
        ("git push https://git.example/a/b refs/tags/v1", Reason.TAG_NOT_GRANTED, 'tags = ["v1"]'),
        ("git push https://git.example/a/b refs/for/main", Reason.REF_NAMESPACE, None),
        ("git push https://bare.example/r y", Reason.REF_NOT_GRANTED, 'push = ["y"]'),
        ("git push https://plain.example/a/b x", Reason.NO_RULE, None),
        ("git push https://example.org/a/b x", Reason.RULE, None),
        ("git push https://evil.example/a/b x", Reason.NO_RULE, "[egress]"),
    ],
)  # fmt: skip
def test_what_is_denied_says_what_would_allow_it(
    text: str, reason: Reason, fix: str | None
) -> None:
    found = why(text)
    assert found.decision.reason is reason
    assert (fix is None) == (found.fix is None)
    if fix:
        assert fix in str(found.fix)


def test_what_is_suggested_works_when_it_is_written() -> None:
    before = "[services.plain]\nhosts = ['plain.example']\nallow = [{}]"
    target = parse_target(("https://plain.example/z",), "DELETE")
    denied = explain(book(before.format("")), target)
    assert denied.fix is not None
    rule = denied.fix.value.strip("[]")
    assert explain(book(before.format(rule)), target).decision.allowed


@pytest.mark.parametrize(
    ("text", "injected"),
    [
        ("https://api.model.example/v1/models", ("header x-api-key: {secret}",)),
        ("https://cdn.model.example/x", ()),
        ("https://plain.example/x", ()),
        (
            "https://git.example/a/b/info/refs?service=git-upload-pack",
            ("header Authorization: Basic token-user:{secret}",),
        ),
        (
            "git push https://git.example/a/b agent/x",
            ("header Authorization: Basic token-user:{secret}",),
        ),
    ],
)
def test_what_would_be_injected_is_named_and_never_shown(
    text: str, injected: tuple[str, ...]
) -> None:
    assert why(text).injected == injected


def test_a_push_says_what_could_still_refuse_it() -> None:
    caveats = why("git push https://git.example/a/b agent/x").caveats
    assert len(caveats) == 3
    exact = book("[services.forge]\nrepos = ['a/b']\npush = ['main']")
    target = parse_target(("git push https://git.example/a/b main",), "GET")
    assert len(explain(exact, target).caveats) == 2
    assert len(why("git push --force https://bare.example/r x").caveats) == 0


def test_every_reason_for_a_denial_has_words() -> None:
    decided_elsewhere = {
        r
        for r in Reason
        if r.value.startswith("address-")
        or r in {
            Reason.RULE, Reason.PASSTHROUGH, Reason.GRANTED, Reason.GRANT_SPENT,
            Reason.WITHIN_LIMIT, Reason.OVER_LIMIT,
            Reason.PUBLIC_ADDRESS, Reason.CONNECT_OVERRIDE, Reason.PRIVATE_GRANTED,
            Reason.TYPE_NOT_ANSWERED, Reason.CLASS_NOT_ANSWERED, Reason.NAME_MALFORMED,
            Reason.REF_SYMBOLIC, Reason.DEFAULT_BRANCH_UNKNOWN, Reason.CREATE_NOT_GRANTED,
            Reason.ANCESTRY_UNKNOWN, Reason.REF_MOVED, Reason.DENIED_PATH, Reason.PUSH_MALFORMED,
            Reason.PUSH_OPTION, Reason.PUSH_UNJUDGED, Reason.HELD_BACK, Reason.FETCH_REFUSED,
            Reason.UPSTREAM_REFUSED,
            Reason.LFS_REFUSED, Reason.OVER_BUDGET, Reason.OVER_SHARE, Reason.NAME_UNRESOLVED,
            Reason.UPSTREAM_UNREACHABLE, Reason.PROXY_FAILED,
        }
    }  # fmt: skip
    assert set(Reason) - decided_elsewhere == set(SAID)


def test_the_line_of_the_rule_is_found() -> None:
    assert loaded(POLICY).place("services.plain.deny[0]") == "keyhole.toml:17"


WORDED = book(
    """
[egress]
allow = ["plain.example:80", "example.org"]
[services.own]
hosts = ["own.example"]
allow = ["GET,DELETE /x", "GET+body /_search", "WEBSOCKET /live"]
[services.forge]
repos = ["a/b"]
api = "read"
"""
)


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        ("GET+body https://own.example/_search", Reason.RULE, None),
        ("wss://own.example/live", Reason.RULE, None),
        ("GET+body https://own.example/x", Reason.BODY_NOT_GRANTED, '["GET+body /x"]'),
        ("DELETE+body https://own.example/x", Reason.BODY_NOT_GRANTED, '["DELETE+body /x"]'),
        ("wss://own.example/x", Reason.WEBSOCKET_NOT_GRANTED, '["WEBSOCKET /x"]'),
        ("wss://own.example/nowhere", Reason.NO_RULE, '["WEBSOCKET /nowhere"]'),
        ("https://own.example/x?_method=PUT", Reason.METHOD_OVERRIDE, None),
        (
            "wss://api.git.example/rate_limit",
            Reason.WEBSOCKET_NOT_GRANTED,
            '["WEBSOCKET /rate_limit"]',
        ),
        ("wss://api.git.example/x", Reason.NO_RULE, '["WEBSOCKET /x"]'),
        # A tunnel on 443 is not read; one on 80 is.
        ("wss://example.org/x", Reason.RULE, None),
        ("http://plain.example/x", Reason.RULE, None),
        ("GET+body http://plain.example/x", Reason.BODY_NOT_GRANTED, None),
        ("ws://plain.example/x", Reason.WEBSOCKET_NOT_GRANTED, None),
    ],
)
def test_a_body_or_a_websocket_is_explained(text: str, reason: Reason, fix: str | None) -> None:
    found = explain(WORDED, parse_target((text,), "GET"))
    assert found.decision.reason is reason
    assert found.decision.allowed is (reason is Reason.RULE)
    assert (found.fix.value if found.fix else None) == fix


def test_a_method_that_does_not_exist_is_refused_in_a_plain_tunnel_too() -> None:
    found = explain(WORDED, parse_target(("http://plain.example/x",), "FETCH"))
    assert found.decision.reason is Reason.METHOD_REFUSED
