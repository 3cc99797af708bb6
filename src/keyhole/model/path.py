"""Request paths in one normalised form, and the globs that rules are written in.

A path is parsed once into fully decoded segments. A path that two servers might read differently
(encoded slashes, dot segments, double encoding, parameters) is refused (I3, I4). Rules are matched
against segments only.
"""

from __future__ import annotations

import re
import unicodedata

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.glob import ANY_DEPTH, Glob, fold
from keyhole.model.text import check_marks

MAX_PATH_LENGTH = 8192
"""Bytes of a path as sent: the limit of common servers."""

MAX_SEGMENTS = 128
"""Segments of a path: no known API nests deeper, and matching walks them."""

# RFC 3986 §3.3 pchar without ';' (path parameters differ between servers) plus '/' and '%'.
_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,=:@%/]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_REFUSED_ESCAPES = {
    0x25: "double encoding (%25)",
    0x2F: "an encoded slash (%2F)",
    0x5C: "an encoded backslash (%5C)",
    0x3B: "an encoded ';' (%3B)",
    0x7F: "an encoded control character",
} | dict.fromkeys(range(0x20), "an encoded control character")
_ENCODED_SLASH = 0x2F
_IN_NO_RULE = re.compile(r"[ ?#%\\;\x00-\x1f\x7f]")
_STARS = re.compile(r"\*+")
_UNCLEAN = frozenset({"", ".", ".."})
_CONFUSING = frozenset("/\\;%")
# Canonically ';', '`' and 'K'; and what Windows' best-fit tables turn into '/' and '\'.
_LOOKALIKES = frozenset("\u037e\u1fef\u212a\u2044\u2215\u2216")


class RequestPath(Struct, frozen=True):
    """A path that normalised cleanly; a trailing slash makes no difference to its segments."""

    segments: tuple[str, ...]
    raw: str

    @classmethod
    def parse(cls, text: str, *, opaque_slash: bool = False) -> RequestPath:
        """Normalise, or refuse. With `opaque_slash`, `%2F` is a character of its segment."""
        if len(text) > MAX_PATH_LENGTH:
            raise Unparsable(f"a path is at most {MAX_PATH_LENGTH} bytes")
        if not _PATH.fullmatch(text):
            raise Unparsable(_why_refused(text))
        pieces = _pieces(text)
        if len(pieces) > MAX_SEGMENTS:
            raise Unparsable(f"a path has at most {MAX_SEGMENTS} segments")
        if "%" in text:
            pieces = [_decode(piece, opaque_slash) for piece in pieces]
        if not _UNCLEAN.isdisjoint(pieces):
            raise Unparsable("a path has no empty, '.' or '..' segment")
        return cls(tuple(pieces), text)

    @property
    def split_reading(self) -> RequestPath | None:
        """The path as read by a server that decodes `%2F` first; None if that does not
        normalise."""
        segments = "/".join(self.segments).split("/") if self.segments else []
        if any(_is_unclean(s) for s in segments):
            return None
        return RequestPath(tuple(segments), self.raw)

    def folded(self) -> tuple[str, ...]:
        """The segments as a server without regard to case or width would read them."""
        if "%" not in self.raw and self.raw == self.raw.lower():
            return self.segments  # ASCII, and in lower case already
        return tuple(map(fold, self.segments))


def parse_path_glob(text: str) -> Glob:
    """Read a rule's path (`/v1/*/items`, `/v1/**`) in decoded characters."""
    if not text.startswith("/"):
        raise Unparsable("a rule's path starts with '/'", f"/{text}")
    if "?" in text or "#" in text:
        raise Unparsable("a rule's path has no query or fragment")
    if "%" in text:
        raise Unparsable("a rule's path is written decoded, without '%'")
    if any(c in "\\;" or ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        raise Unparsable("a rule's path has no '\\', ';' or control characters")
    check_marks(text)
    segments = tuple(unicodedata.normalize("NFC", s) for s in _pieces(text))
    if len(segments) > MAX_SEGMENTS:
        raise Unparsable(f"a path has at most {MAX_SEGMENTS} segments")
    for segment in segments:
        if _is_unclean(segment):
            raise Unparsable("a rule's path has no empty, '.' or '..' segment")
        if "**" in segment and segment != ANY_DEPTH:
            raise Unparsable("'**' stands alone between slashes", "use '*' within a segment")
    return Glob(segments)


def glob_text(path: RequestPath) -> str | None:
    """The narrowest glob that a rule can have for this path; None if there is none.

    A character that a rule's path does not have, such as a decoded '?', is any part of its segment.
    """
    segments = []
    for segment in path.segments:
        text = _IN_NO_RULE.sub("*", segment)
        if "/" in text or text == ANY_DEPTH:
            return None  # an encoded slash; or it would stand for any number of segments
        segments.append(_STARS.sub("*", text))
    return "/" + "/".join(segments)


def _why_refused(text: str) -> str:
    if not text.startswith("/"):
        return "a path starts with '/'"
    if ";" in text:
        return "a path has no ';' parameters"
    return "a path has a character that must be percent-encoded"


def _pieces(text: str) -> list[str]:
    """The texts between the slashes; one trailing slash adds nothing, `//` is not the root."""
    return [] if text == "/" else text[1:].removesuffix("/").split("/")


def _decode(piece: str, opaque_slash: bool) -> str:
    if "%" not in piece:
        return piece
    octets, at = bytearray(), 0
    for escape in _ESCAPE.finditer(piece):
        if escape[1] is None:
            raise Unparsable("'%' is followed by two hexadecimal digits")
        octet = int(escape[1], 16)
        if octet in _REFUSED_ESCAPES and not (opaque_slash and octet == _ENCODED_SLASH):
            raise Unparsable(f"a path has {_REFUSED_ESCAPES[octet]}")
        octets += piece[at : escape.start()].encode("ascii")
        octets.append(octet)
        at = escape.end()
    octets += piece[at:].encode("ascii")
    try:
        decoded = octets.decode("utf-8")
    except UnicodeDecodeError:
        raise Unparsable("a path is UTF-8 where it is percent-encoded") from None
    check_marks(decoded)
    if not decoded.isascii() and _is_confusing(decoded):
        raise Unparsable("a path has a character that some servers read as a slash or dot")
    return unicodedata.normalize("NFC", decoded)


def _is_confusing(decoded: str) -> bool:
    """Best-fit servers turn a full-width solidus or full stop into the plain one."""
    flat = unicodedata.normalize("NFKC", decoded)
    return (
        not _LOOKALIKES.isdisjoint(decoded)
        or any(flat.count(c) > decoded.count(c) for c in _CONFUSING)
        or any(_is_unclean(piece) for piece in flat.split("/"))
    )


def _is_unclean(segment: str) -> bool:
    return segment in _UNCLEAN
