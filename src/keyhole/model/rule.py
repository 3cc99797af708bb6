"""One access rule of a service: methods and a path glob, as in `"GET,POST /v1/**"`.

A rule names requests by words. Most words are methods. `GET+body` is a GET that carries a body,
which HTTP gives no meaning: servers differ on reading it, and one that does not takes the body for
the next request. `WEBSOCKET` is a handshake that turns a connection into messages that no rule
sees. Both are grants of their own: no `GET` and no `*` allows them. In a deny rule the wider word
includes them, so that `* /admin/**` forbids all there is.

`GRPC package.Service/Method` names a gRPC call. A call is a POST, so a rule for POST covers it; a
GRPC rule allows nothing but calls. As a deny it forbids every request to the call's path,
because the content type is the client's to choose: servers of Connect, or behind a transcoding
proxy, answer the same method in other forms.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.path import parse_path_glob

ANY_METHOD = "*"
WEBSOCKET = "WEBSOCKET"
GRPC = "GRPC"
_WITH_BODY = "+body"

METHODS = frozenset(
    "GET HEAD POST PUT PATCH DELETE OPTIONS QUERY "
    "PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH".split()
)
"""Methods that a rule may name. CONNECT and TRACE are never allowed and so cannot be named."""

BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""RFC 9110 §9.3: content in them has no defined meaning, so servers differ on reading it."""

WORDS = METHODS | {method + _WITH_BODY for method in BODILESS} | {WEBSOCKET, GRPC}
"""The words that a rule may name, and so the kinds of request, beside `*`."""

# A HEAD reveals less than a GET, so a rule for GET covers it: when it allows and when it denies.
_IMPLIED = {
    "GET": frozenset({"GET", "HEAD"}),
    "GET+body": frozenset({"GET+body", "HEAD+body"}),
}


# Names of protobuf: identifiers with dots between. Other servers' names may have a hyphen.
_is_service = re.compile(r"[A-Za-z0-9_*-]+(?:\.[A-Za-z0-9_*-]+)*", re.ASCII).fullmatch
_is_call = re.compile(r"[A-Za-z0-9_*-]+", re.ASCII).fullmatch


def request_word(method: str, *, body: bool, websocket: bool, grpc: bool = False) -> str:
    """How rules name a request of this method; empty where none can.

    A client may send `GET+body`, `WEBSOCKET` or `GRPC` as its method, which is not what those words
    mean.
    """
    if method not in METHODS:
        return ""
    if grpc and method == "POST":
        return GRPC
    if websocket:
        return WEBSOCKET
    return method + _WITH_BODY if body and method in BODILESS else method


def spelled(text: str) -> str:
    """A word in the one spelling that it has, however a person typed it."""
    name, plus, rest = text.partition("+")
    return name.upper() + plus + rest.lower()


def plain_method(word: str) -> str:
    """The method of a request without its body, its handshake or its protocol."""
    if word == GRPC:
        return "POST"
    return "GET" if word == WEBSOCKET else word.removesuffix(_WITH_BODY)


def rule_text(word: str, path: str) -> str:
    """The rule that names requests of this word and path."""
    if word == GRPC:
        service, slash, call = path[1:].partition("/")
        if slash and _is_service(service) and _is_call(call):
            return f"{GRPC} {service}/{call}"
        word = plain_method(word)
    return f"{word} {path}"


def _allowing(word: str) -> tuple[str, ...]:
    if word == WEBSOCKET or word.endswith(_WITH_BODY):
        return (word,)
    if word == GRPC:
        return (GRPC, plain_method(GRPC), ANY_METHOD)
    # A request that may have a body need not have one.
    return (word, word + _WITH_BODY, ANY_METHOD) if word in BODILESS else (word, ANY_METHOD)


def _denying(word: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((word, plain_method(word), GRPC, ANY_METHOD)))


_WORD = "(?:" + "|".join(re.escape(word) for word in sorted(WORDS - {GRPC})) + r"|\*)"
PATTERN = rf"^(?:{_WORD}(?:,{_WORD})* /|{GRPC} [A-Za-z0-9_.*-]+/[A-Za-z0-9_*-]+$)"
"""A rule's shape, for editors that check a policy against its schema."""

