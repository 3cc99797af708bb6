"""The text of a search, confined to granted repositories.

The text is read as a list of words: quoted words, plain words, and qualifiers that are known to
narrow a search. A result must match all of them. The text needs at least one `repo:`, and each must
be granted. The text that is sent is made from these words. Parentheses around words are dropped,
because gh adds some; operators between words and unknown qualifiers are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.repository import Forge, Repository
from keyhole.policy.graphql.refusal import refusal

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

MAX_TEXT = 1_000
"""Characters of a search; GitHub accepts 256 in addition to its qualifiers."""

_WORD = re.compile(
    r"""[ \t\r\n]*(?:(-?)([a-z][a-z-]{0,30}):)?("[^"\\]{0,200}"|[^\s"()\\:]{1,200})"""
)
_BRACKET = re.compile(r"[ \t\r\n]*[()]")
_REST = re.compile(r"[ \t\r\n]*")

_NARROWING = frozenset(
    "archived assignee author base closed commenter comments created draft extension filename head "
    "in interactions involves is label language linked locked mentions merged milestone no path "
    "reactions reason review review-requested reviewed-by sha sort state status type updated "
    "user-review-requested".split()
)
"""Qualifiers that only narrow or order the results. `org`, `user`, `team` and `project` are not
among them: GitHub may widen a search to them, and so to other repositories."""

_OPERATORS = frozenset({"or", "and", "not"})


def confine_search(text: str, granted: AbstractSet[Repository]) -> str:
    """The text to send. Raises RequestUnfit."""
    if len(text) > MAX_TEXT:
        raise refusal(f"a search has at most {MAX_TEXT} characters")
    if not all(c.isprintable() or c in "\t\r\n" for c in text):
        # Attack: a Unicode space, which may end a word for the forge and not here.
        raise refusal("the search has a character that cannot be judged")
    places: list[str] = []
    words: list[str] = []
    at = 0
    while at < len(text):
        if bracket := _BRACKET.match(text, at):
            at = bracket.end()
            continue
        found = _WORD.match(text, at)
        if found is None:
            rest = _REST.match(text, at)
            if rest is not None and rest.end() == len(text):
                break
            raise refusal("the search has a word that cannot be judged")
        at = found.end()
        minus, qualifier, value = found.groups()
        if qualifier == "repo":
            places.append(_granted(value, granted, without=bool(minus)))
        elif qualifier is None:
            words.append(_plain(value))
        elif qualifier in _NARROWING:
            words.append(f"{minus}{qualifier}:{value}")
        else:
            raise refusal(f"'{qualifier}:' in a search is closed")
        if at < len(text) and not (text[at].isspace() or text[at] in "()"):
            raise refusal("the search has a word that cannot be judged")
    if not places:
        raise refusal("a search needs repo:OWNER/NAME of a granted repository")
    if len(places) > 1:
        raise refusal("a search has one repo:")
    return " ".join([*places, *words])


def _granted(value: str, granted: AbstractSet[Repository], *, without: bool) -> str:
    if without:
        raise refusal("'-repo:' in a search is closed")
    found = Repository.from_segments(Forge.GITHUB, tuple(value.strip('"').split("/")))
    if found is None or found not in granted:
        why = "the search names a repository that is not granted"
        raise refusal(why, Reason.REPOSITORY_NOT_GRANTED)
    return f"repo:{found}"


def _plain(value: str) -> str:
    if value.lstrip("-").lower() in _OPERATORS:
        raise refusal("operators in a search are closed")
    if ":" in value:
        raise refusal("a quoted word with ':' in a search is closed")
    return value
