"""Which fields of an answer reach the sandbox, of a host that gets a credential (I1, I7).

Made by the gateway once for each such host, asked about the fields of every answer: of its head, of
interim answers, of the answer that opens a WebSocket, and of trailers. Two kinds stay outside:

- Fields by which a service hands out a session or a token. What the credential opened, such a
  cookie opens too, for whoever has it and from anywhere.
- Digests of the body. They were made of what the origin sent; beside a body from which a secret was
  replaced they are wrong, and would let an attacker try guesses at it. The head leaves before the
  body is searched, so they stay outside always, and do not come and go with what is found.

What a service needs all the same, its catalogue entry names, and a policy can
(`services.N.unsafe_return`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.inject.slots import Place
from keyhole.wire.httpfield import folded, remember
from keyhole.wire.httprequest import Treatment
from keyhole.wire.httpresponse import Framing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.inject.entitytag import EntityTags
    from keyhole.inject.slots import Slot
    from keyhole.wire.httpfield import Field
    from keyhole.wire.httpresponse import ResponseHead

SESSION_FIELDS = frozenset(
    b"set-cookie set-cookie2 authorization proxy-authorization x-authorization"
    b" authentication-info proxy-authentication-info x-amz-security-token"
    b" x-auth-key x-api-key api-key apikey private-token".split()
)
"""Fields that hand out a session, a token or a key."""

SESSION_WORDS = frozenset(b"token jwt accesstoken authtoken sessiontoken csrftoken".split())
"""A word of a field's name that says the same, as in `X-Subject-Token`. Not `tokens`: those are
counted, by which clients of models pace themselves."""

_HARMLESS = frozenset(
    b"continuation next page pagination cursor sync delta resume expiration expires expiry type"
    b" count limit remaining used scope scopes".split()
)
"""Beside such a word, a token is a place in a list (`X-Next-Page-Token`), or the field says
something of it (`X-Token-Expires`)."""

DIGEST_WORDS = frozenset(
    b"digest digests md5 sha sha1 sha224 sha256 sha384 sha512 crc crc32 crc32c crc64 crc64ecma"
    b" crc64nvme checksum checksums hash etag integrity".split()
)
"""A word of a field's name that says it is a digest: `Content-MD5`, `Repr-Digest`, `X-Goog-Hash`,
`X-Amz-Checksum-Sha256`, `Docker-Content-Digest`."""

_WANTED = b"want-"
"""What is wanted of the client: `Want-Repr-Digest`."""

_ETAG = b"etag"
_COOKIE = b"set-cookie"
CONDITIONS = frozenset({b"if-match", b"if-none-match", b"if-range"})
"""Fields of a request that hold entity tags."""

_COOKIE_NAME = re.compile(rb"[ \t]*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=")
# Several cookies in one line, as old proxies write them. The comma of a date has no `=` after it.
_FOLDED_COOKIES = re.compile(rb",[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*=")
_DROP, _KEEP, _COLLECT = Treatment


class AnswerFields:
    """The fields of one host's answers."""

    __slots__ = ("_cookies", "_headers", "_known", "_tags")

    def __init__(self, returned: Iterable[Slot], tags: EntityTags | None) -> None:
        """`returned` reach the sandbox all the same. Without `tags`, digests pass as they are."""
        slots = tuple(returned)
        self._cookies = tuple(slot for slot in slots if slot.place is Place.COOKIE)
        self._headers = tuple(slot for slot in slots if slot.place is Place.HEADER)
        self._tags = tags
        self._known: dict[bytes, Treatment] = {}

    def treat(self, name: bytes) -> Treatment:
        """What becomes of the field of this lower-case name; some are looked at by `put_back`."""
        known = self._known.get(name)
        if known is None:
            known = self._treat(name)
            remember(self._known, name, known)
        return known

    def _treat(self, name: bytes) -> Treatment:
        text = name.decode("latin-1")
        if any(slot.covers(Place.HEADER, text) for slot in self._headers):
            return _KEEP
        if name == _COOKIE and self._cookies:
            return _COLLECT
        plain = folded(name)
        words = set(plain.split(b"-"))
        if plain in SESSION_FIELDS or (words & SESSION_WORDS and not words & _HARMLESS):
            return _DROP
        is_digest = self._tags is not None and words & DIGEST_WORDS
        return _COLLECT if is_digest and not plain.startswith(_WANTED) else _KEEP

    def put_back(self, head: ResponseHead, method: str) -> None:
        """Add to an answer's lines what may go on of the fields that were collected."""
        about_upload = _is_about_upload(head, method)
        for field in head.collected:
            if field.name == _COOKIE:
                if self._returns(field.value):
                    head.lines.append(field.line)
            elif about_upload:
                head.lines.append(field.line)
            elif field.name == _ETAG and self._tags is not None and head.status >= 200:
                sealed = self._tags.seal(field.value)
                if sealed:
                    head.lines.append(b"ETag: %b\r\n" % sealed)

    def trailers(self, fields: Iterable[Field]) -> list[Field]:
        """Those that may follow a body."""
        return [field for field in fields if self.treat(field.name) is _KEEP]

    def _returns(self, cookie: bytes) -> bool:
        name = _COOKIE_NAME.match(cookie)
        if name is None or _FOLDED_COOKIES.search(cookie):
            return False
        return any(slot.covers(Place.COOKIE, name[1].decode("ascii")) for slot in self._cookies)


def _is_about_upload(head: ResponseHead, method: str) -> bool:
    """Whether digests in an answer are of what the client sent, which it knows.

    Storage answers an upload with the digest of what has arrived and with nothing else; S3 wants
    those of all parts back. HEAD and 304 speak of the body that a GET would have had, and a refusal
    (412 with the present tag) does so too.
    """
    empty = head.framing is Framing.NONE or (head.framing is Framing.LENGTH and not head.length)
    return empty and method not in ("GET", "HEAD") and 200 <= head.status < 300
