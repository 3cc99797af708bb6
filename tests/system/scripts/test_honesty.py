"""No test compares the float of a clock for equality, which holds or not by the machine's uptime.

The sum and the difference of two floats lose different bits as a clock grows, so `(t + 3600) - t`
is 3600 on one machine and not on another.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[2]

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "now"}
TIMES = {"begins", "ends", "renewal", "expires_in", "expires_at", "deadline", "st_mtime"}
"""Attributes of ours and of the system that hold seconds as floats."""


def clock_comparisons(tree: ast.AST) -> Iterator[int]:
    """Lines on which something computed from a clock is compared with == or !=."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            continue
        sides = [node.left, *node.comparators]
        if any(map(_is_approximate, sides)):
            continue
        if any(map(_is_computed_from_a_clock, sides)):
            yield node.lineno


def _is_approximate(side: ast.expr) -> bool:
    return isinstance(side, ast.Call) and ast.unparse(side.func).endswith("approx")


def _is_computed_from_a_clock(side: ast.expr) -> bool:
    """A clock that is read, or a sum or difference with a time in it."""
    for node in ast.walk(side):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOCKS:
            return not _is_rounded(side)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            if any(each.attr in TIMES for each in inner):
                return not _is_rounded(side)
    return False


def _is_rounded(side: ast.expr) -> bool:
    return isinstance(side, ast.Call) and ast.unparse(side.func) in ("int", "round")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("life.ends - life.begins == 3600.0", True),
        ("time.monotonic() == before", True),
        ("live.now() != 3", True),
        ("life.ends - life.begins == pytest.approx(3600.0)", False),
        ("before <= live.now() <= after", False),
        ("int(life.ends - life.begins) == 9", False),
        ("a - b == 3", False),
    ],
)
def test_a_comparison_of_clocks_is_recognised(text: str, found: bool) -> None:
    """Control: the walk below finds what it is to find."""
    assert bool(list(clock_comparisons(ast.parse(text)))) is found


def test_no_test_compares_a_clock_for_equality() -> None:
    found = [
        f"{file.relative_to(TESTS)}:{line}"
        for file in sorted(TESTS.rglob("*.py"))
        for line in clock_comparisons(ast.parse(file.read_text("utf-8")))
    ]
    assert found == []
