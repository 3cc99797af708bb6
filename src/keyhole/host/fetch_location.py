"""A URL that a package manager fetches from, read into parts.

Made by `Draft.locate` from every URL that a learner finds. The URL that is passed on (into the
sandbox, to the screen) is rebuilt from the parts, so that it contains no userinfo (I1).
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from msgspec import Struct

from keyhole.host.found_credential import FoundCredential
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host, HostPattern, parse_port
from keyhole.model.path import RequestPath
from keyhole.model.rule import AccessRule

_PORTS = {"https": 443, "http": 80}

# For these the user name is the token, or a keyring has the password. Nothing tells which, and a
# `BasicInjection` shows its user name.
_NO_PASSWORDS = frozenset({"", "x-oauth-basic"})


class FetchLocation(Struct, frozen=True):
    """An http or https URL without query. Make it with `parse`."""

    scheme: str
    pattern: HostPattern
    segments: tuple[str, ...]
    path: str
    credential: FoundCredential | None = None
    lone_user: bool = False
    """Whether the userinfo had a user and no password: it may be a token, and is not used."""

    @classmethod
    def parse(cls, text: str) -> FetchLocation:
        """Read a URL. Errors never repeat it: it may hold a password."""
        if "\\" in text or any(ord(c) < 0x21 or ord(c) == 0x7F for c in text):
            raise Unparsable("a URL has no spaces, backslashes or control characters")
        try:
            parts = urlsplit(text)
        except ValueError:
            raise Unparsable("that is not a URL") from None
        if parts.scheme not in _PORTS:
            raise Unparsable("only an http or https URL names a host")
        if "?" in text or "#" in text:
            raise Unparsable("a URL with a query or fragment may hold a credential")
        if "@" in parts.path:
            # In `https://me:pa/ss@host/` the host would be "me", and half the password its port.
            raise Unparsable("a URL has no '@' behind its host; write '/' in a password as %2F")
        userinfo, _, address = parts.netloc.rpartition("@")
        user, _, password = (unquote(part) for part in userinfo.partition(":"))
        blank = password in _NO_PASSWORDS
        segments = RequestPath.parse(parts.path or "/").segments
        reading_rule(segments)  # refuses a path that no rule can name
        return cls(
            parts.scheme,
            _pattern(address, _PORTS[parts.scheme]),
            segments,
            parts.path,
            None if blank else FoundCredential.basic(user, password),
            blank and bool(user),
        )

    @property
    def netloc(self) -> str:
        """Host, and port where it is not the scheme's own."""
        usual = self.pattern.port == _PORTS[self.scheme]
        return self.pattern.name if usual else f"{self.pattern.name}:{self.pattern.port}"

    @property
    def url(self) -> str:
        """The URL without userinfo."""
        return f"{self.scheme}://{self.netloc}{self.path}"


def reading_rule(segments: tuple[str, ...]) -> AccessRule:
    """`GET` of everything at and below a path."""
    if any("*" in segment for segment in segments):
        raise Unparsable("a URL's path has no '*'")
    return AccessRule.parse("GET /" + "/".join((*segments, "**")))


def _pattern(address: str, usual_port: int) -> HostPattern:
    if address.startswith("["):
        raise Unparsable("an IP address is not a host name; policy speaks of names")
    name, colon, port = address.partition(":")
    return HostPattern(Host.parse(name), False, parse_port(port) if colon else usual_port)
