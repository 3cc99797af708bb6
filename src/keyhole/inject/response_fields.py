"""Drops response fields of hosts that get a credential, if the sandbox must not see them (I1, I7).

The gateway makes one for each such host and applies it to every response: its head, interim
responses, the response that opens a WebSocket, and trailers. Two kinds of field are dropped:

- Fields by which a service hands out a session or a token. Such a cookie opens what the credential
  opens, from anywhere.
- Digests of the body. They cover the origin's bytes; beside a body from which a secret was replaced
  they are wrong, and would let an attacker test guesses at it. The head is sent before the body is
  searched, so digests are always dropped, and their absence reveals nothing.

A catalogue entry names exceptions that a service needs, and so can a policy
(`services.N.unsafe_return`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.http.field import folded, remember
from keyhole.http.request import Treatment
from keyhole.http.response import Framing
from keyhole.inject.slots import SlotLocation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.http.field import Field
    from keyhole.http.response import ResponseHead
    from keyhole.inject.entity_tags import EntityTags
    from keyhole.inject.slots import Slot

SESSION_FIELDS = frozenset(
    b"set-cookie set-cookie2 authorization proxy-authorization x-authorization"
    b" authentication-info proxy-authentication-info x-amz-security-token"
    b" x-auth-key x-api-key api-key apikey private-token".split()
)
"""Fields that hand out a session, a token or a key."""

SESSION_WORDS = frozenset(b"token jwt accesstoken authtoken sessiontoken csrftoken".split())
"""Words of field names that mean the same, as in `X-Subject-Token`. Not `tokens`: clients of models
pace themselves by such counters."""

_HARMLESS = frozenset(
    b"continuation next page pagination cursor sync delta resume expiration expires expiry type"
    b" count limit remaining used scope scopes".split()
)
"""Beside such a word, a token is a position in a list (`X-Next-Page-Token`), or the field describes
a token (`X-Token-Expires`)."""

DIGEST_WORDS = frozenset(
    b"digest digests md5 sha sha1 sha224 sha256 sha384 sha512 crc crc32 crc32c crc64 crc64ecma"
    b" crc64nvme checksum checksums hash etag integrity".split()
)
"""Words of field names that mean a digest: `Content-MD5`, `Repr-Digest`, `X-Goog-Hash`,
`X-Amz-Checksum-Sha256`, `Docker-Content-Digest`."""

_WANTED = b"want-"
"""The prefix of fields that ask the client for something: `Want-Repr-Digest`."""

_ETAG = b"etag"
_COOKIE = b"set-cookie"
CONDITIONS = frozenset({b"if-match", b"if-none-match", b"if-range"})
"""Fields of a request that hold entity tags."""

_COOKIE_NAME = re.compile(rb"[ \t]*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=")
# Several cookies in one line, as old proxies write them. The comma of a date has no `=` after it.
_FOLDED_COOKIES = re.compile(rb",[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*=")
_DROP, _KEEP, _COLLECT = Treatment


class ResponseFields:
    """The fields of one host's responses."""

    __slots__ = ("_cookies", "_headers", "_known", "_tags")

    def __init__(self, returned: Iterable[Slot], tags: EntityTags | None) -> None:
        """Fields in `returned` reach the sandbox all the same. Without `tags`, digests pass
        unchanged."""
        slots = tuple(returned)
        self._cookies = tuple(slot for slot in slots if slot.place is SlotLocation.COOKIE)
        self._headers = tuple(slot for slot in slots if slot.place is SlotLocation.HEADER)
        self._tags = tags
        self._known: dict[bytes, Treatment] = {}

    def treat(self, name: bytes) -> Treatment:
        """The treatment of the field of this lower-case name; `put_back` decides on some of
        them."""
        known = self._known.get(name)
        if known is None:
            known = self._treat(name)
            remember(self._known, name, known)
        return known

    def _treat(self, name: bytes) -> Treatment:
        text = name.decode("latin-1")
        if any(slot.covers(SlotLocation.HEADER, text) for slot in self._headers):
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
        """Add the collected fields that may be passed on to the response's lines."""
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
        """The fields that may follow a body."""
        return [field for field in fields if self.treat(field.name) is _KEEP]

    def _returns(self, cookie: bytes) -> bool:
        name = _COOKIE_NAME.match(cookie)
        if name is None or _FOLDED_COOKIES.search(cookie):
            return False
        return any(
            slot.covers(SlotLocation.COOKIE, name[1].decode("ascii")) for slot in self._cookies
        )


def _is_about_upload(head: ResponseHead, method: str) -> bool:
    """Whether digests in a response are those of the client's own upload, which the client knows.

    Storage answers an upload with the digest of the data that arrived, and nothing else; S3 wants
    the digests of all parts back. HEAD and 304 describe the body that a GET would have had, and so
    does a refusal (412 with the present tag).
    """
    empty = head.framing is Framing.NONE or (head.framing is Framing.LENGTH and not head.length)
    return empty and method not in ("GET", "HEAD") and 200 <= head.status < 300
