"""Which header fields go by the words of their names: credentials and claims (I4, I6).

The control is what real clients send: every field that an SDK needs goes on.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.body import ChunkedReader
from keyhole.http.request import RequestReader, Treatment
from keyhole.inject.credential_stripper import CredentialStripper
from keyhole.inject.field_families import is_claim, is_credential
from keyhole.inject.slots import Slot
from keyhole.model.errors import Malformed

CREDENTIALS = """
Authorization Proxy-Authorization X-Authorization X-Serverless-Authorization cf-aig-authorization
X-Emby-Authorization X-Registry-Auth X-Sentry-Auth X-Auth X-Auth-Token X-AuthToken
X-Auth-Request-User X-Authenticated-Userid X-OAuth-Scopes X-Goog-Authenticated-User-Email
X-Goog-AuthUser X-Api-Key Api-Key ApiKey X-ApiKey xi-api-key X-Acme-Api-Key X-Api-Key-2
DD-APPLICATION-KEY Fastly-Key X-Functions-Key X-RapidAPI-Key Ocp-Apim-Subscription-Key
X-ClickHouse-Key CB-ACCESS-KEY X-AccessKey CB-ACCESS-SIGN CB-ACCESS-PASSPHRASE APCA-API-SECRET-KEY
X-MBX-APIKEY X-NuGet-ApiKey X-Appwrite-Key PRIVATE-TOKEN Circle-Token Shortcut-Token X-Figma-Token
X-Shopify-Access-Token X-Vault-Token X-Consul-Token X-Plex-Token X-Subscription-Token
X-Amz-Security-Token X-Amz-S3Session-Token X-Aws-Ec2-Metadata-Token X-Amzn-Oidc-Data
X-Goog-Iap-Jwt-Assertion X-Pomerium-Jwt-Assertion X-MS-TOKEN-AAD-ACCESS-TOKEN
X-MS-Copy-Source-Authorization X-Hasura-Admin-Secret PLAID-SECRET X-Client-Secret X-Password
X-Passwd X-User-Credentials npm-otp X-GitHub-OTP X-Amz-Mfa X-Vault-MFA Signature Signature-Input
X-Hub-Signature-256 X-Slack-Signature X-Ca-Signature X-Hmac Cookie Cookie2 Sudo npm-auth-type
X-Snowflake-Authorization-Token-Type
""".split()

CLAIMS = """
Forwarded X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Forwarded-Scheme X-Forwarded-Server
X-Forwarded-Port X-Forwarded-Prefix X-Forwarded-Uri X-Forwarded-Path X-Forwarded-User
X-Forwarded-Email X-Forwarded-Groups X-Forwarded-Client-Cert X-Forwarded-Method X-Forwarded-By
X-Forward-For Forwarded-For Z-Forwarded-For X-Vercel-Forwarded-For Fly-Forwarded-Port X-Imforwards
Via X-Bluecoat-Via CDN-Loop Proxy Proxy-Client-IP WL-Proxy-Client-IP WL-Proxy-SSL X-Proxy-User
X-ProxyUser-IP X-ProxyUser-Ip X-Vercel-Proxied-For X-Real-IP X-Real-Host X-Client-IP X-Client-Cert
X-Client-Dn X-Client-User Client-IP Client-Cert Client-Cert-Chain True-Client-IP True-Client-Port
X-Cluster-Client-IP Fastly-Client-IP Fly-Client-IP CF-Connecting-IP CF-Connecting-IPv6
CF-Connecting-O2O CF-Visitor CF-IPCountry CF-Worker CF-Access-Client-Id DO-Connecting-IP
X-Nf-Client-Connection-Ip X-Azure-ClientIP X-Azure-SocketIP X-Azure-FDID X-ARR-ClientCert
X-ARR-SSL X-Appengine-User-IP X-Appengine-QueueName X-Original-URL X-Original-URI X-Original-Host
X-Original-Method X-Original-Forwarded-For X-Original-Remote-Addr X-Originating-IP X-Rewrite-URL
X-Rewrite-Uri X-Override-URL X-HTTP-Host-Override X-Host X-Backend-Host X-HTTP-Host X-Scheme
X-Url-Scheme X-Proto Front-End-Https X-Url X-Path-Info X-Script-Name X-Request-Uri Destination
X-Remote-User X-Remote-Group X-Remote-Addr X-Remote-IP Remote-User Remote-Groups Remote-Addr
X-User X-User-Id X-User-Email X-Username X-Userinfo X-Redmine-Switch-User ES-Security-RunAs-User
X-ClickHouse-User X-WEBAUTH-USER X-Webauth-Name X-Shib-Mail X-Consumer-Id X-Consumer-Username
X-Consumer-Groups Impersonate-User Impersonate-Group Impersonate-Extra-Scopes On-Behalf-Of
X-MS-CLIENT-PRINCIPAL X-MS-CLIENT-PRINCIPAL-ID X-MS-Original-Url X-Identity X-Email X-Roles
X-Hasura-Role X-Hasura-User-Id X-SSL-Client-Cert X-SSL-Client-Verify SSL-Client-Cert
X-TLS-Client-Cert X-Peer-Cert X-Envoy-External-Address X-Envoy-Original-Path X-Envoy-Internal
X-Amzn-Mtls-Clientcert X-Amzn-Remapped-Host X-Amzn-Apigateway-Api-Id X-Goog-IAM-Authority-Selector
X-Goog-User-Project X-Middleware-Subrequest X-Sendfile-Type X-Accel-Mapping X-Internal-Request
""".split()

# What SDKs and programs send, as far as it is not in every request. Each set is of one client.
SENT = {
    "HTTP": """
        Accept Accept-Encoding Accept-Language Accept-Charset Accept-Profile Content-Type
        Content-Encoding Content-Language Content-Disposition Content-MD5 Content-Profile Date
        From If-Match If-None-Match If-Modified-Since Cache-Control Pragma Prefer Priority
        User-Agent Referer Origin Range Digest Repr-Digest Want-Digest Max-Forwards DNT
        X-Requested-With Idempotency-Key Last-Event-ID Warning Early-Data Depth Overwrite
        Timeout""",
    "tracing": """
        traceparent tracestate baggage b3 X-B3-TraceId X-B3-SpanId X-B3-Sampled X-Request-Id
        X-Correlation-Id Sentry-Trace X-Datadog-Trace-Id X-Datadog-Parent-Id
        X-Cloud-Trace-Context X-Amzn-Trace-Id Uber-Trace-Id Newrelic X-Opaque-Id""",
    "browsers": """
        Sec-Fetch-Site Sec-Fetch-Mode Sec-Fetch-User Sec-Fetch-Dest Sec-Ch-Ua Sec-Ch-Ua-Mobile
        Sec-Ch-Ua-Platform Upgrade-Insecure-Requests Access-Control-Request-Method
        Access-Control-Request-Headers Sec-WebSocket-Version X-CSRF-Token X-XSRF-Token
        X-WP-Nonce""",
    "Anthropic, Claude Code": """
        anthropic-version anthropic-beta x-app x-stainless-lang
        anthropic-dangerous-direct-browser-access x-stainless-package-version x-stainless-os
        x-stainless-arch x-stainless-runtime x-stainless-runtime-version x-stainless-retry-count
        x-stainless-timeout x-stainless-read-timeout x-stainless-async x-stainless-helper-method
        x-stainless-helper x-stainless-raw-response x-claude-code-session-id""",
    "OpenAI, Codex": """
        OpenAI-Beta originator version session_id conversation_id session-id x-client-request-id
        x-codex-turn-metadata x-codex-turn-state x-codex-beta-features x-codex-window-id
        x-codex-parent-thread-id x-codex-installation-id x-openai-subagent
        x-openai-internal-codex-residency openai-intent""",
    "Gemini, Google": """
        x-goog-api-client x-goog-request-params x-goog-fieldmask x-goog-upload-protocol
        x-goog-upload-command x-goog-upload-offset x-goog-upload-header-content-length
        x-server-timeout x-goog-hash x-goog-meta-user x-goog-meta-api-key
        x-goog-gcs-idempotency-token x-goog-encryption-key x-goog-encryption-key-sha256
        x-goog-if-generation-match grpc-timeout x-grpc-web x-user-agent
        x-goog-spanner-route-to-leader""",
    "AWS": """
        x-amz-date x-amz-content-sha256 x-amz-target x-amz-user-agent amz-sdk-request
        amz-sdk-invocation-id x-amz-acl x-amz-meta-user x-amz-meta-token x-amz-storage-class
        x-amz-client-context x-amz-copy-source x-amz-checksum-crc32 x-amz-sdk-checksum-algorithm
        x-amz-trailer x-amz-decoded-content-length x-amz-expected-bucket-owner
        x-amz-server-side-encryption-customer-key x-amz-server-side-encryption-customer-key-md5
        x-amz-server-side-encryption-aws-kms-key-id x-amz-website-redirect-location
        X-Amzn-Bedrock-GuardrailIdentifier X-Amzn-Bedrock-Trace x-amzn-query-mode""",
    "Azure": """
        x-ms-client-request-id x-ms-return-client-request-id x-ms-version x-ms-date x-ms-useragent
        x-ms-blob-type x-ms-meta-user x-ms-encryption-key x-ms-continuation x-client-SKU
        x-client-Ver x-client-OS x-client-CPU x-client-current-telemetry Sync-Token
        X-Pagination-Token""",
    "GitHub, Copilot": """
        X-GitHub-Api-Version X-GitHub-Next-Global-ID GraphQL-Features Time-Zone
        Copilot-Integration-Id Editor-Version Editor-Plugin-Version X-Initiator X-Interaction-Id
        VScode-SessionId VScode-MachineId X-VSCode-User-Agent-Library-Version
        X-Client-Session-Id""",
    "package managers": """
        npm-command npm-scope npm-session npm-in-ci pacote-integrity pacote-pkg-id pacote-req-type
        pacote-version X-NuGet-Session-Id X-NuGet-Client-Version X-NuGet-Protocol-Version
        Docker-Distribution-API-Version X-Checksum-Sha1 Git-Protocol""",
    "others": """
        X-Client-Info X-Stripe-Client-User-Agent X-Stripe-Client-Telemetry Stripe-Version
        Notion-Version X-Atlassian-Token X-Atlassian-Force-Account-Id X-ExperimentalApi
        HTTP-Referer X-Title X-Repo-Commit X-Elastic-Client-Meta X-Vault-Namespace X-Vault-Request
        Kubectl-Command
        Kubectl-Session X-Stream-Protocol-Version mcp-session-id mcp-protocol-version
        Connect-Protocol-Version X-RapidAPI-Host cf-aig-cache-ttl X-Grafana-Org-Id X-Author
        X-Continuation-Token X-Page-Token X-Surrogate-Key""",
}  # fmt: skip

PLAIN = CredentialStripper((), ())


def spelled(name: str) -> list[str]:
    """As lenient servers read it too: WSGI and CGI know no difference between `_` and `-`."""
    return [name.lower(), name.lower().replace("-", "_"), name.lower().replace("-", ".")]


def passes(name: str) -> bool:
    """Whether a field of this name goes on, in a head."""
    reader = RequestReader("ok.example", 443, PLAIN.treat, {})
    try:
        found = reader.parse(f"GET / HTTP/1.1\r\nHost: ok.example\r\n{name}: x".encode())
    except Malformed:
        return False  # `Proxy_Authorization`: almost the name of one that has a meaning
    return bool(found.lines or found.collected)


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_is_known_by_its_words(name: str) -> None:
    """I6: the client's own credentials do not travel."""
    assert is_credential(name.lower())
    assert not any(map(passes, [name, name.upper(), *spelled(name)]))


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_known_by_its_words(name: str) -> None:
    """I4, I6: a server behind a proxy believes who asks, and for what."""
    assert is_claim(name.lower()) or is_credential(name.lower())
    assert not any(map(passes, [name, name.upper(), *spelled(name)]))


