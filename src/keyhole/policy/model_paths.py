"""What the path of a request to a model says: the API that judges its body, and the models."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from keyhole.model.glob import ANY_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.inject.model_api import JudgedPaths
    from keyhole.model.path import RequestPath
    from keyhole.model.rule import AccessRule
    from keyhole.policy.policy import ServiceHost

_MODEL_FOLLOWS = ("models", "model", "deployments")
"""Segments of a path in the catalogue that a model's name follows."""


def find_api(host: ServiceHost, word: str, path: RequestPath) -> JudgedPaths | None:
    """How requests like this one are judged; None if the catalogue does not say."""
    readings = [path.folded()]
    other = path.split_reading if host.encoded_slash else None
    if other is not None:
        readings.append(other.folded())
    for judged in host.judged:
        for rule in judged.rules:
            glob = rule.path.folded()
            if word in rule.methods and any(map(glob.matches, readings)):
                return judged
    return None


def models_in_path(host: ServiceHost, word: str, path: RequestPath) -> list[str]:
    """The models that a path names, in each of its readings."""
    found: list[str] = []
    judged = find_api(host, word, path)
    readings = [path, path.split_reading if host.encoded_slash else None]
    for rule in judged.rules if judged is not None else ():
        for reading in readings:
            if reading is not None and rule.path.folded().matches(reading.folded()):
                found += _named_by(rule.path.segments, reading.segments)
    return found


def _named_by(pattern: tuple[str, ...], segments: tuple[str, ...]) -> Iterator[str]:
    """Segments that stand for a model: those behind `models` that the catalogue does not spell
    out, without the verb that ends them."""
    for at, (before, given) in enumerate(itertools.pairwise(pattern), 1):
        if before in _MODEL_FOLLOWS and given == ANY_DEPTH:
            yield "/".join(segments[at : len(segments) - (len(pattern) - at - 1)])
        elif before in _MODEL_FOLLOWS and "*" in given:
            verb = given.rpartition("*")[2]
            yield segments[at][: len(segments[at]) - len(verb)]


def names_endpoint(rule: AccessRule) -> bool:
    """Whether a rule names one endpoint: it has no `**`, and its last segment is plain."""
    segments = rule.path.segments
    return bool(segments) and ANY_DEPTH not in segments and "*" not in segments[-1]
