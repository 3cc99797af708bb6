"""The catalogue's files as they lie on the shelf, for the tests that look at each."""

from __future__ import annotations

import functools
from pathlib import Path

import keyhole.inject
from keyhole.inject.catalogue import Template, parse_template
from keyhole.model.glob import Glob
from keyhole.model.rule import AccessRule

DIRECTORY = Path(keyhole.inject.__file__).parent / "services"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.toml"))

REPOSITORY = "{repo}"
"""Stands in a forge's rule for each repository that a policy grants."""


def text_of(name: str) -> str:
    """A file as it is written."""
    return (DIRECTORY / f"{name}.toml").read_text("utf-8")


@functools.cache
def service(name: str) -> Template:
    """A file as it is read."""
    return parse_template(name, text_of(name))


def granted(rule: AccessRule, repository: tuple[str, ...] = ("acme", "widgets")) -> AccessRule:
    """A forge's rule for one repository."""
    segments: list[str] = []
    for segment in rule.path.segments:
        segments += repository if segment == REPOSITORY else (segment,)
    return AccessRule(rule.methods, Glob(tuple(segments)), rule.text)
