"""Header fields that a client may not send, recognised by the words in their names (I4, I6).

Used for names that neither the service nor the list of slots has. Vendors invent ever new names for
the same thing, so a name is judged by its words: `X-Acme-Api-Key` carries a credential as
`X-Api-Key` does, and `X-Acme-Client-Ip` claims an identity as `X-Real-Ip` does. Removing a field
without need costs a client little; a policy can keep it by name. There are two families:

- a *credential*: a key, token, password, signature. The client's own do not travel;
- a *claim* about the sender, its address, its proxies, or the intended host and path. A server
  behind a proxy trusts it, since a proxy usually writes it.

Names come in lower case, with `-` between words (`httpfield.folded`).
"""

from __future__ import annotations

_CREDENTIALS = frozenset(
    "apikey apikeys accesskey secretkey appkey authkey privatekey bearer jwt saml oidc otp totp mfa"
    " hmac sig sign signature signatures assertion cookie cookie2 secret secrets password passwd"
    " pwd passphrase passcode credential credentials sudo".split()
)
_CREDENTIAL_ENDINGS = (
    "token", "secret", "auth", "apikey", "password", "signature", "credential", "credentials",
)  # fmt: skip
_AUTH = ("auth", "oauth")
_AUTHORS = frozenset({"author", "authors"})

_NO_SECRET_KEY = frozenset(
    "cache encryption idempotency partition routing sort surrogate websocket".split()
)
"""Beside one of these words, `key` is no credential: `Idempotency-Key`, or the key that encrypts an
object."""

_NO_SECRET_TOKEN = frozenset(
    "atlassian continuation csrf cursor delta idempotency next page pagination resume sync"
    " xsrf".split()
)
"""Beside one of these words, `token` is no credential: `X-CSRF-Token`, `X-Atlassian-Token:
no-check`, or a position in a list. `response_fields.py` passes such a position to the client, which
would otherwise get the first page forever."""

_CLAIMS = frozenset(
    "forwarded forward via loop proxy proxied proxyuser"
    " remote real original originating rewrite override envoy connecting peer behalf runas acting"
    " impersonate principal identity consumer user userid username userinfo userip group groups"
    " role roles email iam iap appengine apigateway remapped vpce middleware subrequest"
    " sendfile accel shib webauth cert certs certificate certificates dn ssl tls mtls"
    " ip ips ipv4 ipv6 ipaddress clientip realip remoteip sourceip socketip clientcert"
    " host hostname scheme proto imforwards".split()
)
_CLAIM_BEGINNINGS = (
    "cf-", "client-", "x-client-", "true-client-", "internal-", "x-internal-", "x-azure-", "x-arr-",
)  # fmt: skip
_CLAIM_NAMES = frozenset(
    "destination front-end-https script-name uri url x-base-url x-destination x-path x-path-info"
    " x-request-uri x-request-url x-script-name x-target-url x-uri x-url".split()
)

_METADATA = ("x-amz-meta-", "x-goog-meta-", "x-ms-meta-", "x-object-meta-")
"""Beginnings of names that are stored with an object, and are the user's own."""

_HARMLESS = frozenset(
    "host x-client-cpu x-client-current-telemetry x-client-data x-client-info"
    " x-client-last-telemetry x-client-os x-client-request-id x-client-session-id x-client-sku"
    " x-client-trace-id x-client-transaction-id x-client-ver x-client-version"
    " x-rapidapi-host".split()
)
"""Fields of SDKs, about themselves or needed by them, that look like a claim."""

_HARMLESS_BEGINNINGS = (
    # HTTP's own, and browsers'.
    "accept", "access-control-", "content-", "if-", "sec-ch-", "sec-fetch-",
    # Signed by the client, and signed again.
    "x-amz-",
    "cf-aig-",
    *_METADATA,
)  # fmt: skip
"""Names that claim nothing, whatever their words are."""


def is_credential(name: str) -> bool:
    """Whether a field of this name carries a credential."""
    if name.startswith(_METADATA):
        return False
    words = name.split("-")
    for word in words:
        if word.endswith(_CREDENTIAL_ENDINGS):
            if word != "token" or _NO_SECRET_TOKEN.isdisjoint(words):
                return True
        elif word in _CREDENTIALS or (word.startswith(_AUTH) and word not in _AUTHORS):
            return True
    return "key" in words and _NO_SECRET_KEY.isdisjoint(words)


def is_claim(name: str) -> bool:
    """Whether a field of this name claims a sender, an address or a target."""
    if name in _CLAIM_NAMES:
        return True
    if name.startswith(_HARMLESS_BEGINNINGS) or name in _HARMLESS:
        return False
    # A user agent is a program.
    words = name.replace("user-agent", "").split("-")
    return name.startswith(_CLAIM_BEGINNINGS) or not _CLAIMS.isdisjoint(words)
