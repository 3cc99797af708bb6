"""`login:NAME` for any other NAME: a login that `keyhole login` made, in a file of Keyhole's own.

The file says which hosts the person logged in for. Attack: another project's policy names the same
login and gives it a host of its own; the token would go there (I1). So a login is used only for
hosts that it was made for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.https_url import HttpsUrl
from keyhole.model.text import visible
from keyhole.vault.json_document import Document, claims, moment, table, token
from keyhole.vault.login_provider import LoginTokenRequest, LoginTokens
from keyhole.vault.oauth.client import ClientProof, OAuthClient
from keyhole.vault.oauth.grants import FORM, encoded, read_tokens, refresh_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.vault.oauth.browser_login import BrowserLogin
    from keyhole.vault.oauth.discovery import AuthorizationServer
    from keyhole.vault.oauth.grants import GrantedTokens

DIRECTORY = "logins"
"""The directory's name in Keyhole's state directory."""

VERSION = 1
SUFFIX = ".json"

UNDATED = 3600.0
"""Seconds after which a token without a known end is renewed, if it can be."""

_NOWHERE = HttpsUrl.parse("https://endpoint.invalid/")
"""An endpoint that does not exist, for a file that was damaged."""


class KeptLoginFacts(Struct, frozen=True):
    """What is known of a login beside its tokens."""

    service: str
    hosts: tuple[str, ...]
    """The host patterns that the token may go to."""
    resource: str
    scopes: tuple[str, ...]
    since: int
    """Seconds since 1970: when the person logged in."""


class KeptLogin:
    """One login of Keyhole's own."""

    browser: BrowserLogin | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self.again = f"`keyhole login {name}`"

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """In the state directory of XDG's variable, or in the home."""
        return logins_directory(home, env) / f"{self._name}{SUFFIX}"

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """No other program uses the file."""
        return ()

    def objection(self, document: Document, hosts: frozenset[str]) -> str:
        """Why it must not be used for these hosts; empty if it may."""
        foreign = sorted(hosts - set(_texts(document.get("hosts"))))
        if not foreign:
            return ""
        own = ", ".join(_texts(document.get("hosts"))) or "no host"
        return visible(
            f"you logged in for {own}, and this policy would send the token to "
            f"{', '.join(foreign)}; {self.again} logs in for these hosts, if you mean it"
        )

    def tokens(self, document: Document) -> LoginTokens | str:
        """The access token as one line."""
        access, refresh = token(document.get("access_token")), token(document.get("refresh_token"))
        if document.get("version") != VERSION or not access:
            return "there is no login in it"
        expires = moment(document.get("expires_at")) or moment(claims(access).get("exp"))
        if expires is None and refresh:
            expires = (moment(document.get("renewed")) or 1.0) + UNDATED
        secret = _client(document).secret
        return LoginTokens(access, refresh, (secret,) if secret else (), expires)

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """A form to the endpoint that the login was made at, for the same service (RFC 8707)."""
        client = _client(document)
        fields = refresh_fields(client, token(document.get("resource")), tokens.refresh)
        where = _url(document.get("token_endpoint")) or _NOWHERE
        return LoginTokenRequest(where, FORM, encoded(fields), authorization=client.authorization)

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with the new tokens. A server that returns no refresh token means the old one
        (RFC 6749 §6)."""
        found = read_tokens(answer)
        return None if isinstance(found, str) else document | _token_fields(found, now)

    def facts(self, document: Document) -> KeptLoginFacts:
        """What may be shown of it."""
        since = moment(document.get("since")) or 0.0
        return KeptLoginFacts(
            self._name,
            tuple(_texts(document.get("hosts"))),
            token(document.get("resource")),
            tuple(_texts(document.get("scopes"))),
            int(since),
        )


def logins_directory(home: Path, env: Mapping[str, str]) -> Path:
    """The directory of Keyhole's own logins."""
    state = env.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else home / ".local" / "state"
    return base / "keyhole" / DIRECTORY


def new_document(
    facts: KeptLoginFacts,
    server: AuthorizationServer,
    client: OAuthClient,
    found: GrantedTokens,
    now: float,
) -> Document:
    """The file of a new login."""
    revocation = {"revocation_endpoint": server.revocation.text} if server.revocation else {}
    document: Document = {
        "version": VERSION,
        "service": facts.service,
        "hosts": list(facts.hosts),
        "resource": facts.resource,
        "issuer": server.issuer.text,
        "token_endpoint": server.token.text,
        "client": {"id": client.id, "secret": client.secret, "proof": client.proof.value},
        "scopes": list(facts.scopes),
        "since": int(now),
    }
    return document | revocation | _token_fields(found, now)


def revocations(document: Document) -> tuple[LoginTokenRequest, ...]:
    """The requests that end a login at its server (RFC 7009): the refresh token's first, since its
    end ends the access tokens too. None if the server has no endpoint for it."""
    where, client = _url(document.get("revocation_endpoint")), _client(document)
    if where is None:
        return ()
    found = []
    for name in ("refresh_token", "access_token"):
        text = token(document.get(name))
        if text:
            fields = {"token": text, "token_type_hint": name} | client.fields
            found.append(
                LoginTokenRequest(where, FORM, encoded(fields), authorization=client.authorization)
            )
    return tuple(found)


def _token_fields(found: GrantedTokens, now: float) -> Document:
    fields: Document = {"access_token": found.access, "renewed": int(now), "expires_at": None}
    if found.seconds is not None:
        fields["expires_at"] = int(now + found.seconds)
    if found.refresh:
        fields["refresh_token"] = found.refresh
    if found.scopes is not None:
        fields["scopes"] = list(found.scopes)
    return fields


def _client(document: Document) -> OAuthClient:
    found = table(document.get("client"))
    proofs = {each.value: each for each in ClientProof}
    proof = proofs.get(str(found.get("proof")), ClientProof.NONE)
    return OAuthClient(token(found.get("id")), token(found.get("secret")), proof)


def _url(value: object) -> HttpsUrl | None:
    try:
        return HttpsUrl.parse(value) if isinstance(value, str) else None
    except Unparsable:
        return None


def _texts(value: object) -> list[str]:
    return [text for each in value if (text := token(each))] if isinstance(value, list) else []
