"""I9, I12: no regular expression of the product takes more than linear time, whatever it is fed."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.control import operation_table, shapes
from keyhole.http.request import request_line_pattern
from keyhole.inject.escaped_secret import escape_pattern
from keyhole.inject.placeholder import TokenShape
from keyhole.inject.token_usage import UsageFormat, _pattern
from tests.rigs.bounded import growth
from tests.rigs.bounded.ambiguity import Growth, loops
from tests.rigs.bounded.ambiguity import growth as growth_of
from tests.rigs.bounded.source import Found, Loose, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN = ("keyhole.host.", "keyhole.vault.", "keyhole.app.", "keyhole.cli.", "keyhole.certs.")
"""Rooms that read what the person's own machine says, before a run or beside it."""

PROJECT = ("keyhole.sandbox.files.",)
"""Files of the project, in pieces of bounded size, before a run begins and after it has ended."""

AT_THE_START = {
    "keyhole.http.request.request_line_pattern": "of a RequestReader, which calls fullmatch()",
    "keyhole.inject.catalogue.knows": "a shape of the catalogue's, used by fullmatch()",
    "keyhole.inject.service_account._EMAIL": "given to _text(), which calls fullmatch()",
    "keyhole.inject.service_account._WORD": "the same",
    "keyhole.model.repository._AZURE": "the `segment` of a forge's rules, used by fullmatch()",
    "keyhole.policy.document._HEADER_END": "given to _skip(), which calls match()",
    "keyhole.policy.document._BLANK": "the same",
    "keyhole.policy.document._BASIC": "the same",
    "keyhole.policy.document._LONG_BASIC": "the same",
    "keyhole.policy.document._LONG_LITERAL": "the same",
}
"""Patterns that are passed on, and matched at the start of a text all the same."""


def _control_shapes() -> Iterator[re.Pattern[Any]]:
    for module in (shapes, operation_table):
        for value in vars(module).values():
            if isinstance(value, shapes.TextShape):
                yield re.compile(value.pattern)


MADE: dict[Loose, Callable[[], list[re.Pattern[Any]]]] = {
    Loose("keyhole.control.shapes", "read"): lambda: list(_control_shapes()),
    Loose("keyhole.http.request", "request_line_pattern"): lambda: [
        request_line_pattern("http"),
        request_line_pattern("https"),
    ],
    Loose("keyhole.inject.catalogue", "knows"): lambda: [
        re.compile(r"[a-z0-9-]+\.vendor\.example")
    ],
    Loose("keyhole.inject.placeholder", "pattern"): lambda: [
        TokenShape.parse("sk-{alnum:48}").pattern()
    ],
    Loose("keyhole.inject.escaped_secret", "escape_pattern"): lambda: [
        escape_pattern("sk-ant-api03-Yb3"),
        escape_pattern("s", r"\Z"),
    ],
    Loose("keyhole.inject.token_usage", "_pattern"): lambda: [_pattern(tuple(UsageFormat))],
    Loose("keyhole.judge.judge_protocol", "read_question"): lambda: [re.compile("[0-9a-f]{64}")],
    Loose("keyhole.wire.upload_pack", "fetch_request"): lambda: [re.compile("[0-9a-f]{64}")],
}
"""Patterns that are made while the program runs, and how to make them all, or one like them."""


def _is_ours(name: str) -> bool:
    return name.startswith(OWN + PROJECT)


@cache
def hostile() -> dict[str, Found]:
    """The patterns that may see bytes of a sandbox or an origin, by a name for each."""
    found, loose = collect()
    found = [each for each in found if not _is_ours(each.place)]
    for call in loose:
        if not _is_ours(call.module + "."):
            made = MADE[call]()
            assert made, call
            found += [Found(f"{call.module}.{call.function}", p, anywhere=True) for p in made]
    named: dict[str, Found] = {}
    for each in found:
        names = (each.place, *(f"{each.place}#{number}" for number in range(2, 99)))
        named[next(name for name in names if name not in named)] = each
    return named


def _is_searched(found: Found) -> bool:
    return found.anywhere and found.place not in AT_THE_START


def test_every_pattern_that_is_made_while_the_program_runs_is_listed() -> None:
    _, loose = collect()
    assert {each for each in loose if not _is_ours(each.module + ".")} == set(MADE)


def test_every_exception_is_needed() -> None:
    searched = {found.place for found in hostile().values() if found.anywhere}
    assert set(AT_THE_START) <= searched
    assert len(hostile()) > 100, "the control: they are found at all"


@pytest.mark.parametrize("name", hostile())
def test_a_pattern_is_linear_by_its_form(name: str) -> None:
    """The proof: no text can be read in more than a bounded number of ways."""
    found = hostile()[name]
    assert growth_of(found.pattern, anywhere=_is_searched(found)) is Growth.LINEAR


