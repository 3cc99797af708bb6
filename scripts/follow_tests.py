"""Follows tests that moved: writes in tests/PROMISES.md the file in which each test is now.

Called by `make docs`. A test that is gone, or of which there are several, is named and left for a
person; tests/system/docs holds that each test that is named exists.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "PROMISES.md"

_NAMED = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)")


def places(root: Path) -> dict[str, list[str]]:
    """Every test by its name, with the files that have one of that name."""
    found: dict[str, list[str]] = {}
    for file in sorted(root.glob("tests/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(file.relative_to(root).as_posix())
    return found


def followed(page: str, where: dict[str, list[str]]) -> tuple[str, list[str]]:
    """The page with each test where it is now, and those that were not found."""
    lost: list[str] = []

    def follow(named: re.Match[str]) -> str:
        files = where.get(named["name"], [])
        if named["file"] in files:
            return named[0]
        if len(files) != 1:
            lost.append(named[0])
            return named[0]
        return f"{files[0]}::{named['name']}"

    return _NAMED.sub(follow, page), lost


def main() -> int:
    """Write the page; exit 1 when a test was not found."""
    text, lost = followed(PAGE.read_text("utf-8"), places(ROOT))
    PAGE.write_text(text, "utf-8")
    for test in lost:
        print(f"tests/PROMISES.md: {test} is not there, or in several files", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
