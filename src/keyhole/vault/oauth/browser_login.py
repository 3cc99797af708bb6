"""How a well-known client logs in with a browser: its endpoints and its client id.

`claude_login.py`, `codex_login.py` and `google_login.py` have the values, taken from the clients'
own packages. These servers publish no metadata, so nothing is discovered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from keyhole.model.https_url import HttpsUrl
    from keyhole.vault.oauth.client import OAuthClient


class BrowserLogin(Struct, frozen=True):
    """The facts of a client's login."""

    title: str
    authorization: HttpsUrl
    token: HttpsUrl
    client: OAuthClient
    scopes: tuple[str, ...]
    redirect_host: str = "localhost"
    redirect_path: str = "/callback"
    redirect_port: int = 0
    """The only port that the server accepts in the redirect; 0: any."""
    more: tuple[tuple[str, str], ...] = ()
    """Further fields of the link."""
    as_json: bool = False
    """Whether the token request is a JSON document with `state` in it, instead of a form."""
    agent: str = "keyhole"
