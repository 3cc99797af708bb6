"""Why: the decision in words, with what would allow it."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, Route
from keyhole.policy.edit import RuleAddition
from keyhole.policy.explain import Explanation, SuggestedFix, explain, named_by_preset
from keyhole.policy.target import parse_target
from tests.rigs.policies import book, loaded

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
        ("https://api.git.example/repos/z/z/issues", Reason.REPOSITORY_NOT_GRANTED,
         '[services.forge]\nrepos = ["z/z"]'),
        ("https://api.git.example/repos/z", Reason.REPOSITORY_NOT_GRANTED, None),
        ("https://git.example/e/f.git/info/refs?service=git-upload-pack",
         Reason.REPOSITORY_NOT_GRANTED, '[services.forge]\nrepos = ["e/f"]'),
        ("https://api.git.example/graphql", Reason.GRAPHQL, None),
        ("https://plain.example/%2e", Reason.PATH_MALFORMED, None),
        ("https://api.model.example/v1/keys/1", Reason.GUARDED_ENDPOINT,
         '[services.model]\nallow_also = ["GET /v1/keys/1"]'),
        ("api.anthropic.com", Reason.NO_RULE,
         '[services.anthropic]\nsecret = "store:anthropic"   # after `keyhole secret set '
         "anthropic`; or [services.claude]"),
        ("https://api.x.ai/v1/models", Reason.NO_RULE, '[services.xai]\nsecret = "store:xai"'),
        ("api.x.ai:8443", Reason.NO_RULE, '[egress]\nallow = ["api.x.ai:8443"]'),
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
        ("git push https://git.example/a/b refs/tags/refs/heads/x", Reason.TAG_NOT_GRANTED, None),
        ("git push https://bare.example/r refs/heads/refs/tags/main", Reason.REF_NOT_GRANTED, None),
        ("git push https://git.example/c/d refs/notes/x", Reason.READ_ONLY, None),
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


@pytest.mark.parametrize(
    "text",
    [
        "git.example",
        "https://git.example/a/b.git/info/refs?service=git-upload-pack",
        "https://git.example/c/d.git/info/refs?service=git-upload-pack",
        "git push https://git.example/a/b agent/x",
    ],
)
def test_a_version_of_http_is_a_condition_of_what_is_allowed(text: str) -> None:
    """Of both services that share a host, by the pin of one. Control: without it, none is said."""
    policy = POLICY.replace("[services.forge]", "[services.forge]\nhttp = '2'")
    pinned = explain(book(policy), parse_target((text,), "GET"))
    said = "refused unless the client speaks HTTP/2 (services.forge.http)"
    assert pinned.decision.allowed
    assert pinned.caveats[-1] == said
    assert said not in why(text).caveats


@pytest.mark.parametrize(
    ("policy", "where", "text"),
    [
        ({}, "", '[services.model]\nallow_also = ["GET /x"]'),
        ({"services": {}}, "", '[services.model]\nallow_also = ["GET /x"]'),
        ({"services": {"model": {}}}, "[services.model]", 'allow_also = ["GET /x"]'),
        ({"services": {"model": {"allow_also": []}}}, "services.model.allow_also", '"GET /x"'),
    ],
)
def test_a_suggestion_says_where_it_goes(policy: dict[str, object], where: str, text: str) -> None:
    """A table that is there already cannot be written a second time."""
    assert SuggestedFix("services.model", "allow_also", '["GET /x"]').into(policy) == (where, text)


def test_a_fix_that_is_not_enough_is_shown_with_the_others_of_its_table() -> None:
    more = (SuggestedFix("services.forge", "push", '["x"]'),)
    fix = SuggestedFix("services.forge", "repos", '["a/b"]', more=more)
    assert str(fix) == '[services.forge]\nrepos = ["a/b"]\npush = ["x"]'
    bare = {"services": {"forge": {"secret": "store:forge"}}}
    assert fix.into(bare) == ("[services.forge]", 'repos = ["a/b"]\npush = ["x"]')
    # A list that is there already cannot be written a second time.
    bare["services"]["forge"]["push"] = "y"
    assert fix.into(bare) == ("[services.forge]", 'repos = ["a/b"]')


def test_rules_are_added_to_the_catalogues_list_or_to_the_policys_own() -> None:
    for written, before in (("", True), ("allow = ['GET /own']\n", False)):
        also = f"[services.model]\n{written}allow_also = ['GET /v1/keys/1', 'GET /also']"
        for path, allowed in (("/v1/models", before), ("/also", True), ("/v1/keys/1", True)):
            found = explain(book(also), parse_target((f"https://api.model.example{path}",), "GET"))
            assert found.decision.allowed is allowed, (written, path)
        target = parse_target(("https://api.model.example/v1/keys/2",), "GET")
        assert explain(book(also), target).decision.reason is Reason.GUARDED_ENDPOINT


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


def test_a_project_of_gitlab_is_named_by_one_segment_with_a_slash_in_it() -> None:
    lab = book("[services.lab]\nrepos = ['group/project']")
    found = explain(lab, parse_target(("https://lab.example/api/v4/projects/x%2Fy",), "GET"))
    assert (found.decision.reason, found.fix) == (Reason.REPOSITORY_NOT_GRANTED, None)


def test_a_push_says_what_could_still_refuse_it() -> None:
    caveats = why("git push https://git.example/a/b agent/x").caveats
    assert len(caveats) == 3
    exact = book("[services.forge]\nrepos = ['a/b']\npush = ['main']")
    target = parse_target(("git push https://git.example/a/b main",), "GET")
    assert len(explain(exact, target).caveats) == 2
    assert len(why("git push --force https://bare.example/r x").caveats) == 0


def test_the_line_of_the_rule_is_found() -> None:
    assert loaded(POLICY).place("services.plain.deny[0]") == "keyhole.toml:17"


WORDED = book(
    """
