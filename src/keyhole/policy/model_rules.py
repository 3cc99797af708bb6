"""The rules of a model's API as a tree of places, by which `model_features.py` walks a body.

A place knows the names and values that were seen there and ask for nothing, so that a body with
thousands of the same takes one look-up for each.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.model.glob import ANY_DEPTH, segment_matches

if TYPE_CHECKING:
    from keyhole.inject.model_api import BodyRule, ModelApi
    from keyhole.wire.strict_json import JsonValue

MAX_NAME = 64
"""Characters of a name that is compared in any spelling; none that a rule knows is longer."""

MAX_FOLDED = 1024
"""Characters at the beginning of a value that are compared in any spelling. Attack: a model's name
with more than `MAX_NAME` of them, which a rule for short names would not see."""

MAX_REMEMBERED = 256
"""Harmless values, and names, that are remembered at one place of a body (I9)."""


class RuleNode(Struct, eq=False):
    """A place in a body that a rule speaks of, or that leads to one."""

    name: str = ""
    """Its own name, as the rules spell it."""
    place: str = ""
    """The names that lead here."""
    children: dict[str, RuleNode] = field(default_factory=dict)
    """By their names in one spelling (`fold_name`)."""
    values: list[BodyRule] = field(default_factory=list)
    members: list[BodyRule] = field(default_factory=list)
    missing: list[tuple[RuleNode, BodyRule]] = field(default_factory=list)
    model: bool = False
    tokens: bool = False
    answers: bool = False
    prompts: bool = False
    exact: bool = False
    """Whether no other spelling of its name is taken: the provider must see what was judged."""
    looks: bool = False
    """Whether anything is asked of a value that stands here."""
    leads: bool = False
    """Whether anything is asked of the members of an object that stands here."""
    within: RuleNode | None = None
    """The place of members that no rule names; None: nothing is asked of them."""
    ends: bool = False
    """Whether the `within` of an outer place does not hold here."""
    plain: set[str] = field(default_factory=set)
    """Texts that were found to be harmless."""
    literals: set[str] = field(default_factory=set)
    """Other values that were found to be harmless, as `text_of` has them."""
    known: dict[str, RuleNode | None] = field(default_factory=dict)
    """Names of members that ask for nothing, and the places that they lead to."""

    def child(self, name: str) -> RuleNode:
        """The place of a member; made if there is none."""
        made = RuleNode(name, self.place_of(name))
        return self.children.setdefault(fold_name(name), made)

    def find(self, name: str) -> RuleNode | None:
        """The place of a member in any spelling: its own, or `within`."""
        folded = fold_name(name)
        child = self.children.get(folded)
        if child is None and self.within is not None:
            return self.within.children.get(folded, self.within)
        return child

    def inner(self) -> RuleNode:
        """The place of members at any depth; made if there is none."""
        if self.within is None:
            self.within = RuleNode(ANY_DEPTH, self.place_of(ANY_DEPTH))
            self.within.within = self.within
        return self.within

    def place_of(self, name: str) -> str:
        """The place of a member, for people."""
        return f"{self.place}.{name}" if self.place else name

    def settle(self) -> None:
        """All rules are here, and in the places that this one leads to."""
        asks = not all(rule.is_open for rule in self.values)
        self.looks = asks or self.model or self.counts
        self.leads = bool(self.children or self.members or self.within)
        inner = self.within
        for key, child in self.children.items():
            if child.within is None and not child.ends:
                child.within = inner
            child.settle()
            if _is_harmless(self.members, child.name):
                self.known[child.name] = child
            if inner is not None and child.values and not child.looks:
                # The conversation's text is known by its name at any depth.
                inner.children.setdefault(key, child)
        if inner is not None:
            inner.looks = inner.leads = True

    def remember_value(self, text: str, known: set[str]) -> bool:
        """Whether no rule sees anything in a value, which is then remembered if it is short, in
        `plain` or `literals`."""
        if not _is_harmless(self.values, text):
            return False
        if len(text) <= MAX_NAME and len(known) < MAX_REMEMBERED and not self._is_noted:
            known.add(text)
        return True

    @property
    def counts(self) -> bool:
        """Whether a value that stands here says how much the model may write."""
        return self.tokens or self.answers or self.prompts

    @property
    def _is_noted(self) -> bool:
        """Whether every value is looked at, however often it comes."""
        return self.model or self.counts

    def remember_name(self, name: str) -> bool:
        """Whether no rule sees anything in a member's name, which is then remembered if it is short
        and is not another spelling of one that leads on."""
        if not _is_harmless(self.members, name):
            return False
        # Attack: a second spelling would not be noticed if it was known.
        leads_on = self.find(name) is not self.within
        if len(name) <= MAX_NAME and len(self.known) < MAX_REMEMBERED and not leads_on:
            self.known[name] = self.within
        return True


@functools.lru_cache(maxsize=64)
def compile_rules(api: ModelApi) -> RuleNode:
    """The rules of an API by place."""
    root = RuleNode()
    for rule in api.rules:
        node, outer = root, root
        for name in rule.at:
            node, outer = node.inner() if name == ANY_DEPTH else node.child(name), node
        node.ends = node.ends or rule.plain
        if rule.members:
            node.members.append(rule)
        else:
            node.values.append(rule)
        if rule.missing:
            outer.missing.append((node, rule))
            _be_exact(root, rule.at)
    marks = {"model": api.model, "tokens": api.tokens, "answers": api.answers,
             "prompts": api.prompts}  # fmt: skip
    for mark, places in marks.items():
        for place in places:
            node = root
            for name in place:
                node = node.child(name)
            setattr(node, mark, True)
            if node.counts:
                _be_exact(root, place)
    root.settle()
    return root


def _be_exact(node: RuleNode, place: tuple[str, ...]) -> None:
    for name in place:
        node = node.child(name)
        node.exact = True


def _is_harmless(rules: list[BodyRule], text: str) -> bool:
    for rule in rules:
        named = any(matches(patterns, text, folded=True) for _, patterns in rule.features)
        if named or not matches(rule.harmless, text, folded=rule.members):
            return False
    return True


def matches(patterns: tuple[str, ...], text: str, *, folded: bool) -> bool:
    """Whether a value is one of these, or with `folded` a spelling of one."""
    if text in patterns:
        return True
    if folded:
        text = fold_name(text)
        return any(segment_matches(fold_name(pattern), text) for pattern in patterns)
    return any("*" in pattern and segment_matches(pattern, text) for pattern in patterns)


def fold_name(name: str) -> str:
    """A member's name as readers may take it that know `inputText` and `input_text` as one, or do
    not look at its case."""
    # Attack: names of half a megabyte, of which the cache would keep thousands (I9).
    if len(name) <= MAX_NAME:
        return _fold_short(name)
    return _fold(name[:MAX_FOLDED]) + name[MAX_FOLDED:]


def _fold(name: str) -> str:
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return name.replace("_", "").replace("-", "").lower()


_fold_short = functools.lru_cache(maxsize=4096)(_fold)


_LITERALS = frozenset({"null", "true", "false", "{}"})


def text_of(value: JsonValue) -> str:
    """A value as rules compare it."""
    match value:
        case str():
            # Attack: "false" as a text, which a server that asks only for truth takes for true.
            return f"'{value}'" if value in _LITERALS else value
        case None | bool():
            return "null" if value is None else str(value).lower()
        case dict():
            return "{}"
        case _:
            return str(value)