@pytest.mark.parametrize("name", [*CREDENTIALS, *CLAIMS])
def test_neither_stands_behind_a_body(name: str) -> None:
    """I6: an origin that merges trailers with the head would take it from there."""
    for each in [name, *spelled(name)]:
        reader = ChunkedReader(PLAIN.treat)
        with pytest.raises(Malformed):
            reader.feed(b"1\r\na\r\n0\r\n%b: x\r\n\r\n" % each.encode())
    control = ChunkedReader(PLAIN.treat)
    control.feed(b"1\r\na\r\n0\r\nx-amz-checksum-crc32: x\r\n\r\n")
    assert control.done


@pytest.mark.parametrize("client", SENT)
def test_what_real_clients_need_goes_on(client: str) -> None:
    """The control: the words are not everything."""
    assert [name for name in SENT[client].split() if not passes(name)] == []


def test_a_service_keeps_or_strips_by_name_whatever_the_words_are() -> None:
    own = CredentialStripper([Slot.parse("header:x-title")], [Slot.parse("header:x-user-id")])
    assert own.treat(b"x-user-id") is Treatment.KEEP
    assert own.treat(b"x-user-email") is Treatment.DROP
    assert own.treat(b"x-title") is Treatment.DROP
    assert PLAIN.treat(b"x-user-id") is Treatment.DROP


@given(st.sampled_from(["x", "acme", "my", ""]), st.sampled_from(["v1", "id", ""]), st.data())
def test_no_vendors_prefix_or_number_hides_a_word(
    before: str, after: str, data: st.DataObject
) -> None:
    """I6: `X-Acme-Api-Key-V1` is a key as `X-Api-Key` is."""
    core = data.draw(st.sampled_from(["api-key", "access-token", "auth", "secret", "signature"]))
    assert is_credential("-".join(filter(None, (before, core, after))))
    core = data.draw(st.sampled_from(["forwarded-for", "real-ip", "remote-user", "original-url"]))
    assert is_claim("-".join(filter(None, (before, core, after))))
