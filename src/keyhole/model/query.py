"""The query of a request: its shape is checked once, before anything reads it."""

from __future__ import annotations

import re

from keyhole.model.errors import Unparsable

MAX_QUERY_LENGTH = 16384
"""Bytes of a query as sent: search APIs stay under 8 KiB, signed URLs under 4."""

# RFC 3986 §3.4 plus what browsers and SDKs send raw ([ ] | ^ ` { }); no space, quote or control.
_QUERY = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|^`{}]++|%[0-9A-Fa-f]{2})*+")
_PLAIN = re.compile(r"[A-Za-z0-9\-._~!$&'()*,;=:@/?\[\]|^`{}]*+")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def is_plain_query(text: str) -> bool:
    """Whether a query is in order and has no escapes, so that its names are spelled as they are."""
    return len(text) <= MAX_QUERY_LENGTH and _PLAIN.fullmatch(text) is not None


def parse_query(text: str) -> tuple[str, ...]:
    """The decoded, lower-case names of the query's fields, split at `&` and `;`."""
    if len(text) > MAX_QUERY_LENGTH:
        raise Unparsable(f"a query is at most {MAX_QUERY_LENGTH} bytes")
    if not _QUERY.fullmatch(text):
        raise Unparsable("a query has a character that must be percent-encoded")
    fields = text.replace(";", "&").split("&") if text else []
    return tuple([_decode(field.partition("=")[0]).lower() for field in fields])


def _decode(name: str) -> str:
    if name.isalnum():
        return name
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), name.replace("+", " "))
