"""One https URL that another server named: where something is asked, and where a person is sent.

Used for the endpoints of logins. Nothing is repaired: a URL that two programs could read in two
ways is refused, since one of them would judge a host and the other would connect to it (I4).
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host, parse_port

MAX_URL = 2048
"""Characters of a URL: those of real endpoints have at most some 200."""

_SCHEME = "https://"
# RFC 3986 §2: all that a URL may hold, and nothing that browsers take for something else (`\`).
_PRINTABLE = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")


class HttpsUrl(Struct, frozen=True):
    """An https URL without user information and fragment. Make it with `parse`."""

    host: Host
    port: int
    target: str
    """The path with its query; at least `/`."""
    text: str
    """As it was written, to be compared with other texts."""

    @classmethod
    def parse(cls, text: str) -> HttpsUrl:
        """Read one spelling of a URL, or refuse it with the reason; the text is not repeated."""
        if len(text) > MAX_URL:
            raise Unparsable(f"a URL has at most {MAX_URL} characters")
        if not text.startswith(_SCHEME):
            raise Unparsable("it is not an https URL")
        if "#" in text:
            raise Unparsable("it has a fragment")
        if not _PRINTABLE.fullmatch(text):
            raise Unparsable("it has characters that no URL has")
        rest = text.removeprefix(_SCHEME)
        at = next((i for i, sign in enumerate(rest) if sign in "/?"), len(rest))
        authority, target = rest[:at], rest[at:]
        if "@" in authority:
            raise Unparsable("it has a user name or a password")
        name, colon, port = authority.partition(":")
        host = Host.parse(name)
        number = parse_port(port) if colon else DEFAULT_PORT
        return cls(host, number, target if target.startswith("/") else f"/{target}", text)

    @property
    def path(self) -> str:
        """The path without its query."""
        return self.target.partition("?")[0]

    @property
    def authority(self) -> str:
        """The value of a Host field."""
        return self.host.name if self.port == DEFAULT_PORT else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without path and query."""
        return f"{_SCHEME}{self.authority}"

    @property
    def identity(self) -> str:
        """The text by which it is compared: an empty path is the path `/` (RFC 3986 §6.2.3)."""
        return f"{self.origin}{'' if self.target == '/' else self.target}"

    def beside(self, target: str) -> HttpsUrl:
        """Another path of the same host and port."""
        return HttpsUrl(self.host, self.port, target, f"{self.origin}{target}")

    def covers(self, other: HttpsUrl) -> bool:
        """Whether the other one lies below this one: the same origin, and whole segments."""
        if self.origin != other.origin:
            return False
        own = self.path.rstrip("/")
        return other.path == own or other.path.startswith(f"{own}/")

    def __str__(self) -> str:
        return self.text
