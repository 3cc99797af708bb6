"""Checks names in src/keyhole against docs/GLOSSARY.md, and that no class name is there twice.

Called by `make lint`. A class name that two modules define has two meanings; a reader meets both.
The banned words are the last list of docs/GLOSSARY.md, each in backticks before a colon. They are
looked for in identifiers alone (modules, classes, functions, variables, attributes), as whole
words: `tenant` is found in `_tenant` and in `TenantStore`, not in `lieutenant`. Each class, module
and package that the table's last column names must exist.

Exits with 1 and a line for each name.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

HEADING = "## Words that are not used"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def banned_words(glossary: str) -> dict[str, str]:
    """The words of the list at the end of the glossary, and what to use instead of each."""
    _, found, section = glossary.partition(HEADING)
    if not found:
        message = f"docs/GLOSSARY.md has no section {HEADING!r}"
        raise ValueError(message)
    words: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("- "):
            named, _, instead = line[2:].partition(":")
            words |= dict.fromkeys(re.findall(r"`([a-z_]+)`", named), instead.strip())
    return words


def words_of(identifier: str) -> list[str]:
    """An identifier's words in lower case."""
    return [word.lower() for word in _WORD.findall(identifier)]


def classes(root: Path) -> dict[str, list[str]]:
    """Every public class name, and where it is defined."""
    places = defaultdict(list)
    for path in sorted((root / "src/keyhole").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return dict(places)


def duplicates(places: dict[str, list[str]]) -> Iterator[str]:
    """A line for each public class name that is defined more than once."""
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"class {name} is defined more than once: {', '.join(where)}"


def riddles(root: Path, banned: dict[str, str]) -> Iterator[str]:
    """A line for each identifier that has a banned word in it, where it stands first in a file."""
    package = root / "src/keyhole"
    for path in sorted(package.rglob("*.py")):
        seen = dict.fromkeys(path.relative_to(package).with_suffix("").parts, 1)
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME:
                    seen.setdefault(token.string, token.start[0])
        for identifier, line in seen.items():
            for word in sorted(banned.keys() & words_of(identifier)):
                place = f"{path.relative_to(root)}:{line}"
                yield f"{place}: {identifier}: not `{word}` but: {banned[word]}"


def unknown(root: Path, glossary: str, known: dict[str, list[str]]) -> Iterator[str]:
    """A line for each class or file that the glossary's table names and that is not there."""
    for line in glossary.partition(HEADING)[0].splitlines():
        if not line.startswith("| **"):
            continue
        term, carried = line.split("|")[1].strip(), line.split("|")[-2]
        for name in re.findall(r"`([^`]+)`", carried):
            there = (root / "src/keyhole" / name).exists() if "/" in name else name in known
            if not there:
                yield f"docs/GLOSSARY.md: {term} names `{name}`, which does not exist"


def problems(root: Path) -> Iterator[str]:
    """A line for each name that does not fit."""
    glossary = (root / "docs/GLOSSARY.md").read_text("utf-8")
    known = classes(root)
    yield from duplicates(known)
    yield from riddles(root, banned_words(glossary))
    yield from unknown(root, glossary, known)


def main() -> int:
    """Print what is found; 0 if nothing is."""
    found = list(problems(ROOT))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
