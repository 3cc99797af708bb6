"""Host names and host patterns in their one canonical form: lower-case A-labels (IDNA 2008).

Used wherever a name enters: policy, DNS question, SNI, HTTP authority. Two spellings of one name
become one value here or are refused (I4); nothing else in Keyhole compares host names as text.
"""

from __future__ import annotations

import ipaddress
import re

import idna
from msgspec import Struct

from keyhole.model.errors import Unparsable

MAX_NAME_LENGTH = 253
"""Characters in a whole name (RFC 1035 §2.3.4, without the root's dot)."""

DEFAULT_PORT = 443
MAX_PORT = 65535

# RFC 952/1123 letters, digits, hyphen. Underscores are DNS labels but not host names.
_LDH_NAME = re.compile(
    r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*"
)
# A last label that is a number makes inet_aton and browsers read an address (WHATWG URL §3.5).
_NUMBER_LABEL = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# Characters that other dot-like code points are mapped to by UTS 46; a person does not type them.
_DOT_LOOKALIKES = "\u3002\uff0e\uff61"

_SUSPECT = {
    "%": "percent-encoding has no place in a host name",
    "@": "user information has no place in a host name",
    "/": "a host name has no path",
    "\\": "a host name has no backslash",
    "?": "a host name has no query",
    "#": "a host name has no fragment",
    "*": "only a leading '*.' may be a wildcard",
    "_": "an underscore is not allowed in a host name",
}


class Host(Struct, frozen=True, order=True):
    """One host name, canonical. Make it with `parse`."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Host:
        """Read one spelling of a host name, or refuse it with the reason."""
        if not text:
            raise Unparsable("a host name is missing")
        if len(text) > MAX_NAME_LENGTH:
            raise Unparsable(f"a host name has at most {MAX_NAME_LENGTH} characters")
        if any(ord(c) < 0x21 or ord(c) == 0x7F for c in text):
            # `evil\0.allowed.com` passed endsWith and was truncated by a C resolver.
            raise Unparsable("a host name has no spaces, NUL or control characters")
        if is_address(text):
            raise Unparsable(
                "an IP address is not a host name; policy speaks of names",
                "name the host, and set the address under [upstream.connect] if needed",
            )
        for sign, why in _SUSPECT.items():
            if sign in text:
                raise Unparsable(why)
        if ":" in text:
            raise Unparsable("a host name has no ':' or brackets")
        if text.endswith("."):
            raise Unparsable("a host name is written without a trailing dot", text.rstrip("."))
        if ".." in text or text.startswith("."):
            raise Unparsable("a host name has no empty label")
        if any(c in text for c in _DOT_LOOKALIKES):
            raise Unparsable("a host name's labels are separated by a plain '.'")
        return cls(_to_a_labels(text))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels from left to right."""
        return tuple(self.name.split("."))

    def __str__(self) -> str:
        return self.name


class HostPattern(Struct, frozen=True, order=True):
    """An exact name, or `*.name` (its subdomains at any depth, not itself), at one port."""

    host: Host
    subdomains: bool
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Read `name[:port]` or `*.name[:port]`; the port is 443 unless given."""
        name, colon, port_text = text.partition(":")
        if "://" in text:
            # A pasted URL may hold a password before its '@': that is not repeated.
            authority = text.partition("://")[2].split("/")[0]
            raise Unparsable("a host pattern has no scheme", authority.rpartition("@")[2])
        if ":" in port_text:
            raise Unparsable("an IP address is not a host name; policy speaks of names")
        port = parse_port(port_text) if colon else DEFAULT_PORT
        if name == "*":
            raise Unparsable("'*' would allow every host", "name hosts, or '*.' and a name")
        subdomains = name.startswith("*.")
        return cls(Host.parse(name[2:] if subdomains else name), subdomains, port)

    def matches(self, host: Host) -> bool:
        """Whether the name, whatever the port, is covered."""
        if self.subdomains:
            return host.name.endswith("." + self.host.name)
        return host == self.host

    def overlaps(self, other: HostPattern) -> bool:
        """Whether some name at some port is covered by both."""
        if self.port != other.port:
            return False
        if self.subdomains and other.subdomains:
            return self.host == other.host or self.matches(other.host) or other.matches(self.host)
        return self.matches(other.host) if self.subdomains else other.matches(self.host)

    def covers(self, other: HostPattern) -> bool:
        """Whether every name and port that the other one covers is covered by this one."""
        if self.port != other.port:
            return False
        if other.subdomains:
            return self.subdomains and (self.host == other.host or self.matches(other.host))
        return self.matches(other.host)

    @property
    def name(self) -> str:
        """The pattern without its port."""
        return f"*.{self.host}" if self.subdomains else self.host.name

    def __str__(self) -> str:
        return self.name if self.port == DEFAULT_PORT else f"{self.name}:{self.port}"


def parse_port(text: str) -> int:
    """Read a decimal port from 1 to 65535 without sign, space or leading zero."""
    if not _PORT.fullmatch(text) or int(text) > MAX_PORT:
        raise Unparsable(f"a port is a number from 1 to {MAX_PORT}")
    return int(text)


def is_address(text: str) -> bool:
    """Whether a C library or a browser would take the text for an IP address."""
    try:
        ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        last = text.lower().rstrip(".").rpartition(".")[2]
        return _NUMBER_LABEL.fullmatch(last) is not None
    return True


def _to_a_labels(text: str) -> str:
    name = text.lower() if text.isascii() else text
    if "xn--" not in name and _LDH_NAME.fullmatch(name):
        return name
    try:
        name = idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except idna.IDNAError as error:
        raise Unparsable(f"not a host name under IDNA 2008: {error}") from None
    if is_address(name):
        raise Unparsable("an IP address is not a host name; policy speaks of names")
    if not _LDH_NAME.fullmatch(name):
        # A last label of soft hyphens alone vanishes and leaves `example.org.` behind.
        raise Unparsable("a host name has no empty label")
    return name
