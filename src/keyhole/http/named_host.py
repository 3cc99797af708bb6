"""The name under which a client opened an HTTP/1 connection: Host of its first request.

Used for published ports, against DNS rebinding: a page of another name that resolves to this host
asks under that name.
"""

from __future__ import annotations

import re

from keyhole.http.field import MAX_FIELDS, NO_FIELD, TOKEN_CHARACTER, TWICE
from keyhole.model.errors import Malformed

# RFC 9112 §3.2.1 origin-form. Browsers send no other to a server; an absolute target would name a
# host beside Host (§3.2.2).
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} /[\x21-\xff]* HTTP/1\.[01]")
_FIELD_NAME = re.compile(TOKEN_CHARACTER + rb"+")
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def named_host(head: bytes) -> bytes:
    """The Host of a request's head, which ends before the empty line; in lower case.

    Raises Malformed for a head that a server could read in another way.
    """
    first, *lines = head.split(b"\r\n")
    if not _REQUEST_LINE.fullmatch(first):
        raise Malformed("not a request of HTTP/1 with a path")
    if len(lines) > MAX_FIELDS:
        raise Malformed("too many fields")
    found: bytes | None = None
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _FIELD_NAME.fullmatch(name) or _CONTROLS.search(value):
            raise Malformed(NO_FIELD)
        if name.lower() == b"host":
            if found is not None:
                raise Malformed(TWICE)
            found = value.strip(b" \t").lower()
    if not found:
        raise Malformed("the request names no host")
    return found
