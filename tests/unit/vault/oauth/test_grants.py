"""The messages of a login: what a hostile server may say, and what is believed of it (I4, I8)."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from keyhole.model.errors import Refused
from keyhole.model.https_url import HttpsUrl
from keyhole.vault.oauth.client import (
    ClientProof,
    OAuthClient,
    configured_client,
    registered_client,
    registration,
)
from keyhole.vault.oauth.discovery import (
    read_challenge,
    read_resource,
    read_scopes,
    read_server,
    resource_documents,
    server_documents,
)
from keyhole.vault.oauth.grants import (
    MAX_DEVICE_INTERVAL,
    MAX_DEVICE_LIFE,
    MAX_QUERY,
    GrantedTokens,
    Pledge,
    WantedGrant,
    authorization_link,
    code_fields,
    device_fields,
    device_poll_fields,
    read_device_code,
    read_return,
    read_tokens,
    refresh_fields,
    refusal,
)

if TYPE_CHECKING:
    from keyhole.vault.json_document import Document

MCP = HttpsUrl.parse("https://mcp.example/mcp")
ISSUER = HttpsUrl.parse("https://auth.example/tenant")
METADATA: Document = {
    "issuer": "https://auth.example/tenant",
    "token_endpoint": "https://auth.example/token",
    "authorization_endpoint": "https://auth.example/authorize",
    "authorization_response_iss_parameter_supported": True,
    "token_endpoint_auth_methods_supported": ["none", 7, "client_secret_post"],
}
SERVER = read_server(METADATA, ISSUER)
PLEDGE = Pledge("the-state", "the-verifier")


def test_descriptions_are_looked_for_where_the_rfcs_say() -> None:
    assert [url.text for url in resource_documents(MCP)] == [
        "https://mcp.example/.well-known/oauth-protected-resource/mcp",
        "https://mcp.example/.well-known/oauth-protected-resource",
    ]
    assert [url.target for url in resource_documents(MCP.beside("/"))] == [
        "/.well-known/oauth-protected-resource"
    ]
    assert [url.target for url in server_documents(ISSUER)] == [
        "/.well-known/oauth-authorization-server/tenant",
        "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ]
    assert [url.target for url in server_documents(ISSUER.beside("/"))] == [
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
    ]


def test_a_challenge_names_a_description_of_the_same_origin_alone() -> None:
    own = 'Bearer realm="x", resource_metadata="https://mcp.example/meta", scope="a b \x1bc"'
    found = read_challenge(["Basic realm=y", own], MCP)
    assert found.metadata is not None
    assert (found.metadata.target, found.scopes) == ("/meta", ("a", "b"))
    for other in ("https://evil.example/meta", "http://mcp.example/meta", "https://127.0.0.1/"):
        assert read_challenge([f'Bearer resource_metadata="{other}"'], MCP).metadata is None
    assert read_challenge(["Basic x"], MCP).metadata is None
    assert read_challenge([], MCP).scopes == ()


def test_a_service_is_the_one_that_was_asked() -> None:
    good: Document = {
        "resource": "https://mcp.example/mcp",
        "authorization_servers": ["https://auth.example", "http://no.example", 7],
        "scopes_supported": ["read", 'qu"ote', 7],
    }
    found = read_resource(good, MCP, exact=True)
    assert [url.text for url in found.issuers] == ["https://auth.example"]
    assert found.scopes == ("read",)
    whole = MCP.beside("/")
    assert read_resource(good, whole, exact=False).url == MCP
    for resource in ("https://bank.example/mcp", "https://mcp.example/other", None, 7):
        with pytest.raises(Refused, match="another service"):
            read_resource(good | {"resource": resource}, MCP, exact=True)
    with pytest.raises(Refused, match="another service"):
        read_resource(good | {"resource": "https://bank.example/"}, whole, exact=False)
    with pytest.raises(Refused, match="another service"):
        read_resource(good, whole, exact=True)
    with pytest.raises(Refused, match="names nobody"):
        read_resource(good | {"authorization_servers": ["http://a.example"]}, MCP, exact=True)


def test_an_issuer_is_the_one_that_was_asked_and_its_endpoints_are_https() -> None:
    assert SERVER.token.text == "https://auth.example/token"
    assert (SERVER.methods, SERVER.names_itself) == (("none", "client_secret_post"), True)
    for issuer in ("https://auth.example", "https://auth.example/tenant/", None, "", 7):
        with pytest.raises(Refused, match="another issuer"):
            read_server(METADATA | {"issuer": issuer}, ISSUER)
    for endpoint in ("http://auth.example/token", "https://10.0.0.1/", None):
        with pytest.raises(Refused, match="no https endpoint"):
            read_server(METADATA | {"token_endpoint": endpoint}, ISSUER)
    plain = read_server(METADATA | {"authorization_endpoint": "javascript:1"}, ISSUER)
    assert plain.authorization is None
    root = HttpsUrl.parse("https://auth.example")
    assert read_server(METADATA | {"issuer": "https://auth.example/"}, root).issuer == root


def test_lists_are_bounded() -> None:
    """I9."""
    assert len(read_scopes(["a"] * 9999)) == 64
    assert read_scopes("read write") == ()
    assert read_scopes(["x" * 129]) == ()


# ── the client ────────────────────────────────────────────────────────────────────────────────────


def test_a_client_proves_itself_as_its_server_says() -> None:
    assert configured_client("id", "", ()).fields == {"client_id": "id"}
    basic = configured_client("i d", "s:t", ())
    assert basic.fields == {}
    assert base64.b64decode(basic.authorization.removeprefix("Basic ")) == b"i%20d:s%3At"
    posted = configured_client("id", "secret", ("client_secret_post",))
    assert posted.fields == {"client_id": "id", "client_secret": "secret"}
    assert posted.authorization == ""
    assert configured_client("id", "s", ("client_secret_post", "client_secret_basic")).proof == (
        ClientProof.BASIC
    )
    assert "secret" not in repr(posted.secret and posted)[4:].replace("client_secret", "")


def test_a_registration_asks_for_a_client_without_a_secret() -> None:
    document = registration("http://127.0.0.1:1/callback", ("read",), device=False)
    assert document["redirect_uris"] == ["http://127.0.0.1:1/callback"]
    assert (document["scope"], document["token_endpoint_auth_method"]) == ("read", "none")
    assert "redirect_uris" not in registration("", (), device=True)


def test_a_registered_client_is_what_the_server_gave() -> None:
    assert registered_client({"client_id": "a"}, "h").proof is ClientProof.NONE
    given: Document = {"client_id": "a", "client_secret": "s"}
    assert registered_client(given, "h").proof is ClientProof.BASIC
    method = given | {"token_endpoint_auth_method": "client_secret_post"}
    assert registered_client(method, "h").proof is ClientProof.POST
    for client in (None, "", "a\r\nb", "x" * 20_000, 7):
        with pytest.raises(Refused, match="registered no client"):
            registered_client({"client_id": client}, "h")


# ── the browser ───────────────────────────────────────────────────────────────────────────────────


def test_a_link_has_pkce_state_resource_and_scopes() -> None:
    wanted = WantedGrant("https://mcp.example/mcp", ("read", "write"))
    link = authorization_link(
        HttpsUrl.parse("https://auth.example/a?tenant=1"),
        OAuthClient("id"),
        wanted,
        "http://127.0.0.1:1/callback",
        PLEDGE,
        (("prompt", "x"),),
    )
    fields = parse_qs(urlsplit(link).query)
    digest = hashlib.sha256(b"the-verifier").digest()
    assert fields["code_challenge"] == [base64.urlsafe_b64encode(digest).decode().rstrip("=")]
    assert fields["resource"] == ["https://mcp.example/mcp"]
    assert fields["scope"] == ["read write"]
    assert (fields["tenant"], fields["prompt"]) == (["1"], ["x"])
    assert "the-verifier" not in link
    made = Pledge.make()
    assert len({made.state, made.verifier, Pledge.make().state}) == 3
    assert made.state not in repr(made)


def back(**fields: str) -> str:
    return urlencode({"state": "the-state", "iss": ISSUER.text} | fields)


def test_a_return_with_state_issuer_and_code_is_this_logins() -> None:
    found = read_return(back(code="abc"), PLEDGE, SERVER)
    assert (found.ours, found.code, found.why) == (True, "abc", "")
    assert "abc" not in repr(found)
    assert read_return("state=the-state&code=abc", PLEDGE, None).code == "abc"
    silent = read_server(
        METADATA | {"authorization_response_iss_parameter_supported": False}, ISSUER
    )
    assert read_return("state=the-state&code=abc", PLEDGE, silent).code == "abc"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "code=abc",
        "state=other&code=abc",
        "state=&code=abc",
        "state=the-state&state=the-state&code=abc",
        "state=th%C3%A9-state&code=abc",
        back(code="abc") + "&x=" + "y" * MAX_QUERY,
        back(code="abc") + "&a=1" * 40,
    ],
)
def test_a_return_without_this_logins_state_is_foreign(query: str) -> None:
    """Login CSRF (I6)."""
    assert not read_return(query, PLEDGE, SERVER).ours


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (back(code="a") + "&code=b", "a field twice"),
        (back(code="a", iss="https://evil.example"), "another issuer"),
        (back(code="a", iss="not a url"), "another issuer"),
        ("state=the-state&code=a", "another issuer"),
        (back(error="access_denied"), "access was denied"),
        (back(error="\x1b[2J"), "not known here"),
        (back(), "without a code"),
        (back(code="a\r\nb"), "without a code"),
    ],
)
def test_a_return_that_is_wrong_gives_no_code_and_says_why_in_our_words(
    query: str, why: str
) -> None:
    found = read_return(query, PLEDGE, SERVER)
    assert (found.ours, found.code) == (True, "")
    assert why in found.why
    assert "\x1b" not in found.why


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


def test_every_request_for_a_token_says_for_which_service() -> None:
    """RFC 8707: also when it is renewed."""
    client, wanted = OAuthClient("id"), WantedGrant("https://mcp.example/mcp", ("read",))
    requests = (
        code_fields(client, wanted, "http://127.0.0.1:1/callback", "code", PLEDGE),
        refresh_fields(client, wanted.resource, "refresh"),
        device_fields(client, wanted),
        device_poll_fields(client, wanted, "device"),
    )
    for fields in requests:
        assert fields["resource"] == "https://mcp.example/mcp"
        assert fields["client_id"] == "id"
    assert "resource" not in refresh_fields(client, "", "refresh")


def test_tokens_are_read_in_one_form() -> None:
    good: Document = {"access_token": "abc", "token_type": "bearer", "scope": "a b"}
    found = read_tokens(good)
    assert isinstance(found, GrantedTokens)
    assert (found.access, found.refresh, found.seconds, found.scopes) == (
        "abc",
        "",
        None,
        ("a", "b"),
    )
    assert "abc" not in repr(found)
    rich = read_tokens(good | {"refresh_token": "r", "expires_in": 60, "scope": 7})
    assert isinstance(rich, GrantedTokens)
    assert (rich.refresh, rich.seconds, rich.scopes) == ("r", 60.0, None)
    for change in (
        {"access_token": None},
        {"access_token": "a b"},
        {"access_token": "a\x00"},
        {"token_type": "mac"},
        {"token_type": None},
    ):
        assert isinstance(read_tokens(good | change), str)


def test_a_device_code_can_be_typed_and_is_bounded() -> None:
    """I8, I9."""
    good: Document = {
        "device_code": "d",
        "user_code": "ABCD-EFGH",
        "verification_uri": "https://auth.example/device",
        "verification_uri_complete": "http://no.example",
        "expires_in": 1e9,
        "interval": 1e9,
    }
    found = read_device_code(good, "h")
    assert (found.life, found.interval) == (MAX_DEVICE_LIFE, MAX_DEVICE_INTERVAL)
    assert found.whole is None
    assert read_device_code(good | {"interval": None}, "h").interval == 5.0
    for change in (
        {"user_code": "\x1b[2J"},
        {"user_code": "x" * 99},
        {"user_code": None},
        {"device_code": ""},
        {"verification_uri": "http://auth.example"},
        {"verification_uri": None},
        {"expires_in": "soon"},
    ):
        with pytest.raises(Refused):
            read_device_code(good | change, "h")


def test_a_refusal_is_told_in_our_own_words() -> None:
    assert refusal("invalid_scope") == "it does not give these scopes"
    assert refusal("\x1b[2J", 418) == "it answered 418"
