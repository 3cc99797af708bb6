"""Compares the imports inside functions of src/keyhole with the table of start-up tricks.

Called by `make lint`. An import belongs at a module's top. One that stands inside a function to
make a command start sooner is a trick, so `POSTPONED` in src/keyhole/system/startup.py names its
module with the milliseconds that it gains: 3 or more, or a reason that is not time.

Exits with 1 and a line for each import that is missing in the table, or is there for nothing. With
`--measure`, it prints what each import takes now in an interpreter that has the importing module.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.system.startup import LEAST_MS, POSTPONED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
TURNS = 7

_PROGRAM = """\
import importlib, sys, time
importlib.import_module(sys.argv[1])
begun = time.process_time()
importlib.import_module(sys.argv[2])
print((time.process_time() - begun) * 1000)
"""


def postponed_imports(root: Path) -> dict[str, set[str]]:
    """Modules that are imported inside functions, and by which modules."""
    found: dict[str, set[str]] = {}
    source = root / "src"
    for path in sorted((source / "keyhole").rglob("*.py")):
        importer = ".".join(path.relative_to(source).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for module in _imported(node, source):
                    found.setdefault(module, set()).add(importer)
    return found


def _imported(function: ast.AST, source: Path) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                for each in names:
                    inner = f"{module}.{each.name}"
                    is_module = (source / inner.replace(".", "/")).with_suffix(".py").exists()
                    yield inner if is_module else module


def problems(found: Mapping[str, set[str]], table: Mapping[str, tuple[float, str]]) -> list[str]:
    """What is in one of the two and not in the other, and what gains too little."""
    lines = []
    for module, importers in sorted(found.items()):
        if module not in table:
            lines.append(
                f"{', '.join(sorted(importers))}: {module} is imported inside a function; import it"
                f" at the top, or add it to POSTPONED if that gains {LEAST_MS} ms"
            )
    for module, (gain, why) in table.items():
        if module not in found:
            lines.append(f"POSTPONED: no function imports {module}")
        if gain < LEAST_MS and not why.startswith("not for time: "):
            lines.append(f"POSTPONED: {module} gains {gain:g} ms, under {LEAST_MS}")
    return lines


def _measure(importer: str, module: str) -> float:
    command = [sys.executable, "-I", "-c", _PROGRAM, importer, module]
    taken = (
        subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own program
        for _ in range(TURNS)
    )
    return min(map(float, taken))


def main() -> int:
    """Check, or measure."""
    found = postponed_imports(ROOT)
    if sys.argv[1:] == ["--measure"]:
        for module, importers in sorted(found.items()):
            took = {each: _measure(each, module) for each in sorted(importers)}
            words = ", ".join(f"{importer} {ms:.1f}" for importer, ms in took.items())
            print(f"{POSTPONED.get(module, (0, ''))[0]:5g} ms in the table: {module}: {words}")
        return 0
    lines = problems(found, POSTPONED)
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
