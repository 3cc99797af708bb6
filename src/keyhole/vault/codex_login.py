"""`login:codex`: the ChatGPT login that Codex keeps on this host.

The secret has two lines, as the catalogue's `codex` wants it: the access token, and the account's
id. Each refresh token can be used once. Codex has no lock that others see: it reads its file again
before it renews, and Keyhole does the same while it holds its own.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.https_url import HttpsUrl
from keyhole.vault.json_document import Document, claims, moment, table, token
from keyhole.vault.login_provider import LoginTokenRequest, LoginTokens
from keyhole.vault.oauth.browser_login import BrowserLogin
from keyhole.vault.oauth.client import OAuthClient

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_URL = HttpsUrl.parse("https://auth.openai.com/oauth/token")
CLIENT = "app_EMoamEEZ73f0CkXaXp7hrann"
"""Codex's own id, to which the refresh token was given; it is no secret."""

BROWSER = BrowserLogin(
    "ChatGPT",
    HttpsUrl.parse("https://auth.openai.com/oauth/authorize"),
    TOKEN_URL,
    OAuthClient(CLIENT),
    ("openid", "profile", "email", "offline_access"),
    redirect_path="/auth/callback",
    redirect_port=1455,
    more=(
        ("id_token_add_organizations", "true"),
        ("codex_cli_simplified_flow", "true"),
        ("originator", "codex_cli_rs"),
    ),
)
"""As Codex does it. The server accepts this port alone. Not tried with an account."""

UNDATED = 8 * 24 * 3600.0
"""Seconds after which a token without a known end is renewed, as Codex does."""

_OWNER = "https://api.openai.com/auth"


class CodexLogin:
    """Codex's login."""

    again = "`codex login`"
    browser: BrowserLogin | None = BROWSER

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """The path in CODEX_HOME, or in the home."""
        named = env.get("CODEX_HOME", "")
        return (Path(named) if named.startswith("/") else home / ".codex") / "auth.json"

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """No lock is known."""
        return ()

    def objection(self, document: Document, hosts: frozenset[str]) -> str:
        """None: the client's file does not say where its token may go."""
        return ""

    def tokens(self, document: Document) -> LoginTokens | str:
        """Two lines: the access token and the account's id."""
        login = table(document.get("tokens"))
        access, identity = token(login.get("access_token")), token(login.get("id_token"))
        if not access:
            if token(document.get("OPENAI_API_KEY")):
                return "there is an API key in it, no login; `openai` is the service for keys"
            return "there is no ChatGPT login in it"
        account = token(login.get("account_id")) or _account(access) or _account(identity)
        if not account:
            return "it does not say which account its login is for"
        others = (identity,) if identity else ()
        refresh = token(login.get("refresh_token"))
        return LoginTokens(f"{access}\n{account}", refresh, others, _expiry(document, access))

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """A JSON request."""
        body = {
            "client_id": CLIENT,
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
        }
        return LoginTokenRequest(TOKEN_URL, "application/json", json.dumps(body).encode("ascii"))

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """All three tokens may be new; `last_refresh` shows Codex that they are."""
        names = ("access_token", "refresh_token", "id_token")
        found = {name: text for name in names if (text := token(answer.get(name)))}
        if "access_token" not in found:
            return None
        when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        tokens = table(document.get("tokens")) | found
        if "account_id" not in tokens and "id_token" in found:
            tokens["account_id"] = _account(found["id_token"])  # of a new login
        first: Document = {} if document else {"OPENAI_API_KEY": None}
        return first | document | {"tokens": tokens, "last_refresh": when}


def _account(text: str) -> str:
    return token(table(claims(text).get(_OWNER)).get("chatgpt_account_id"))


def _expiry(document: Document, access: str) -> float | None:
    said = moment(claims(access).get("exp"))
    if said is not None:
        return said
    try:
        last = datetime.fromisoformat(str(document.get("last_refresh")))
    except ValueError:
        return None
    return last.timestamp() + UNDATED if last.tzinfo else None
