"""The catalogue's files as they lie on the shelf, for the tests that look at each."""

from __future__ import annotations

import collections
import functools
import re
from pathlib import Path

import keyhole.inject
from keyhole.app.setup.catalogue import FileModelApis
from keyhole.inject.catalogue import ServiceTemplate, extended, parse_template
from keyhole.model.glob import Glob
from keyhole.model.rule import AccessRule

MODEL_APIS = FileModelApis()
DIRECTORY = Path(keyhole.inject.__file__).parent / "services"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.toml"))

METHODS = frozenset(
    "DELETE GET HEAD LOCK MKCOL MOVE OPTIONS PATCH POST PROPFIND PUT UNLOCK".split()
)
REPOSITORY = "{repo}"
"""Stands in a forge's rule for each repository that a policy grants."""


def text_of(name: str) -> str:
    """A file as it is written."""
    return (DIRECTORY / f"{name}.toml").read_text("utf-8")


@functools.cache
def service(name: str) -> ServiceTemplate:
    """A file as it is read."""
    text = text_of(name)
    base = text_of(other) if (other := extended(text)) else ""
    return parse_template(name, text, MODEL_APIS, base)


def granted(rule: AccessRule, repository: tuple[str, ...] = ("acme", "widgets")) -> AccessRule:
    """A forge's rule for one repository."""
    segments: list[str] = []
    for segment in rule.path.segments:
        segments += repository if segment == REPOSITORY else (segment,)
    return AccessRule(rule.methods, Glob(tuple(segments)), rule.text)


def pairs(text: str) -> list[tuple[str, str]]:
    """Methods and paths of a table in which a method stands before its paths."""
    found, method = [], ""
    for word in text.split():
        if word in METHODS:
            method = word
        else:
            found.append((method, word))
    return found


def by_service(text: str) -> dict[str, list[tuple[str, str]]]:
    """Such tables, each behind the name of its service; a name without one has no rows."""
    found = collections.defaultdict[str, list[tuple[str, str]]](list)
    for name, rows in re.findall(r"^(\S+):((?: .*\n|\n)*)", text, re.MULTILINE):
        found[name] = pairs(rows)
    return found
