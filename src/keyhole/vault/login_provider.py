"""The interface of a client's login: its file, its tokens, and how they are renewed.

Implemented by `claude_login.py`, `codex_login.py`, `google_login.py` and `kept_login.py`, used by
`login_source.py`. A client's file and a response are data: neither chooses where a token is sent.
No code here or there raises, since the characters are in scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.model.https_url import HttpsUrl
    from keyhole.policy.rulebook import Rulebook
    from keyhole.vault.json_document import Document
    from keyhole.vault.oauth.browser_login import BrowserLogin

ENDPOINT_PATIENCE = 60.0
"""Seconds for the whole answer of an endpoint. It is long because a token may be
spent although no answer came."""


class LoginTokens(Struct, frozen=True, eq=False):
    """The tokens of a login file. The repr shows no character of them."""

    access: str
    """The secret for requests: one line, or a line for each part."""
    refresh: str = ""
    """Empty if the login cannot be renewed."""
    others: tuple[str, ...] = ()
    """Other characters that must not come back in a response."""
    expires: float | None = None
    """When the access token ends, in seconds since 1970; None when unknown."""

    def __repr__(self) -> str:
        return "Tokens(…)"


class LoginTokenRequest(Struct, frozen=True, eq=False):
    """One request to an endpoint that issues tokens."""

    url: HttpsUrl
    kind: str
    """The body's content type."""
    body: bytes
    agent: str = "keyhole"
    authorization: str = ""
    method: str = "POST"
    accept: str = "application/json"

    __repr__ = redacted_repr("body", "authorization")


class EndpointAccess(Struct, frozen=True):
    """How token endpoints are reached under a policy; both values are made when they are needed."""

    book: Callable[[], Rulebook]
    """The rules for `upstream.connect`, `upstream.proxy`, `upstream.private` and addresses."""
    context: Callable[[], ssl.SSLContext]
    """This host's roots, and those of `upstream.ca_file`."""
    patience: float = ENDPOINT_PATIENCE


class LoginProvider(Protocol):
    """One provider of logins."""

    again: str
    """The command by which a person logs in again."""
    browser: BrowserLogin | None
    """How `keyhole login` makes one without the client; None: by what the service describes."""

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """The path at which the provider's own client keeps its login on this host."""

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """Directories that the client makes while it renews; none: it has no lock."""

    def objection(self, document: Document, hosts: frozenset[str]) -> str:
        """Why its tokens must not go to these hosts; empty if they may."""

    def tokens(self, document: Document) -> LoginTokens | str:
        """The file's tokens, or the reason why it is no login."""

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """The request for new tokens."""

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with the endpoint's tokens, otherwise unchanged; None if the answer has no
        token."""