ALLOWED_BY = {word: _allowing(word) for word in WORDS}
"""By a request's word, the words of an allow rule that cover it."""

DENIED_BY = {word: _denying(word) for word in WORDS}
"""The same of a deny rule."""


class AccessRule(Struct, frozen=True):
    """Which requests a rule speaks of. `methods` holds words; `*` stands for every method."""

    methods: frozenset[str]
    path: Glob
    text: str

    @classmethod
    def parse(cls, text: str) -> AccessRule:
        """Read `METHOD[,METHOD] /path` (or `* /path`, `GET+body /path`, `WEBSOCKET /path`), or
        `GRPC package.Service/Method`."""
        words = text.split(" ")
        if len(words) != 2 or not all(words):
            raise Unparsable(
                "a rule is methods and a path with one space between", "as in 'GET,POST /v1/**'"
            )
        if words[0] == GRPC:
            return cls(frozenset({GRPC}), _parse_call(words[1]), text)
        methods: set[str] = set()
        for method in words[0].split(","):
            if method == GRPC:
                raise Unparsable("GRPC stands alone in a rule", "write a rule of its own for it")
            if method != ANY_METHOD and method not in WORDS:
                raise Unparsable(f"'{method}' is not a method a rule may name", _meant(method))
            methods |= _IMPLIED.get(method, {method})
        return cls(frozenset(methods), parse_path_glob(words[1]), text)

    def allows(self, word: str) -> bool:
        """Whether this, as an allow rule, covers a request's word."""
        return not self.methods.isdisjoint(ALLOWED_BY.get(word, ()))

    def speaks_of(self, word: str) -> bool:
        """Whether this, as a deny rule or a limit, covers a request's word."""
        return not self.methods.isdisjoint(DENIED_BY.get(word, ()))

    def covers(self, other: AccessRule) -> bool:
        """Whether a deny of this forbids all that `other` would allow (sound, not complete)."""
        words = other.methods
        methods = ANY_METHOD in self.methods or all(map(self._forbids, words))
        return methods and self.path.folded().covers(other.path.folded())

    def overlaps(self, allowed: AccessRule) -> bool:
        """Whether a deny of this forbids something that `allowed` would allow, in any case."""
        words = any(self.speaks_of(word) and allowed.allows(word) for word in WORDS)
        return words and self.path.folded().overlaps(allowed.path.folded())

    def shares(self, other: AccessRule) -> bool:
        """Whether some request is allowed by both, in any case."""
        words = any(self.allows(word) and other.allows(word) for word in WORDS)
        return words and self.path.folded().overlaps(other.path.folded())

    def _forbids(self, word: str) -> bool:
        """Whether a deny of this forbids all that a word of an allow rule covers."""
        # `GET+body` allows a GET without one, too; a handshake is forbidden by its own word also.
        own = GRPC in self.methods or (word == WEBSOCKET and word in self.methods)
        return own or plain_method(word) in self.methods


def _parse_call(text: str) -> Glob:
    """Read `package.Service/Method`; `*` stands for any part of either."""
    service, _, call = text.removeprefix("/").partition("/")
    if "**" in text:
        raise Unparsable(
            "a GRPC rule has a service and a method, in which '*' stands for any part",
            f"{GRPC} {text.replace('**', '*')}" if "/" in text else f"{GRPC} */*",
        )
    if text.startswith("/") or not call:
        hint = f"{service}/{call or '*'}" if service not in ("", "*") else "*/*"
        raise Unparsable("a GRPC rule is a service and a method", f"{GRPC} {hint}")
    if not _is_service(service) or not _is_call(call):
        raise Unparsable(
            "a GRPC rule is a service and a method, in letters, digits, '_', '-', '.' and '*'",
            "as in 'GRPC google.pubsub.v1.Publisher/Publish'",
        )
    return Glob((service, call))


def _meant(method: str) -> str | None:
    """The right spelling that this is probably meant to be."""
    word = spelled(method)
    if word in WORDS:
        return word
    # A POST has a body anyway.
    return word if (word := plain_method(word)) in METHODS else None
