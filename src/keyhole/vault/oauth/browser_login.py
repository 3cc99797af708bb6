"""How a client that everybody knows logs in by a browser: its endpoints and its own id.

The values stand in `claude_login.py`, `codex_login.py` and `google_login.py`: those that the
clients' own packages have. Such a server describes itself nowhere, so nothing is discovered.
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
    """The one port that the server accepts; 0: any."""
    more: tuple[tuple[str, str], ...] = ()
    """Further fields of the link."""
    as_json: bool = False
    """Whether the code is spent by a JSON document with `state` in it, not by a form."""
    agent: str = "keyhole"
