"""Which regular expressions can take more than linear time: decided from the pattern alone.

`re` backtracks: it tries every way in which a text can be read. The number of ways is what counts.
A pattern is made into an automaton whose states are its single characters, and then (Weber and
Seidl, "On the degree of ambiguity of finite automata", 1991):

- two different ways from a state back to itself with one text: exponential;
- a loop from which another loop is reached with a text that both take: polynomial;
- neither: the number of ways to read any beginning of a text is bounded, so the search is linear.

A search that may begin anywhere is a loop over all characters in front of the pattern: that is how
`findall` becomes quadratic. It does no harm to a loop in which the pattern may end at any time,
since then each attempt that comes so far has a match, and the next one begins behind it.

What is approximated, each time so that more is reported and not less:

- a repeat of more than `EXACT` times counts as one without end;
- `^`, `$`, `\\b` and what stands in a lookbehind always hold;
- a lookahead is one more way, which leads nowhere;
- an atomic group is a plain one, and so is a possessive repeat, unless it is an unbounded one of a
  single character: that is left only before another character.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from dataclasses import dataclass, field
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXACT = 16
"""Repeats up to which each is a state of its own; of a fixed number, four times as many."""

MAX_WAYS = 20_000
"""Ways between two characters of a pattern. Real ones have a few."""

# Latin-1, what changes of case add to ASCII, and a character of some other kinds.
_TEXT = (*range(256), 0x130, 0x131, 0x17F, 0x3A9, 0x660, 0x2003, 0x2028, 0x212A, 0x4E00, 0x1F600)

_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_SINGLE = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)

Chars = frozenset[int]
_NONE: Chars = frozenset()


class Growth(enum.Enum):
    """How the time for a text grows with its length."""

    LINEAR = 0
    POLYNOMIAL = 1
    EXPONENTIAL = 2


@dataclass(eq=False)
class _State:
    """One character of the pattern, or (without `chars`) a junction."""

    chars: Chars | None = None
    ways: list[tuple[_State, Chars]] = field(default_factory=list)
    """Where it leads without a character, and what must not come next on this way."""
    holds: bool = True
    """Of a junction: False for an assertion, which may end the way."""


@dataclass(frozen=True)
class Loop:
    """A repeat of a pattern: a text that leads to it, and one that it takes."""

    before: str
    unit: str


def growth(pattern: re.Pattern[Any], *, anywhere: bool) -> Growth:
    """How long a pattern may take; `anywhere`: not only at the start of a text."""
    automaton = _Automaton(pattern, anywhere=anywhere)
    graph = _Graph(automaton)
    if graph.is_exponential():
        return Growth.EXPONENTIAL
    return Growth.POLYNOMIAL if graph.is_polynomial() else Growth.LINEAR


def loops(pattern: re.Pattern[Any]) -> list[Loop]:
    """All repeats of a pattern, to build long texts of."""
    found: list[Loop] = []
    _sample(parser.parse(pattern.pattern, pattern.flags), "", found, _alphabet(pattern))
    return found


# ── the automaton ─────────────────────────────────────────────────────────────────────────────────


class _Automaton:
    def __init__(self, pattern: re.Pattern[Any], *, anywhere: bool) -> None:
        self._alphabet = _alphabet(pattern)
        self.start, self.end = _State(), _State()
        self.restart: _State | None = None
        entry = self.start
        tree = parser.parse(pattern.pattern, pattern.flags)
        if anywhere and not _always_matches(tree, pattern.flags):
            self.restart, entry = _State(self._alphabet), _State()
            self.start.ways += [(self.restart, _NONE), (entry, _NONE)]
            self.restart.ways += [(self.restart, _NONE), (entry, _NONE)]
        self._sequence(tree, entry, self.end, pattern.flags)

    def _sequence(self, items: Iterable[Any], start: _State, end: _State, flags: int) -> None:
        for item in items:
            after = _State()
            self._item(item, start, after, flags)
            start = after
        start.ways.append((end, _NONE))

    def _item(self, item: Any, start: _State, end: _State, flags: int) -> None:  # noqa: ANN401
        op, arg = item
        if op in _SINGLE:
            one = _State(_chars(op, arg, flags, self._alphabet))
            start.ways.append((one, _NONE))
            one.ways.append((end, _NONE))
        elif op is sre.SUBPATTERN:
            _, added, removed, inner = arg
            self._sequence(inner, start, end, (flags | added) & ~removed)
        elif op is sre.ATOMIC_GROUP:
            self._sequence(arg, start, end, flags)
        elif op is sre.BRANCH:
            for inner in arg[1]:
                self._sequence(inner, start, end, flags)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            self._repeat(arg, start, end, flags, possessive=op is sre.POSSESSIVE_REPEAT)
        elif op in (sre.ASSERT, sre.ASSERT_NOT, sre.AT):
            holds = _State(holds=False)
            start.ways.append((holds, _NONE))
            holds.ways.append((end, _NONE))
            if op is not sre.AT and arg[0] > 0:
                self._sequence(arg[1], start, _State(), flags)
        else:
            raise NotImplementedError(f"{op} cannot be judged; write the pattern without it")

    def _repeat(
        self,
        arg: Any,  # noqa: ANN401
        start: _State,
        end: _State,
        flags: int,
        *,
        possessive: bool,
    ) -> None:
        least, most, inner = arg
        exact = most <= EXACT or least == most <= 4 * EXACT
        for number in range(most if exact else min(least, EXACT)):
            if number >= least:
                start.ways.append((end, _NONE))
            after = _State()
            self._sequence(inner, start, after, flags)
            start = after
        if exact:
            start.ways.append((end, _NONE))
            return
        leaves_before = _NONE
        if possessive and most is sre.MAXREPEAT and len(inner) == 1 and inner[0][0] in _SINGLE:
            first, argument = inner[0]
            leaves_before = _chars(first, argument, flags, self._alphabet)
        loop = _State()
        start.ways.append((loop, _NONE))
        self._sequence(inner, loop, loop, flags)
        loop.ways.append((end, leaves_before))


def _always_matches(tree: Any, flags: int) -> bool:  # noqa: ANN401
    """Whether `…|.++` takes all that the rest of the pattern does not: no attempt ever fails.

    With possessive repeats alone, an attempt looks at no more than it takes.
    """
    if len(tree) != 1 or tree[0][0] is not sre.BRANCH or not flags & re.DOTALL:
        return False
    *others, last = tree[0][1][1]
    takes_all = len(last) == 1 and last[0][0] is sre.POSSESSIVE_REPEAT
    if not takes_all or last[0][1][1] is not sre.MAXREPEAT or last[0][1][2][0][0] is not sre.ANY:
        return False
    greedy = (sre.MAX_REPEAT, sre.MIN_REPEAT)
    return not any(op in greedy and arg[1] is sre.MAXREPEAT for op, arg in _items(others))


def _items(node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """All parts of a tree, at any depth."""
    for item in node:
        if (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], sre._NamedIntConstant)
        ):
            yield item
            if item[0] is not sre.IN and isinstance(item[1], _NESTED):
                yield from _items([part for part in item[1] if isinstance(part, _NESTED)])
        elif isinstance(item, _NESTED):
            yield from _items(item)


_NESTED = (list, tuple, parser.SubPattern)


def _alphabet(pattern: re.Pattern[Any]) -> Chars:
    """The characters by which a pattern is judged."""
    if isinstance(pattern.pattern, bytes):
        return frozenset(range(256))
    named: set[int] = set()
    for op, arg in _items(parser.parse(pattern.pattern, pattern.flags)):
        if op in (sre.LITERAL, sre.NOT_LITERAL):
            named.add(arg)
        elif op is sre.IN:
            named.update(each for kind, each in arg if kind is sre.LITERAL)
            named.update(end for kind, ends in arg if kind is sre.RANGE for end in ends)
    return frozenset(_TEXT) | named


def _chars(op: Any, arg: Any, flags: int, alphabet: Chars) -> Chars:  # noqa: ANN401
    """Which characters one place of a pattern takes."""
    if op is sre.ANY:
        return alphabet if flags & re.DOTALL else alphabet - {ord("\n")}
    parts = arg if op is sre.IN else [(sre.LITERAL, arg)]
    taken: set[int] = set()
    for kind, each in parts:
        if kind is sre.LITERAL:
            taken.add(each)
        elif kind is sre.RANGE:
            taken.update(range(each[0], each[1] + 1))
        elif kind is sre.CATEGORY:
            ascii_only = re.ASCII if not flags & re.UNICODE else 0
            member = re.compile(_CATEGORIES[each], flags & re.ASCII | ascii_only)
            taken.update(c for c in alphabet if member.match(chr(c)))
    if flags & re.IGNORECASE:
        texts = {chr(c) for c in taken}
        taken |= {c for c in alphabet if {chr(c).lower(), chr(c).upper()} & texts}
        taken |= {c for c in alphabet if {t.lower() for t in texts} & {chr(c).lower()}}
    if op is sre.NOT_LITERAL or (op is sre.IN and parts[0][0] is sre.NEGATE):
        return alphabet - taken
    return alphabet & taken


# ── ambiguity ─────────────────────────────────────────────────────────────────────────────────────

Edge = tuple[_State, Chars]


class _Graph:
    """The automaton without its junctions."""

    def __init__(self, automaton: _Automaton) -> None:
        self._restart = automaton.restart
        self._accepting: set[_State] = set()
        self._edges: dict[_State, list[Edge]] = {}
        todo = [automaton.start]
        while todo:
            state = todo.pop()
            if state in self._edges:
                continue
            edges = self._edges[state] = list(self._ways(state, automaton.end))
            todo += [to for to, _ in edges]
        self._groups = _components(self._edges)
        self._cyclic = [
            group
            for group in set(map(frozenset, self._groups.values()))
            if any(to in group for state in group for to, _ in self._edges[state])
        ]

    def _ways(self, state: _State, end: _State) -> Iterator[Edge]:
        """Each way to a next character; two ways to one are two. No junction's exit is used twice
        on a way: `re` breaks off a repeat that takes nothing."""
        count = 0
        todo: list[tuple[_State, Chars, frozenset[tuple[_State, int]], bool]]
        todo = [(state, _NONE, frozenset(), True)]
        while todo:
            at, excluded, used, holds = todo.pop()
            count += 1
            if count > MAX_WAYS:
                raise NotImplementedError("there are too many ways between two characters")
            if at is end and holds:
                self._accepting.add(state)
            for number, (to, before) in enumerate(at.ways):
                if (at, number) in used:
                    continue
                barred = excluded | before
                if to.chars is None:
                    step = used | {(at, number)}
                    todo.append((to, barred, step, holds and to.holds))
                elif to.chars - barred:
                    yield to, to.chars - barred

    def is_exponential(self) -> bool:
        """Whether a state comes back to itself in two ways with one text."""
        for group in self._cyclic:
            within = {s: [(t, c) for t, c in self._edges[s] if t in group] for s in group}
            fresh: deque[tuple[_State, _State]] = deque()
            for edges in within.values():
                for number, (one, chars) in enumerate(edges):
                    for other, more in edges[:number]:
                        if chars & more:
                            if one is other:
                                return True
                            fresh.append((one, other))
            seen = set(fresh)
            while fresh:
                left, right = fresh.popleft()
                for one, chars in within[left]:
                    for other, more in within[right]:
                        if chars & more and (one, other) not in seen:
                            if one is other:
                                return True
                            seen.add((one, other))
                            fresh.append((one, other))
        return False

    def is_polynomial(self) -> bool:
        """Whether a loop reaches another loop with a text that both take."""
        return any(
            self._is_pumped(first, second, one, two)
            for first in self._cyclic
            for second in self._cyclic
            for one in first
            for two in second
            if one is not two and not (one is self._restart and two in self._accepting)
        )

    def _is_pumped(
        self, first: frozenset[_State], second: frozenset[_State], one: _State, two: _State
    ) -> bool:
        edges = self._edges
        todo = deque([(one, one, two)])
        seen = set(todo)
        while todo:
            a, b, c = todo.popleft()
            for x, chars in edges[a]:
                if x not in first:
                    continue
                for z, more in edges[c]:
                    both = chars & more
                    if z not in second or not both:
                        continue
                    for y, most in edges[b]:
                        if both & most and (x, y, z) not in seen:
                            if (x, y, z) == (one, two, two):
                                return True
                            seen.add((x, y, z))
                            todo.append((x, y, z))
        return False


def _components(edges: dict[_State, list[Edge]]) -> dict[_State, set[_State]]:
    """For each state, those that it reaches and that reach it."""
    reached: dict[_State, set[_State]] = {}
    for state in edges:
        found: set[_State] = set()
        todo = [state]
        while todo:
            for to, _ in edges[todo.pop()]:
                if to not in found:
                    found.add(to)
                    todo.append(to)
        reached[state] = found
    return {s: {t for t in reached[s] if s in reached[t]} | {s} for s in edges}


# ── long texts ────────────────────────────────────────────────────────────────────────────────────


def _sample(items: Iterable[Any], before: str, found: list[Loop], alphabet: Chars) -> str:
    """A text that a sequence takes; the loops that are met on the way are added to `found`."""
    text = ""
    for op, arg in items:
        if op in _SINGLE:
            text += _one(_chars(op, arg, 0, alphabet))
        elif op is sre.SUBPATTERN:
            text += _sample(arg[3], before + text, found, alphabet)
        elif op is sre.ATOMIC_GROUP:
            text += _sample(arg, before + text, found, alphabet)
        elif op is sre.BRANCH:
            texts = [_sample(inner, before + text, found, alphabet) for inner in arg[1]]
            text += texts[0]
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, inner = arg
            unit = _sample(inner, before + text, found, alphabet)
            if most > 1:
                found.append(Loop(before + text, unit))
            text += unit * least
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            _sample(arg[1], before + text, found, alphabet)
    return text


def _one(chars: Chars) -> str:
    """A character of these: rather a letter."""
    preferred = [ord(c) for c in "a0 \t-./\"'%"]
    return chr(next((c for c in preferred if c in chars), min(chars, default=0)))
