"""What is taken out of a request before one credential is written into it (I6).

Made by the gateway once for each host of a service, asked for every request. It judges names and
removes whole fields; what stays is neither reordered nor written anew. It never sees the secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from keyhole.inject.families import is_claim, is_credential
from keyhole.inject.injection import HeaderInjection, QueryInjection
from keyhole.inject.slots import GLOBAL_SLOTS, Place, Slot
from keyhole.wire.httpfield import remember
from keyhole.wire.httprequest import Treatment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.inject.injection import Injection

_PROTOCOLS = "sec-websocket-protocol"

_CARRIERS = (
    b"openai-insecure-api-key.",
    b"openai-organization.",
    b"openai-project.",
    b"base64url.bearer.authorization.k8s.io.",
)
"""Beginnings of sub-protocols that are a key, or the choice of an account (facts §0.4)."""

MIN_TOKEN = 20
"""Characters from which on a sub-protocol might be a key; `graphql-transport-ws` has that many."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# A long sub-protocol that is no key is made of words: `json.reliable.webpubsub.azure.v1`. A stretch
# of random characters is not; nor are capitals, which registered names of that length do without.
# No letter can be read as part of two runs: with `[a-z]{0,15}[0-9]{0,2}[a-z]{0,3}`, each word had
# four readings, and a name of ten words a million of them (I12).
_WORD = rb"(?:[a-z]{0,18}|[a-z]{0,15}[0-9]{1,2}[a-z]{0,3})"
_WORDS = re.compile(_WORD + rb"(?:[-._+]" + _WORD + rb")*")

# RFC 6265 §4.1.1 cookie-octet. Servers that read quotes or commas would find other cookies in a
# value than are judged here.
_COOKIE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")

_SEPARATOR = re.compile(r"([&;])")
# Where some servers end a name: PHP, Rails and `qs` read `token[]` and `token[x]` as `token`.
_NAME_ENDS = re.compile(r"[\[\0]")
# And what some make of a name: PHP reads `api.key`, `api key` and `api[key` as `api_key`.
_FOLDED = re.compile(r"[ .\[-]")


class Surgery:
    """The slots of one host: which are emptied and which travel."""

    __slots__ = ("_collect", "_exact", "_keeps_cookies", "_known_keys", "_prefixes")

    def __init__(
        self, strip: Iterable[Slot], keep: Iterable[Slot], collect: Iterable[str] = ()
    ) -> None:
        """`strip` and `keep` are the service's own; the global slots are always emptied.

        The longest slot that covers a name speaks. Of equals, what the service strips goes, what it
        keeps stays, and the global list comes last. Of a header that no slot covers, its words
        decide. `strip` should hold `written_slots()` of what
        is injected. Fields of `collect` are read by the gateway and never go on by themselves, so
        they may be named there although they are emptied (a signature that is checked).
        """
        spoken = dict.fromkeys(GLOBAL_SLOTS, False)
        spoken |= dict.fromkeys(keep, True)
        spoken |= dict.fromkeys(strip, False)
        self._keeps_cookies = any(stays and s.place is Place.COOKIE for s, stays in spoken.items())
        self._exact = {s: stays for s, stays in spoken.items() if not s.name.endswith("*")}
        self._prefixes = sorted(
            ((s, stays) for s, stays in spoken.items() if s.name.endswith("*")),
            key=lambda ranked: -len(ranked[0].name),
        )
        self._collect = frozenset({_PROTOCOLS, *(name.lower() for name in collect)})
        # From a query key as sent to whether its fields stay; never a field without `=`, which
        # may be a value.
        self._known_keys: dict[str, bool] = {}

    def treat(self, name: bytes) -> Treatment:
        """What becomes of the header field of this lower-case name."""
        text = name.decode("latin-1")
        if text in self._collect:
            return Treatment.COLLECT
        if self._stays(Place.HEADER, text, unnamed=not (is_credential(text) or is_claim(text))):
            return Treatment.KEEP
        if text == "cookie" and self._keeps_cookies:
            return Treatment.COLLECT
        return Treatment.DROP

    def query(self, query: str) -> str:
        """The query without the fields of emptied slots, whichever of `&` and `;` divides them."""
        fields = query.replace(";", "&").split("&")
        # Each once: a query has room for 16,000 fields, and a look at one takes 5 µs (I12).
        known = {field: self._field_stays(field) for field in set(fields)}
        stays = [known[field] for field in fields]
        if all(stays):
            return query
        pieces = _SEPARATOR.split(query)
        parts: list[str] = []
        for i, field in enumerate(pieces[::2]):
            if stays[i]:
                parts += (pieces[2 * i - 1], field) if parts else (field,)
        return "".join(parts)

    def cookies(self, value: bytes) -> bytes:
        """The cookies that the service keeps, or nothing."""
        kept = []
        for cookie in value.split(b";"):
            cookie = cookie.strip(b" \t")
            name = cookie.partition(b"=")[0].decode("latin-1").lower()
            if _COOKIE.fullmatch(cookie) and self._stays(Place.COOKIE, name, unnamed=False):
                kept.append(cookie)
        return b"; ".join(kept)

    def protocols(self, value: bytes) -> bytes:
        """The sub-protocols that carry no key, or nothing: then the field disappears."""
        if not self._stays(Place.HEADER, _PROTOCOLS, unnamed=True):
            return b""
        entries = (entry.strip(b" \t") for entry in value.split(b","))
        return b", ".join(entry for entry in entries if _is_plain(entry))

    def _field_stays(self, field: str) -> bool:
        """Whether no server reads this field as an emptied one; a slot of just its name decides."""
        key, equals, _ = field.partition("=")
        stays = self._known_keys.get(key) if equals else None
        if stays is None:
            stays = self._key_stays(key)
            if equals:
                remember(self._known_keys, key, stays)
        return stays

    def _key_stays(self, key: str) -> bool:
        names = _query_names(key)
        exact = self._exact.get(Slot(Place.QUERY, names[0]))
        if exact is not None:
            return exact
        return all(self._stays(Place.QUERY, name, unnamed=True) for name in names)

    def _stays(self, place: Place, name: str, *, unnamed: bool) -> bool:
        """What the longest slot says that covers this name, or `unnamed` when none does."""
        exact = self._exact.get(Slot(place, name))
        if exact is not None:
            return exact
        for slot, stays in self._prefixes:
            if slot.covers(place, name):
                return stays
        return unnamed


def written_slots(injections: Iterable[Injection]) -> tuple[Slot, ...]:
    """Where the gateway itself writes: what the client put there goes, kept or not."""
    return tuple(_written(injection) for injection in injections)


def _written(injection: Injection) -> Slot:
    match injection:
        case HeaderInjection(header):
            return Slot(Place.HEADER, header.lower())
        case QueryInjection(key):
            return Slot(Place.QUERY, key.lower())
    # Basic, a bearer token, a signature.
    return Slot(Place.HEADER, "authorization")


def _query_names(key: str) -> tuple[str, ...]:
    """A field's name as lenient servers read it: cut, cut and folded, folded."""
    name = unquote_plus(key, errors="replace").casefold()
    cut = _NAME_ENDS.split(name, maxsplit=1)[0].strip()
    whole = name.partition("\0")[0].strip()
    return cut, _FOLDED.sub("_", cut), _FOLDED.sub("_", whole)


def _is_plain(entry: bytes) -> bool:
    if not _TOKEN.fullmatch(entry) or entry.lower().startswith(_CARRIERS):
        return False
    return len(entry) < MIN_TOKEN or _WORDS.fullmatch(entry) is not None
