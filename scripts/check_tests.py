"""Checks the plan of tests/: `unit` mirrors src/keyhole, `system` has areas, `cluster` what needs a
Kubernetes, `rigs` has no tests.

Called by `make lint`. A unit test stands in the folder of its module's package and is named after
the module: `unit/policy/test_forge.py`, or `unit/policy/test_forge_api.py` for one aspect of it. A
test that needs a namespace, an account, an engine or the installed command is a system test: the
rigs that make these are closed to unit tests.

Exits with 1 and a line for each file that stands elsewhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

STOREYS = {"unit", "system", "cluster", "rigs"}

SYSTEM_RIGS = {
    "cli", "clients", "compose", "containers", "daemon", "gateway.inside", "gateway.namespace",
    "git.sandboxed", "git.server", "sandbox.people", "sandbox.projects", "sandbox.screens", "web",
}  # fmt: skip
"""Rigs that make namespaces, accounts, engines or servers, or run the installed command."""

_IMPORT = re.compile(r"^\s*from tests\.(system|rigs)\.([\w.]+) import (\w+)", re.MULTILINE)


def misplaced(root: Path) -> Iterator[str]:
    """A line for each file of tests/ that stands where the plan has no place for it."""
    tests = root / "tests"
    for path in sorted(tests.rglob("*.py")):
        name = str(path.relative_to(root))
        parts = path.relative_to(tests).parts
        if parts == ("conftest.py",):
            continue
        if parts[0] not in STOREYS:
            yield f"{name}: tests/ has {', '.join(sorted(STOREYS))} and nothing else"
        elif parts[0] == "rigs":
            if path.name.startswith("test_"):
                yield f"{name}: a rig has no tests in it"
        elif path.name != "conftest.py" and not path.name.startswith("test_"):
            yield f"{name}: what tests share is in tests/rigs"
        elif len(parts) == 2 and parts[0] != "cluster":
            kind = "room" if parts[0] == "unit" else "area"
            yield f"{name}: a test stands in the folder of its {kind}"
        elif parts[0] == "unit":
            yield from _unlike_source(root, path, name)


def _unlike_source(root: Path, path: Path, name: str) -> Iterator[str]:
    package = root / "src/keyhole" / path.parent.relative_to(root / "tests/unit")
    if not (package / "__init__.py").is_file():
        yield f"{name}: there is no package {package.relative_to(root)}"
        return
    words = path.stem.removeprefix("test_").split("_")
    modules = ("_".join(words[:count]) for count in range(1, len(words) + 1))
    if path.name != "conftest.py" and not any((package / f"{m}.py").is_file() for m in modules):
        yield f"{name}: {package.relative_to(root)} has no module {words[0]}.py"
    for storey, module, first in _IMPORT.findall(path.read_text("utf-8")):
        if storey == "system" or SYSTEM_RIGS & _prefixes(f"{module}.{first}"):
            yield f"{name}: uses tests.{storey}.{module}, so it is a system test"


def _prefixes(module: str) -> set[str]:
    words = module.split(".")
    return {".".join(words[:count]) for count in range(1, len(words) + 1)}


def main() -> int:
    """Print what is misplaced; 0 if nothing is."""
    found = list(misplaced(ROOT))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
