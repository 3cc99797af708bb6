"""Strips the client's own credentials from a request, before one is injected (I6).

The gateway makes one for each host of a service and applies it to every request. It judges names
and removes whole fields; it neither reorders nor rewrites the others. It never sees the secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from keyhole.http.field import remember
from keyhole.http.request import Treatment
from keyhole.inject.field_families import is_claim, is_credential
from keyhole.inject.injection import HeaderInjection, QueryInjection
from keyhole.inject.slots import GLOBAL_SLOTS, Slot, SlotLocation

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
"""Prefixes of sub-protocols that are a key, or the choice of an account (facts §0.4)."""

MIN_TOKEN = 20
"""Characters from which on a sub-protocol might be a key; `graphql-transport-ws` has that many."""

MAX_PROTOCOL = 255
"""Characters of a sub-protocol that is passed on; registered ones have fewer than 60."""

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
# Characters at which some servers end a name: PHP, Rails and `qs` read `token[]` and `token[x]` as
# `token`.
_NAME_ENDS = re.compile(r"[\[\0]")
# Names that some servers rewrite: PHP reads `api.key`, `api key` and `api[key` as `api_key`.
_FOLDED = re.compile(r"[ .\[-]")


class CredentialStripper:
    """The slots of one host: those that are removed and those that are passed on."""

    __slots__ = ("_collect", "_exact", "_keeps_cookies", "_known_keys", "_prefixes")

    def __init__(
        self, strip: Iterable[Slot], keep: Iterable[Slot], collect: Iterable[str] = ()
    ) -> None:
        """`strip` and `keep` are the service's own; the global slots are always removed.

        The longest slot that covers a name decides. Among equals, `strip` wins over `keep`, and the
        global list comes last. If no slot covers a header, the words in its name decide. `strip`
        should contain `written_slots()` of the injection. The gateway reads fields of `collect`
        itself and never passes them on as they are, so they may be named there although they are
        removed (a signature that is checked).
        """
        spoken = dict.fromkeys(GLOBAL_SLOTS, False)
        spoken |= dict.fromkeys(keep, True)
        spoken |= dict.fromkeys(strip, False)
        self._keeps_cookies = any(
            stays and s.place is SlotLocation.COOKIE for s, stays in spoken.items()
        )
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
        """The treatment of the header field of this lower-case name."""
        text = name.decode("latin-1")
        if text in self._collect:
            return Treatment.COLLECT
        if self._stays(
            SlotLocation.HEADER, text, unnamed=not (is_credential(text) or is_claim(text))
        ):
            return Treatment.KEEP
        if text == "cookie" and self._keeps_cookies:
            return Treatment.COLLECT
        return Treatment.DROP

    def query(self, query: str) -> str:
        """The query without the fields of removed slots, whether `&` or `;` separates them."""
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
        """The cookies that the service keeps; empty if there are none."""
        kept = []
        for cookie in value.split(b";"):
            cookie = cookie.strip(b" \t")
            name = cookie.partition(b"=")[0].decode("latin-1").lower()
            if _COOKIE.fullmatch(cookie) and self._stays(SlotLocation.COOKIE, name, unnamed=False):
                kept.append(cookie)
        return b"; ".join(kept)

    def protocols(self, value: bytes) -> bytes:
        """The sub-protocols that carry no key; if it is empty, the field is removed."""
        if not self._stays(SlotLocation.HEADER, _PROTOCOLS, unnamed=True):
            return b""
        entries = (entry.strip(b" \t") for entry in value.split(b","))
        return b", ".join(entry for entry in entries if _is_plain(entry))

    def _field_stays(self, field: str) -> bool:
        """Whether no server reads this field as a removed one; a slot of exactly its name
        decides."""
        key, equals, _ = field.partition("=")
        stays = self._known_keys.get(key) if equals else None
        if stays is None:
            stays = self._key_stays(key)
            if equals:
                remember(self._known_keys, key, stays)
        return stays

    def _key_stays(self, key: str) -> bool:
        names = _query_names(key)
        exact = self._exact.get(Slot(SlotLocation.QUERY, names[0]))
        if exact is not None:
            return exact
        return all(self._stays(SlotLocation.QUERY, name, unnamed=True) for name in names)

    def _stays(self, place: SlotLocation, name: str, *, unnamed: bool) -> bool:
        """The treatment by the longest slot that covers this name, or `unnamed` when none does."""
        exact = self._exact.get(Slot(place, name))
        if exact is not None:
            return exact
        for slot, stays in self._prefixes:
            if slot.covers(place, name):
                return stays
        return unnamed


def written_slots(injections: Iterable[Injection]) -> tuple[Slot, ...]:
    """Slots that the gateway writes: the client's value there is always removed."""
    return tuple(_written(injection) for injection in injections)


def _written(injection: Injection) -> Slot:
    match injection:
        case HeaderInjection(header):
            return Slot(SlotLocation.HEADER, header.lower())
        case QueryInjection(key):
            return Slot(SlotLocation.QUERY, key.lower())
    # Basic, a bearer token, a signature.
    return Slot(SlotLocation.HEADER, "authorization")


def _query_names(key: str) -> tuple[str, ...]:
    """The names under which lenient servers may read a field: cut, cut and folded, folded."""
    name = unquote_plus(key, errors="replace").casefold()
    cut = _NAME_ENDS.split(name, maxsplit=1)[0].strip()
    whole = name.partition("\0")[0].strip()
    return cut, _FOLDED.sub("_", cut), _FOLDED.sub("_", whole)


def _is_plain(entry: bytes) -> bool:
    if len(entry) > MAX_PROTOCOL or not _TOKEN.fullmatch(entry):
        return False
    if entry.lower().startswith(_CARRIERS):
        return False
    return len(entry) < MIN_TOKEN or _WORDS.fullmatch(entry) is not None
