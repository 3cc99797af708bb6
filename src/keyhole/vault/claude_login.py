"""`login:claude`: the subscription login that Claude Code keeps on this host.

The token is good for about eight hours; each refresh token can be used once, and a second use ends
the login. Claude Code takes two lock directories while it renews, so Keyhole takes both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.https_url import HttpsUrl
from keyhole.vault.json_document import Document, lifetime, moment, table, token
from keyhole.vault.login_provider import LoginTokenRequest, LoginTokens
from keyhole.vault.oauth.browser_login import BrowserLogin
from keyhole.vault.oauth.client import OAuthClient

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_URL = HttpsUrl.parse("https://platform.claude.com/v1/oauth/token")
CLIENT = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"
"""Claude Code's own id, to which the refresh token was given; it is no secret."""

AGENT = "claude-cli/2.1.81 (external, cli)"
"""The endpoint answers 429 to other agents."""

SCOPES = "user:profile user:inference user:sessions:claude_code user:mcp_servers"
"""Scopes to ask for where the file names none: without any, the endpoint answers 400."""

BROWSER = BrowserLogin(
    "Claude",
    HttpsUrl.parse("https://claude.com/cai/oauth/authorize"),
    TOKEN_URL,
    OAuthClient(CLIENT),
    tuple(SCOPES.split()),
    more=(("code", "true"),),
    as_json=True,
    agent=AGENT,
)
"""As Claude Code 2.1 does it, without the scope by which API keys can be made. Not tried with an
account."""

_DIRECTORIES = ("CLAUDE_SECURESTORAGE_CONFIG_DIR", "CLAUDE_CONFIG_DIR")
_MILLISECOND = 0.001
_LOGIN = "claudeAiOauth"
_REFRESH_ENDS = "refreshTokenExpiresAt"


class ClaudeLogin:
    """Claude Code's login."""

    again = "`claude auth login`"
    browser: BrowserLogin | None = BROWSER

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """The path at which Claude Code looks: its variables first."""
        named = (env.get(name, "") for name in _DIRECTORIES)
        chosen = next((Path(text) for text in named if text.startswith("/")), home / ".claude")
        return chosen / ".credentials.json"

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """The present lock, and that of older versions, which lies beside the directory."""
        return directory / ".oauth_refresh.lock", directory.with_name(directory.name + ".lock")

    def objection(self, document: Document, hosts: frozenset[str]) -> str:
        """None: the client's file does not say where its token may go."""
        return ""

    def tokens(self, document: Document) -> LoginTokens | str:
        """The access token as one line."""
        login = table(document.get(_LOGIN))
        access, refresh = token(login.get("accessToken")), token(login.get("refreshToken"))
        if not access:
            return "there is no subscription login in it"
        return LoginTokens(access, refresh, (), moment(login.get("expiresAt"), _MILLISECOND))

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """A JSON request with the login's scopes."""
        scopes = table(document.get(_LOGIN)).get("scopes")
        named = [token(one) for one in scopes] if isinstance(scopes, list) else []
        body = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
            "client_id": CLIENT,
            "scope": " ".join(filter(None, named)) or SCOPES,
        }
        data = json.dumps(body).encode("ascii")
        return LoginTokenRequest(TOKEN_URL, "application/json", data, AGENT)

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with the new tokens; other accounts and servers in it are unchanged."""
        access, seconds = token(answer.get("access_token")), lifetime(answer.get("expires_in"))
        if not access or seconds is None:
            return None
        login = dict(table(document.get(_LOGIN)))
        login["accessToken"] = access
        login["expiresAt"] = _milliseconds(now + seconds)
        refresh = token(answer.get("refresh_token"))
        if refresh:
            login["refreshToken"] = refresh
            login.pop(_REFRESH_ENDS, None)  # of the one before
        ends = lifetime(answer.get("refresh_token_expires_in"))
        if refresh and ends is not None:
            login[_REFRESH_ENDS] = _milliseconds(now + ends)
        scope = answer.get("scope")
        if isinstance(scope, str) and scope.split():
            login["scopes"] = scope.split()
        return document | {_LOGIN: login}


def _milliseconds(seconds: float) -> int:
    return int(seconds / _MILLISECOND)
