"""Git ref names and the branch and tag globs of a policy.

Servers accept far more than is safe (`refs/heads/MAIN` beside `main`, zero-width characters,
`refs/replace/*`): here only two namespaces and a plain alphabet exist.
"""

from __future__ import annotations

import enum
import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.glob import ANY_DEPTH, Glob

MAX_REF_LENGTH = 200
"""Bytes of a whole ref name; file-backed servers fail near 255 per segment."""

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_GLOB_SEGMENT = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9._*-]*")


class RefKind(enum.StrEnum):
    """The two namespaces that exist through Keyhole."""

    BRANCH = "heads"
    TAG = "tags"


class Ref(Struct, frozen=True, order=True):
    """A full ref name of a branch or tag, as its kind and the segments after the namespace."""

    kind: RefKind
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read `refs/heads/NAME` or `refs/tags/NAME`."""
        root, _, rest = text.partition("/")
        namespace, _, name = rest.partition("/")
        if root != "refs" or namespace not in {k.value for k in RefKind} or not name:
            raise Unparsable("only refs/heads/* and refs/tags/* exist")
        if len(text) > MAX_REF_LENGTH:
            raise Unparsable(f"a ref name is at most {MAX_REF_LENGTH} bytes")
        segments = tuple(name.split("/"))
        for segment in segments:
            _check_segment(segment, _SEGMENT, "ref name")
        return cls(RefKind(namespace), segments)

    @property
    def name(self) -> str:
        """The short name, as in `git branch`."""
        return "/".join(self.segments)

    def __str__(self) -> str:
        return f"refs/{self.kind.value}/{self.name}"


def short_ref(ref: str) -> str:
    """The name as `push` and `tags` of a policy write it: without its namespace, and that once.

    Attack: a branch `refs/heads/refs/tags/main`, whose name would read as `main`.
    """
    for kind in RefKind:
        prefix = f"refs/{kind.value}/"
        if ref.startswith(prefix):
            return ref.removeprefix(prefix)
    return ref


def parse_ref_glob(text: str) -> Glob:
    """Read a branch or tag glob: `main`, `agent/*`, `release/**`."""
    for prefix in ("refs/heads/", "refs/tags/"):
        if text.startswith(prefix):
            raise Unparsable(f"written without '{prefix}'", text.removeprefix(prefix))
    if text.startswith("refs/"):
        raise Unparsable("only branches and tags exist through Keyhole")
    if text.startswith("+") or ":" in text:
        raise Unparsable("a refspec is not a branch name", text.lstrip("+").partition(":")[0])
    if not text or len(text) > MAX_REF_LENGTH:
        raise Unparsable(f"a branch or tag name has 1 to {MAX_REF_LENGTH} bytes")
    segments = tuple(text.split("/"))
    for segment in segments:
        if segment != ANY_DEPTH:
            if ANY_DEPTH in segment:
                raise Unparsable("'**' stands alone between slashes")
            _check_segment(segment, _GLOB_SEGMENT, "branch or tag pattern")
    return Glob(segments)


def _check_segment(segment: str, alphabet: re.Pattern[str], what: str) -> None:
    if not segment:
        raise Unparsable(f"a {what} has no empty segment")
    if ".." in segment or segment.endswith((".", ".lock")):
        raise Unparsable(f"a {what} has no '..', and no segment ends in '.' or '.lock'")
    if not alphabet.fullmatch(segment):
        raise Unparsable(
            f"a {what}'s segments begin with a letter, digit or '_' and have letters, digits, "
            "'.', '_' and '-'"
        )
