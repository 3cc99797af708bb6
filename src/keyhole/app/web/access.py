"""Who may use the page: a one-time link, the token that it is exchanged for, and the headers.

A browser runs pages of anyone, a sandbox's published port among them, and any user of this host can
connect to loopback. So every request is judged by three facts: `Host` is the very address that is
served (a name that another server points here is not), `Origin` and `Sec-Fetch-Site` say that this
page itself asks, and a header holds a token. The token is in the page's memory only: a cookie would
be sent to every other port of the same name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LINK_SECONDS = 300.0
"""How long a link can be opened."""

MAX_LINKS = 2
"""Links that can be opened: one is printed, and one is given to the browser. A further one makes
the oldest void."""

MAX_TOKENS = 16
"""Pages at a time; a further one takes the place of the oldest."""

PUBLIC = frozenset({"/api/login"})
"""The paths of the API that need no token: there is none yet."""

_BEARER = "Bearer "
_SAME = frozenset({"same-origin"})


class WebAccess:
    """The links, each of which can be opened once, and the tokens of open pages."""

    def __init__(self, port: int, steady: Callable[[], float] = time.monotonic) -> None:
        self.authority = f"127.0.0.1:{port}"
        self.origin = f"http://{self.authority}"
        self._steady = steady
        self._links: deque[tuple[bytes, float]] = deque(maxlen=MAX_LINKS)
        self._tokens: deque[bytes] = deque(maxlen=MAX_TOKENS)

    def new_link(self) -> str:
        """A link for one page."""
        key = secrets.token_urlsafe(32)
        self._links.append((_digest(key), self._steady() + LINK_SECONDS))
        # Browsers send no fragment: it stands in no request line and no log.
        return f"{self.origin}/#{key}"

    def exchange(self, key: str) -> str | None:
        """A token for the key of the link, once; None for any other."""
        given, now = _digest(key), self._steady()
        found = [each for each in self._links if hmac.compare_digest(each[0], given)]
        for link in found:
            self._links.remove(link)
        if not any(now <= expires for _, expires in found):
            return None
        token = secrets.token_urlsafe(32)
        self._tokens.append(_digest(token))
        return token

    def is_token(self, token: str) -> bool:
        """Whether a page has this token."""
        given = _digest(token)
        # Each is compared, so that the time says nothing.
        return sum(hmac.compare_digest(given, each) for each in self._tokens) > 0

    def refusal(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[int, str] | None:
        """Why a request is refused, as a status and a code; None if it may pass."""
        found: dict[str, str] = {}
        for raw, value in headers:
            name = raw.decode("latin-1").lower()
            if name in found and name in ("host", "origin", "authorization"):
                return 400, "malformed"
            found[name] = value.decode("latin-1")
        # 1. The name in the address bar: a name that an attacker's server resolves to loopback
        #    (DNS rebinding) would make its page one of this origin.
        if found.get("host") != self.authority:
            return 421, "wrong-host"
        if not path.startswith("/api/"):
            return None if method in ("GET", "HEAD") else (405, "not-allowed")
        # 2. The page that asks. Browsers write these two; a page cannot.
        origin = found.get("origin")
        if origin != self.origin and (origin is not None or method != "GET"):
            return 403, "wrong-origin"
        if found.get("sec-fetch-site", "same-origin") not in _SAME:
            return 403, "wrong-origin"
        # 3. The token, which no other program and no other user has.
        if path in PUBLIC:
            return None
        given = found.get("authorization", "")
        if not given.startswith(_BEARER) or not self.is_token(given.removeprefix(_BEARER)):
            return 401, "no-token"
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
