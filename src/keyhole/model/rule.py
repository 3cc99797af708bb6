"""One access rule of a service: methods and a path glob, as in `"GET,POST /v1/**"`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.errors import Unparsable
from keyhole.model.path import parse_path_glob
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.glob import Glob

ANY_METHOD = "*"

METHODS = frozenset(
    "GET HEAD POST PUT PATCH DELETE OPTIONS QUERY "
    "PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH".split()
)
"""Methods that a rule may name. CONNECT and TRACE are never allowed and so cannot be named."""

# A HEAD tells less than the GET that a rule names, in both directions: allowed and denied.
_IMPLIED = {"GET": frozenset({"GET", "HEAD"})}


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Which requests a rule speaks of. `methods` holds `*` when it speaks of every method."""

    methods: frozenset[str]
    path: Glob
    text: str

    @classmethod
    def parse(cls, text: str) -> AccessRule:
        """Read `METHOD[,METHOD] /path` (or `* /path`)."""
        words = text.split(" ")
        if len(words) != 2 or not all(words):
            raise Unparsable(
                "a rule is methods and a path with one space between", "as in 'GET,POST /v1/**'"
            )
        methods: set[str] = set()
        for method in words[0].split(","):
            if method != ANY_METHOD and method not in METHODS:
                known = method.upper() if method.upper() in METHODS else None
                raise Unparsable(f"'{method}' is not a method a rule may name", known)
            methods |= _IMPLIED.get(method, {method})
        return cls(frozenset(methods), parse_path_glob(words[1]), text)

    def speaks_of(self, method: str) -> bool:
        """Whether this rule is about the method."""
        return method in self.methods or ANY_METHOD in self.methods

    def covers(self, other: AccessRule) -> bool:
        """Whether each request that `other` speaks of is spoken of here (sound, not complete)."""
        methods = ANY_METHOD in self.methods or other.methods <= self.methods
        return methods and self.path.folded().covers(other.path.folded())

    def overlaps(self, other: AccessRule) -> bool:
        """Whether there is a request that both speak of, without regard to case."""
        named = self.methods | other.methods
        methods = ANY_METHOD in named or bool(self.methods & other.methods)
        return methods and self.path.folded().overlaps(other.path.folded())
