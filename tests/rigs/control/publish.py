"""Writes what docs/ has of the control socket's table: `python -m tests.rigs.control.publish`."""

from __future__ import annotations

from pathlib import Path

from keyhole.control import openapi

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "control-api.md"
DOCUMENT = ROOT / "docs" / "control-api.openapi.json"

PARTS = {
    "operations": openapi.operation_table,
    "problems": openapi.problem_table,
    "bounds": openapi.bound_table,
}
"""What stands between the page's markers."""


def renewed(page: str) -> str:
    """The page with every generated part made anew."""
    for part, make in PARTS.items():
        begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
        head, _, rest = page.partition(begin)
        tail = rest.partition(end)[2]
        page = f"{head}{begin}\n{make()}\n{end}{tail}"
    return page


def main() -> None:
    DOCUMENT.write_text(openapi.openapi_text(), "utf-8")
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