[egress]
allow = ["plain.example:80", "example.org"]
[services.own]
hosts = ["own.example"]
allow = ["GET,DELETE /x", "GET+body /_search", "WEBSOCKET /live", "GRPC a.B/*"]
deny = ["GRPC a.B/Drop"]
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
        ("GRPC https://own.example/a.B/Get", Reason.RULE, None),
        ("POST https://own.example/a.B/Get", Reason.NO_RULE, '["POST /a.B/Get"]'),
        ("GRPC https://own.example/a.C/Get", Reason.NO_RULE, '["GRPC a.C/Get"]'),
        ("GRPC https://own.example/A.b/Get", Reason.NO_RULE, '["GRPC A.b/Get"]'),
        ("GRPC https://own.example/a.B/Drop", Reason.DENIED_BY_RULE, None),
        ("POST https://own.example/a.B/dROP", Reason.DENIED_BY_RULE, None),
        ("GET https://own.example/a.B/Drop", Reason.DENIED_BY_RULE, None),
        ("GRPC http://plain.example/a.B/Get", Reason.RULE, None),
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


def test_localhost_is_the_sandbox_itself_unless_a_port_of_the_host_is_named() -> None:
    named = book("[sandbox]\nhost_ports = [11434]")
    for text in ("localhost:11434", "http://localhost:11434/api"):
        found = explain(named, parse_target((text,), "GET"))
        assert (found.decision.reason, found.route) == (Reason.HOST_PORT, Route.TUNNEL)
        assert found.decision.allowed
        assert found.decision.rule == "sandbox.host_ports"
    other = explain(named, parse_target(("localhost:5432",), "GET"))
    assert not other.decision.allowed
    assert other.fix == SuggestedFix("sandbox", "host_ports", "[5432]")
    assert explain(named, parse_target(("localhost:80",), "GET")).fix is None


def test_a_host_that_a_preset_has_is_allowed_by_the_preset() -> None:
    found = explain(BOOK, parse_target(("files.example",), "GET"))
    assert found.fix == SuggestedFix("egress", "allow", '["files.example"]')
    named = named_by_preset(found, "python")
    assert named.fix == SuggestedFix("egress", "presets", '["python"]')
    assert named.decision == found.decision


def test_a_suggestion_is_a_change_that_can_be_made() -> None:
    rule = why('https://plain.example/z%20"'.replace('"', "%22"), "DELETE").fix
    assert rule is not None
    assert rule.addition == RuleAddition(("services", "plain"), "allow", 'DELETE /z*"')
    flag = why("git push --force https://git.example/a/b agent/x").fix
    assert flag is not None
    assert flag.addition == RuleAddition(("services", "forge"), "force", True, listed=False)


def test_a_path_that_no_rule_can_name_gets_no_suggestion() -> None:
    assert why("https://plain.example/a/**").fix is None


def test_a_tag_of_a_read_only_repository_is_one_for_tags() -> None:
    found = why("git push https://git.example/c/d refs/tags/v1")
    assert found.decision.reason is Reason.READ_ONLY
    assert found.fix == SuggestedFix("services.reader", "tags", '["v1"]')
    assert why("git push https://git.example/c/d refs/for/x").fix is None
