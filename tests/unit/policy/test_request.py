"""Requests to inspected hosts: method, path and query decide, in one reading (I3, I4)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason
from keyhole.model.host import Host
from keyhole.policy.request import RequestFacts, decide_request
from tests.rigs.policies import book

BOOK = book(
    """
[services.model]
[services.billing]
hosts = ["billing.corp.example"]
allow = ["GET /v1/**", "POST /v1/quotes", "PUT /v1/*/draft", "* /open/**"]
deny = ["* /v1/admin/**", "GET /v1/*.key"]
[services.slashed]
hosts = ["slashed.example"]
encoded_slash = true
allow = ["GET /pkg/*", "GET /pkg/*/*", "GET /only/*"]
deny = ["* /pkg/secret/**"]
[services.wide]
use = "model"
hosts = ["wide.example"]
allow = ["GET,POST /v1/**", "DELETE /v1/keys/mine", "PATCH /v1/**", "PATCH /v1/jobs/7/run"]
[services.worded]
use = "model"
hosts = ["worded.example"]
allow = ["* /open/**", "GET+body /_search", "WEBSOCKET /v1/**", "WEBSOCKET /v1/keys/live",
         "DELETE /v1/bulk/**", "DELETE /v1/keys/mine", "DELETE+body /v1/keys/bodied"]
