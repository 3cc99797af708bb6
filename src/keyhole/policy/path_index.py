"""Rules by path: an index whose cost depends on the path, not on the number of rules.

A trie of segments. Literal segments are one look-up; segment globs (`v*`, `*.json`) are kept by
their literal head and tail, and looked up once for each pair of lengths that occurs, so that
thousands of globs with different heads cost as little as one. `**` branches are tried at every
depth; a rule may be reached in several ways, which is why nodes already seen are skipped (I9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.model.glob import ANY_DEPTH, segment_matches

if TYPE_CHECKING:
    from keyhole.policy.policy import RankedRule


class _Node(Struct, eq=False):
    literal: dict[str, _Node] = field(default_factory=dict)
    globs: dict[tuple[str, str], list[tuple[str, _Node]]] = field(default_factory=dict)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    any_depth: _Node | None = None
    is_any_depth: bool = False
    rules: dict[str, list[RankedRule]] = field(default_factory=dict)
    """By word of a rule, the rules that end here, the strongest first."""
    with_nothing: list[_Node] | None = None
    """The node, and those reached by a `**` that matches nothing; computed at the first use."""

    @property
    def takes_all(self) -> bool:
        """Whether it is a `**` at the end of a rule, which matches any rest."""
        return self.is_any_depth and not self.literal and not self.globs


class PathIndex:
    """Finds the strongest rule for some words and the segments of a path."""

    def __init__(self) -> None:
        self._root = _Node()
        self._start = [self._root]
        self._is_empty = True

    def add(self, rule: RankedRule) -> None:
        """Add a rule; among equals the first one added decides."""
        node = self._root
        glob = rule.rule.path.folded() if rule.folds else rule.rule.path
        for segment in glob.segments:
            node.with_nothing = None
            node = _child(node, segment)
        for method in rule.rule.methods:
            held = node.rules.setdefault(method, [])
            held.append(rule)
            held.sort(key=lambda r: r.tier)  # stable: among equals the first added stays first
        self._start = _closure([self._root])
        self._is_empty = False

    def find(self, words: tuple[str, ...], segments: tuple[str, ...]) -> RankedRule | None:
        """The strongest rule with one of these words that matches this path."""
        best: RankedRule | None = None
        if self._is_empty:
            return best
        for node in self._reached(segments):
            held = node.rules
            if not held:
                continue
            for word in words:
                rules = held.get(word)
                if rules is not None and (best is None or rules[0].tier < best.tier):
                    best = rules[0]
        return best

    def find_all(self, words: tuple[str, ...], segments: tuple[str, ...]) -> list[RankedRule]:
        """Every rule with one of these words that matches this path, in no order."""
        return [
            rule
            for node in self._reached(segments)
            for word in words
            for rule in node.rules.get(word, ())
        ]

    def _reached(self, segments: tuple[str, ...]) -> list[_Node]:
        level = self._start
        for segment in segments:
            step: list[_Node] = []
            for node in level:
                if node.is_any_depth:
                    step.append(node)
                if node.literal:
                    found = node.literal.get(segment)
                    if found is not None:
                        step.append(found)
                if node.globs:
                    _match_globs(node, segment, step)
            if len(step) != 1:
                if not step:
                    return step
                level = _closure(step)
                continue
            node = step[0]
            if node.any_depth is None:
                if node.takes_all:
                    return step
                level = step
                continue
            level = node.with_nothing or _closure(step)
            node.with_nothing = level
        return level


def _child(node: _Node, segment: str) -> _Node:
    if segment == ANY_DEPTH:
        if node.any_depth is None:
            node.any_depth = _Node(is_any_depth=True)
        return node.any_depth
    if "*" not in segment:
        return node.literal.setdefault(segment, _Node())
    head, tail = segment.partition("*")[0], segment.rpartition("*")[2]
    held = node.globs.setdefault((head, tail), [])
    for text, child in held:
        if text == segment:
            return child
    lengths = (len(head), len(tail))
    if lengths not in node.lengths:
        node.lengths.append(lengths)
    child = _Node()
    held.append((segment, child))
    return child


def _match_globs(node: _Node, segment: str, step: list[_Node]) -> None:
    size = len(segment)
    for head, tail in node.lengths:
        if head + tail <= size:
            held = node.globs.get((segment[:head], segment[size - tail :]))
            if held:
                step.extend(child for glob, child in held if segment_matches(glob, segment))


def _closure(nodes: list[_Node]) -> list[_Node]:
    """These nodes and those reached by a `**` that matches nothing, each once."""
    seen: dict[_Node, None] = {}
    for start in nodes:
        node: _Node | None = start
        while node is not None and node not in seen:
            seen[node] = None
            node = node.any_depth
    return list(seen)