@pytest.mark.parametrize("name", hostile())
def test_a_pattern_is_linear_when_it_is_fed_its_own_repeats(name: str) -> None:
    """The experiment, beside the proof."""
    found = hostile()[name]
    _pump(found.pattern, anywhere=_is_searched(found))


# ── the controls ──────────────────────────────────────────────────────────────────────────────────

_OLD_WORD = rb"[a-z]{0,15}[0-9]{0,2}[a-z]{0,3}"
KNOWN: dict[str, tuple[bytes, bool, Growth]] = {
    "words of a sub-protocol": (
        rb"(?:%b)(?:[-._+](?:%b))*" % (_OLD_WORD, _OLD_WORD), False, Growth.EXPONENTIAL,
    ),
    "a charset": (
        rb".*charset\s*=\s*[\"']?\s*(?:utf-?(?:16|32|7)|ucs)", False, Growth.POLYNOMIAL,
    ),
    "an entry of a tree": (
        rb"(?s:(40000|100644) ([^\x00/]+)\x00(.{20}))", True, Growth.POLYNOMIAL,
    ),
    "nested": (rb"(?:a+)+", False, Growth.EXPONENTIAL),
    "nested and empty": (rb"(?:a*)*", False, Growth.EXPONENTIAL),
    "two branches": (rb"(?:ab|a|b)*c", False, Growth.EXPONENTIAL),
    "adjacent": (rb"a*b?a*c", False, Growth.POLYNOMIAL),
    "in capitals": (rb"(?i:a)*A*b", False, Growth.POLYNOMIAL),
    "space at the end": (rb"\s+$", True, Growth.POLYNOMIAL),
    "a lookahead": (rb"(?=.*0)1", True, Growth.POLYNOMIAL),
    "an optional end": (rb"a(?:[ab]*c)?", True, Growth.POLYNOMIAL),
    "all but the end of a line": (rb"x[^\0]++\0|.++", True, Growth.POLYNOMIAL),
}  # fmt: skip
"""Those that were in the product, and others of their kinds."""

FINE: dict[str, tuple[bytes, bool]] = {
    "words": (rb"[a-z]+(?:,[a-z]+)*", False),
    "possessive": (rb"(?:[a-z]++|%[0-9]{2})*+", False),
    "a run": (rb"[^ -~]+", True),
    "all that is no entry": (rb"(40000|100644) ([^\x00/]++)\x00(.{20})|.++", True),
    "lookaheads at the start": (rb"(?=.*[0-9])(?=.*[A-Za-z])[!-~]{16,}", False),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_slow_pattern_is_known_by_its_form(name: str) -> None:
    text, anywhere, slow = KNOWN[name]
    assert growth_of(re.compile(text), anywhere=anywhere) is slow


@pytest.mark.parametrize("name", FINE)
def test_a_fast_pattern_is_known_by_its_form(name: str) -> None:
    text, anywhere = FINE[name]
    pattern = re.compile(text, re.DOTALL)
    assert growth_of(pattern, anywhere=anywhere) is Growth.LINEAR
    _pump(pattern, anywhere=anywhere)


@pytest.mark.parametrize("name", ["words of a sub-protocol", "a charset", "an entry of a tree"])
def test_what_was_in_the_product_is_slow_when_it_is_fed_its_own_repeats(name: str) -> None:
    text, anywhere, _ = KNOWN[name]
    with pytest.raises(growth.Slow):
        _pump(re.compile(text), anywhere=anywhere)


def test_a_back_reference_cannot_be_judged() -> None:
    with pytest.raises(NotImplementedError):
        growth_of(re.compile(r"(a)\1"), anywhere=False)


# ── long texts ────────────────────────────────────────────────────────────────────────────────────

SIZE = 2048
MOST = 0.5
"""Seconds for 8 KiB of text, of which a linear search takes less than a thousandth."""


def _pump(pattern: re.Pattern[Any], *, anywhere: bool) -> None:
    """Search in texts made of a pattern's repeats, alone and in pairs, and of what does not fit."""
    found = list(dict.fromkeys(loops(pattern)))[:12]
    units = list(dict.fromkeys(loop.unit for loop in found if loop.unit))
    shapes = {(loop.before, unit, "") for loop in found for unit in units}
    shapes |= {(loop.before, one, two) for loop in found[:4] for one, two in product(units, units)}
    shapes |= {("", loop.before + loop.unit, "") for loop in found}
    search = pattern.search if anywhere else pattern.fullmatch
    for before, one, two in sorted(shapes):
        if not one:
            continue
        for tail in ("\0", "\n!", " =!"):

            def make(
                size: int, parts: tuple[str, str, str, str] = (before, one, two, tail)
            ) -> growth.Work:
                start, unit, other, end = parts
                half = size // (2 if other else 1)
                text = start + unit * (half // len(unit)) + other * (half // max(1, len(other)))
                whole: Any = text + end
                if isinstance(pattern.pattern, bytes):
                    whole = whole.encode("latin-1", "replace")
                return lambda: search(whole)

            growth.check(make, SIZE, most=MOST)
