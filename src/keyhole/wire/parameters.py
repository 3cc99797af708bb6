"""The fields of a query or of a form (`application/x-www-form-urlencoded`), as servers read them.

Servers differ: some part fields at `;` too, some merge case, some decode a name before they compare
it. A caller therefore looks for a field under every name that a server may read (`folded`), and
trusts its value only where all servers read the same (`plain`).
"""

from __future__ import annotations

import re
import string
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PARAMETERS = 1024
"""Fields of one query or form: the longest forms of AWS have some hundreds (I9). So many with the
longest names take 10 ms (I12)."""

MAX_NAME = 256
"""Characters of a field's name."""

# RFC 3986 §3.4 plus what clients send raw, as `model/query.py` has it. No space, quote or control.
_IN_ORDER = (string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/?[]|^`{}%").encode()
_HALF_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FIELD = re.compile(r"(^|[&;])([^&;=]*)(?:=([^&;]*))?")
_is_plain = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII).fullmatch
_PUNCTUATION = {i: None for i in range(128) if not chr(i).isalnum() and chr(i) != "*"}


class Parameter(Struct, frozen=True):
    """One field."""

    names: frozenset[str]
    """The names that a server may read, folded."""
    name: str
    """Its name as sent."""
    value: str
    """Its value as sent."""
    plain: bool
    """Whether all servers read this name and this value, as sent: nothing is escaped, and `&` parts
    it from the others."""


def read_parameters(text: str) -> Iterator[Parameter]:
    """Read the fields of a query or form. Raises Malformed."""
    if text.count("&") + text.count(";") >= MAX_PARAMETERS:
        raise Malformed(f"it has more than {MAX_PARAMETERS} fields")
    others = text.encode("utf-8", "surrogatepass").translate(None, _IN_ORDER)
    if others or _HALF_ESCAPE.search(text):
        raise Malformed("it has a character that must be percent-encoded")
    for found in _FIELD.finditer(text):
        before, name, value = found[1], found[2], found[3] or ""
        if len(name) > MAX_NAME:
            raise Malformed(f"the name of a field has more than {MAX_NAME} characters")
        if not name and not value:
            continue
        behind = text[found.end() : found.end() + 1]
        whole = ";" not in (before, behind)
        plain = (
            whole and _is_plain(name) is not None and (not value or _is_plain(value) is not None)
        )
        yield Parameter(_readings(name), name, value, plain)


def folded(name: str) -> str:
    """A name without case, width and punctuation; `*` of a pattern stays."""
    if name.isascii():
        return name.lower().translate(_PUNCTUATION)
    name = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c for c in name.lower() if c.isalnum() or c == "*")


def _readings(name: str) -> frozenset[str]:
    if name.isalnum():
        return frozenset((name.lower(),))
    text = unquote_to_bytes(name.replace("+", " ")).decode("utf-8", "replace")
    # PHP ends a name at `[`, programs in C at NUL. A `*` is no pattern here.
    readings = {text, text.partition("[")[0], text.partition("\0")[0]}
    return frozenset(folded(each).replace("*", "") for each in readings)
