"""Every function that is handed bytes of someone else, found in the source by its parameters."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.rigs.bounded.source import modules, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("http", "wire", "inject", "policy", "model", "gateway", "system")
"""Those that see bytes of a sandbox or an origin."""

_RAW = frozenset({"bytes", "bytearray", "memoryview", "Bytes"})
_TEXT_READERS = ("parse", "read", "find", "fold", "check", "visible", "decide")


def entries() -> Iterator[str]:
    """Public functions and methods of these rooms that take bytes, and those that by their name
    read a text."""
    for module in modules():
        room = module.__name__.split(".")[1]
        if room not in ROOMS:
            continue
        name = module.__name__.removeprefix("keyhole.")
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for each in node.body:
                    if _takes_bytes(each):
                        yield f"{name}.{node.name}.{each.name}"  # type: ignore[attr-defined]
            elif _takes_bytes(node):
                yield f"{name}.{node.name}"  # type: ignore[attr-defined]


def _takes_bytes(node: ast.stmt) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
        return False
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    kinds = {
        name.id
        for argument in given
        if argument.annotation is not None
        for name in ast.walk(argument.annotation)
        if isinstance(name, ast.Name)
    }
    return bool(kinds & _RAW) or ("str" in kinds and node.name.startswith(_TEXT_READERS))