deny = ["* /v1/admin/**", "GET /v1/quiet", "GET+body /open/small"]
"""
)


def decide(host: str, method: str, path: str, query: str = "") -> tuple[bool, Reason, str]:
    decision = decide_request(BOOK, Host.parse(host), 443, RequestFacts(method, path, query))
    return decision.allowed, decision.reason, decision.rule


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("GET", "/v1/invoices/7", "services.billing.allow[0]"),
        ("HEAD", "/v1/invoices/7", "services.billing.allow[0]"),
        ("GET", "/v1", "services.billing.allow[0]"),
        ("GET", "/v1/", "services.billing.allow[0]"),
        ("POST", "/v1/quotes", "services.billing.allow[1]"),
        ("POST", "/v1/quotes/", "services.billing.allow[1]"),
        ("POST", "/v1/%71uote%73", "services.billing.allow[1]"),
        ("PUT", "/v1/%E2%82%AC/draft", "services.billing.allow[2]"),
        ("PATCH", "/open/x", "services.billing.allow[3]"),
    ],
)
def test_what_a_rule_names_is_allowed(method: str, path: str, rule: str) -> None:
    assert decide("billing.corp.example", method, path) == (True, Reason.RULE, rule)


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/v1/invoices", Reason.NO_RULE),
        ("POST", "/v1/quotes/1", Reason.NO_RULE),
        ("POST", "/V1/quotes", Reason.NO_RULE),
        ("PUT", "/v1/a/b/draft", Reason.NO_RULE),
        ("GET", "/", Reason.NO_RULE),
        ("GET", "/v1/admin", Reason.DENIED_BY_RULE),
        ("GET", "/v1/admin/users", Reason.DENIED_BY_RULE),
        ("GET", "/v1/ADMIN/users", Reason.DENIED_BY_RULE),
        ("GET", "/v1/%41dmin", Reason.DENIED_BY_RULE),
        ("GET", "/v1/my.key", Reason.DENIED_BY_RULE),
        ("GET", "/v1/my.KEY/", Reason.DENIED_BY_RULE),
        ("HEAD", "/v1/my.key", Reason.DENIED_BY_RULE),
        ("TRACE", "/open/x", Reason.METHOD_REFUSED),
        ("CONNECT", "/open/x", Reason.METHOD_REFUSED),
        ("get", "/v1/x", Reason.METHOD_REFUSED),
        ("GET\r\nX: y", "/v1/x", Reason.METHOD_REFUSED),
        ("GET", "/v1/../admin", Reason.PATH_MALFORMED),
        ("GET", "/v1/%2e%2e/admin", Reason.PATH_MALFORMED),
        ("GET", "/v1/a%2fb", Reason.PATH_MALFORMED),
        ("GET", "/v1//x", Reason.PATH_MALFORMED),
        ("GET", "/v1/x;y", Reason.PATH_MALFORMED),
        ("GET", "/v1/%25%32%65", Reason.PATH_MALFORMED),
        ("GET", "/v1\\admin", Reason.PATH_MALFORMED),
        ("GET", "http://other.example/v1/x", Reason.PATH_MALFORMED),
        ("GET", "", Reason.PATH_MALFORMED),
    ],
)
def test_what_no_rule_names_or_nobody_can_read_is_denied(
    method: str, path: str, reason: Reason
) -> None:
    assert decide("billing.corp.example", method, path)[:2] == (False, reason)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("page=2&q=a%20b+c", Reason.RULE),
        ("", Reason.RULE),
        ("dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB", Reason.DNS_OVER_HTTPS),
        ("a=1&%64NS=AAAB", Reason.DNS_OVER_HTTPS),
        ("a=1;dns=x", Reason.DNS_OVER_HTTPS),
        ("_method=DELETE", Reason.METHOD_OVERRIDE),
        ("a=1&_METHOD=DELETE", Reason.METHOD_OVERRIDE),
        ("a=1;%5Fmethod=DELETE", Reason.METHOD_OVERRIDE),
        (".method=DELETE", Reason.METHOD_OVERRIDE),
        ("+_method=DELETE", Reason.METHOD_OVERRIDE),
        ("[method=DELETE", Reason.METHOD_OVERRIDE),
        ("_method[]=DELETE", Reason.METHOD_OVERRIDE),
        ("_method[x]=DELETE", Reason.METHOD_OVERRIDE),
        ("_method%00.js=DELETE", Reason.METHOD_OVERRIDE),
        ("$httpMethod=DELETE", Reason.METHOD_OVERRIDE),
        ("_HttpMethod=PATCH", Reason.METHOD_OVERRIDE),
        ("X-HTTP-Method-Override=DELETE", Reason.METHOD_OVERRIDE),
        ("method=flickr.photos.search", Reason.RULE),
        ("method[]=x&methods=y&payment_method=z&a=_method", Reason.RULE),
        ("q=%zz", Reason.QUERY_MALFORMED),
        ("q=a b", Reason.QUERY_MALFORMED),
        ("q=\x00", Reason.QUERY_MALFORMED),
        ("q=" + "a" * 20000, Reason.QUERY_MALFORMED),
    ],
)
def test_a_query_is_well_formed_and_neither_a_dns_question_nor_another_method(
    query: str, reason: Reason
) -> None:
    assert decide("billing.corp.example", "GET", "/v1/x", query)[1] is reason


@pytest.mark.parametrize(
    ("word", "path", "reason"),
    [
        # A body where HTTP defines none.
        ("GET", "/open/x", Reason.RULE),
        ("GET+body", "/open/x", Reason.BODY_NOT_GRANTED),
        ("HEAD+body", "/open/x", Reason.BODY_NOT_GRANTED),
        ("DELETE+body", "/open/x", Reason.BODY_NOT_GRANTED),
        ("OPTIONS+body", "/open/x", Reason.BODY_NOT_GRANTED),
        ("POST", "/open/x", Reason.RULE),
        ("GET+body", "/_search", Reason.RULE),
        ("GET", "/_search", Reason.RULE),
        ("HEAD", "/_search", Reason.RULE),
        ("DELETE+body", "/_search", Reason.NO_RULE),
        ("GET+body", "/nowhere", Reason.NO_RULE),
        ("GET+body", "/open/small", Reason.DENIED_BY_RULE),
        ("GET", "/open/small", Reason.RULE),
        # Where the catalogue knows that a body is read, the method alone allows it.
        ("DELETE+body", "/v1/bulk/x", Reason.RULE),
        ("GET+body", "/v1/bulk/x", Reason.NO_RULE),
        ("DELETE+body", "/v1/keys/mine", Reason.RULE),
        ("DELETE+body", "/v1/keys/other", Reason.GUARDED_ENDPOINT),
        ("DELETE+body", "/v1/keys/bodied", Reason.RULE),
        ("DELETE", "/v1/keys/bodied", Reason.RULE),
        # A WebSocket.
        ("WEBSOCKET", "/open/x", Reason.WEBSOCKET_NOT_GRANTED),
        ("WEBSOCKET", "/nowhere", Reason.NO_RULE),
        ("WEBSOCKET", "/v1/realtime", Reason.RULE),
        ("GET", "/v1/realtime", Reason.NO_RULE),
        # Wider denies, and the catalogue's guards, forbid it; an opening by name opens it.
        ("WEBSOCKET", "/v1/admin/x", Reason.DENIED_BY_RULE),
        ("WEBSOCKET", "/v1/quiet", Reason.DENIED_BY_RULE),
        ("WEBSOCKET", "/v1/keys/x", Reason.GUARDED_ENDPOINT),
        ("WEBSOCKET", "/v1/keys/live", Reason.RULE),
        ("GET", "/v1/keys/live", Reason.GUARDED_ENDPOINT),
    ],
)
def test_a_body_or_a_websocket_is_a_grant_of_its_own(word: str, path: str, reason: Reason) -> None:
    """I3."""
    allowed, said, _ = decide("worded.example", word, path)
    assert (allowed, said) == (reason is Reason.RULE, reason)


@pytest.mark.parametrize(
    ("word", "path", "reason"),
    [
        ("GRPC", "/a.Quotes/Get", Reason.RULE),
        ("POST", "/a.Quotes/Get", Reason.NO_RULE),
        ("GET", "/a.Quotes/Get", Reason.NO_RULE),
        ("GRPC", "/a.quotes/Get", Reason.NO_RULE),
        ("GRPC", "/a.Quotes/Get/More", Reason.NO_RULE),
        ("GRPC", "/a.Quotes", Reason.NO_RULE),
        ("GRPC", "/x/a.Quotes/Get", Reason.NO_RULE),
        # A rule for POST covers a call, and a deny of a call every form of it.
        ("GRPC", "/b.Open/Any", Reason.RULE),
        ("POST", "/b.Open/Any", Reason.RULE),
        ("GRPC", "/b.Open/Drop", Reason.DENIED_BY_RULE),
        ("POST", "/b.Open/Drop", Reason.DENIED_BY_RULE),
        ("POST", "/B.open/%44rop", Reason.DENIED_BY_RULE),
        ("GRPC", "/b.Open/Post", Reason.DENIED_BY_RULE),
    ],
)
def test_a_call_is_allowed_by_its_name_and_denied_in_every_form(
    word: str, path: str, reason: Reason
) -> None:
    """I3: the client chooses the content type, so no other type passes a deny of a call."""
    calls = book(
        '[services.own]\nhosts = ["own.example"]\n'
        'allow = ["GRPC a.Quotes/*", "POST /b.Open/*"]\n'
        'deny = ["GRPC b.Open/Drop", "POST /b.Open/Post"]'
    )
    found = decide_request(calls, Host.parse("own.example"), 443, RequestFacts(word, path))
    assert (found.allowed, found.reason) == (reason is Reason.RULE, reason)


def test_gits_own_endpoints_take_neither() -> None:
    """I3: their queries are compared whole, and a form in a GET is a query to some servers."""
    forge = book('[services.forge]\nrepos = ["a/b"]\nallow = ["GET+body,WEBSOCKET /**"]')
    path, query = "/a/b/info/refs", "service=git-upload-pack"
    found = {
        word: decide_request(
            forge, Host.parse("git.example"), 443, RequestFacts(word, path, query)
        ).reason
        for word in ("GET", "GET+body", "WEBSOCKET")
    }
    refused = Reason.ENDPOINT_REFUSED
    assert found == {"GET": Reason.RULE, "GET+body": refused, "WEBSOCKET": refused}


def test_the_catalogues_rules_hold_where_the_policy_says_nothing() -> None:
    assert decide("api.model.example", "POST", "/v1/messages")[0]
    assert decide("api.model.example", "GET", "/v1/models/m1")[0]
    assert decide("cdn.model.example", "GET", "/anything")[0]
    assert decide("api.model.example", "GET", "/anything")[1] is Reason.NO_RULE
    allowed, reason, rule = decide("api.model.example", "GET", "/v1/keys")
    assert (allowed, reason) == (False, Reason.GUARDED_ENDPOINT)
    assert rule == "catalogue.model.host[0].deny[0]"


def test_a_wide_allow_does_not_open_a_guarded_endpoint_but_its_name_does() -> None:
    """I1: an endpoint that mints credentials stays shut under `POST /v1/**`."""
    assert decide("wide.example", "POST", "/v1/anything")[0]
    assert decide("wide.example", "POST", "/v1/files/x")[1] is Reason.GUARDED_ENDPOINT
    assert decide("wide.example", "GET", "/v1/files/x")[0]
    assert decide("wide.example", "GET", "/v1/keys/mine")[1] is Reason.GUARDED_ENDPOINT
    assert decide("wide.example", "DELETE", "/v1/keys/mine")[0]


def test_what_opens_one_guard_does_not_open_another_below_it() -> None:
    """I1: a wide guard that a rule names in full leaves a narrower guard standing."""
    assert decide("wide.example", "PATCH", "/v1/jobs/7")[0]
    assert decide("wide.example", "PATCH", "/v1/jobs/8/run")[1] is Reason.GUARDED_ENDPOINT
    assert decide("wide.example", "PATCH", "/v1/keys/mine")[1] is Reason.GUARDED_ENDPOINT
    assert decide("wide.example", "PATCH", "/v1/jobs/7/run")[0]


def test_what_a_policy_allows_is_not_meant_for_a_services_storage_hosts() -> None:
    """I6: a host that takes pre-signed addresses keeps the catalogue's list."""
    rulebook = book("[services.model]\nallow = ['* /**']")

    def allowed(host: str, method: str) -> bool:
        request = RequestFacts(method, "/upload")
        return decide_request(rulebook, Host.parse(host), 443, request).allowed

    assert allowed("api.model.example", "PUT")
    assert not allowed("cdn.model.example", "PUT")
    assert allowed("cdn.model.example", "GET")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/pkg/@scope%2Fname", Reason.RULE),
        ("/pkg/@scope%2fname", Reason.RULE),
        ("/pkg/name", Reason.RULE),
        # Read with the slash decoded, no rule allows it.
        ("/only/a%2Fb", Reason.NO_RULE),
        ("/pkg/a%2Fb%2Fc", Reason.NO_RULE),
        # Read with the slash decoded, a rule denies it.
        ("/pkg/secret%2Fx", Reason.DENIED_BY_RULE),
        ("/pkg/SECRET%2Fx", Reason.DENIED_BY_RULE),
        ("/pkg/%2E%2E%2Fx", Reason.PATH_MALFORMED),
        ("/pkg/a%2F", Reason.PATH_MALFORMED),
        ("/pkg/a%252Fb", Reason.PATH_MALFORMED),
    ],
)
def test_an_encoded_slash_is_judged_in_both_readings(path: str, reason: Reason) -> None:
    """I4: whichever way the server reads the path, what it reads was allowed."""
    assert decide("slashed.example", "GET", path)[1] is reason


def test_a_host_that_no_service_has_is_denied() -> None:
    assert decide("other.example", "GET", "/v1/x") == (False, Reason.NO_RULE, "default")
