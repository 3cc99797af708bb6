"""Finds the public suffix that a wildcard would cover.

Handed to `policy`, which refuses such a wildcard: anyone can register a name below a public suffix,
so that `*.github.io` or `*.amazonaws.com` would let data out to anyone. The list is that of
`publicsuffixlist`; loading it whole takes 110 ms, so only the lines of one top-level domain are.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import idna
from publicsuffixlist import PSLFILE, PublicSuffixList


def covered_suffix(name: str) -> str | None:
    """The public suffix that `*.name` covers: `name` itself, or one below it; else None.

    `name` is canonical: lower-case A-labels.
    """
    known, rules = _known(name.rpartition(".")[2])
    if known.is_public(name):
        return name
    below = [rule for rule in rules if rule.endswith("." + name) and rule[0] != "!"]
    return (
        min(below, key=lambda rule: (rule.count("."), rule)).removeprefix("*.") if below else None
    )


@cache
def _known(top: str) -> tuple[PublicSuffixList, tuple[str, ...]]:
    """The list's rules for one top-level domain, with their names in A-labels."""
    spelled = idna.decode(top) if top.startswith("xn--") else top
    data = Path(PSLFILE).read_bytes()
    line = re.compile(rb"^(?!//)(?:\S*\.)?%b(?=\s|\Z)" % re.escape(spelled.encode()), re.MULTILINE)
    rules = tuple(_a_labels(found.decode()) for found in line.findall(data))
    # A top-level domain that the list does not know counts as a suffix: its own last rule is "*".
    return PublicSuffixList(source=rules, accept_encoded_idn=False, accept_unknown=True), rules


def _a_labels(rule: str) -> str:
    if rule.isascii():
        return rule
    sign = rule[:1] if rule.startswith("!") else ""
    labels = rule.removeprefix("!").split(".")
    return sign + ".".join(
        label if label.isascii() else idna.encode(label).decode() for label in labels
    )
