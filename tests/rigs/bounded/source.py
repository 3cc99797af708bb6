"""Every regular expression of the product, found in its source so that none can be left out.

A pattern is compiled where a module is loaded and has a name there, or its text stands in the call
that uses it. One that is made while the program runs is listed by the test, with examples.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any

import keyhole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_AT_START = frozenset({"match", "fullmatch"})
_ANYWHERE = frozenset({"search", "findall", "finditer", "sub", "subn", "split", "scanner"})
_NO_SEARCH = frozenset({"pattern", "flags", "groups", "groupindex"})
_INLINE = _AT_START | (_ANYWHERE - {"scanner"})
_HARMLESS = frozenset({"escape", "compile", "Pattern", "Match", "error"})
_CONSTANTS = frozenset({"I", "M", "S", "IGNORECASE", "ASCII", "DOTALL", "MULTILINE", "VERBOSE"})

OTHER_ENGINES = frozenset({"fnmatch", "regex", "re2", "sre_compile", "sre_parse", "glob"})
"""Modules that make patterns of texts in another way."""


@dataclass(frozen=True)
class Found:
    """A pattern and where it is from."""

    place: str
    """Its module and name, or the line of the call."""
    pattern: re.Pattern[Any]
    anywhere: bool
    """Whether a match is searched for, and not only at the start of a text."""


@dataclass(frozen=True)
class Loose:
    """A call of `re` whose pattern is not known before the program runs."""

    module: str
    function: str


class Escaped(Exception):
    """A use of patterns that cannot be followed."""


@cache
def modules() -> tuple[ModuleType, ...]:
    """All modules of the product that can be loaded here."""
    names = [info.name for info in pkgutil.walk_packages(keyhole.__path__, "keyhole.")]
    return tuple(importlib.import_module(name) for name in names if "__main__" not in name)


@cache
def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    """What a module's name stands for: a pattern, some of them, or a method of one."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, BuiltinMethodType) and isinstance(value.__self__, re.Pattern):
        yield value.__self__
    elif isinstance(value, dict):
        for each in value.values():
            yield from patterns_in(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from patterns_in(each)


def collect() -> tuple[list[Found], list[Loose]]:
    """All patterns, and the calls whose pattern the source does not tell."""
    found: list[Found] = []
    loose: list[Loose] = []
    uses = _uses()
    for module in modules():
        engines = OTHER_ENGINES.intersection(_imports(tree_of(module)))
        loose += [Loose(module.__name__, f"import {name}") for name in sorted(engines)]
        for scope, call in _calls(module):
            place = f"{module.__name__}:{call.lineno}"
            method = call.func.attr  # type: ignore[attr-defined]
            if method in _HARMLESS - {"compile"}:
                continue
            if method in _INLINE and isinstance(call.args[0], ast.Constant):
                pattern = re.compile(call.args[0].value, _flags(call))  # type: ignore[type-var]
                found.append(Found(place, pattern, method in _ANYWHERE))
            elif method == "compile" and scope.name:
                owner: Any = module
                for part in scope.name.split("."):
                    owner = vars(owner)[part]
                made = list(patterns_in(owner))
                if not made:
                    raise Escaped(f"{place}: {scope.name} holds no pattern that can be found")
                last = scope.name.rpartition(".")[2]
                anywhere = not uses.get((module.__name__, last), _ANYWHERE) <= _AT_START
                if isinstance(owner, BuiltinMethodType):
                    anywhere = owner.__name__ not in _AT_START
                found += [Found(f"{module.__name__}.{scope.name}", p, anywhere) for p in made]
            elif method in _INLINE | {"compile"}:
                loose.append(Loose(module.__name__, scope.function or scope.name))
            else:
                raise Escaped(f"{place}: re.{method} is not known here")
    return list(dict.fromkeys(found)), list(dict.fromkeys(loose))


def _flags(call: ast.Call) -> int:
    given = [*call.args[2:], *(k.value for k in call.keywords if k.arg == "flags")]
    names = (node.attr for arg in given for node in ast.walk(arg) if _is_re(node))  # type: ignore[attr-defined]
    flags = 0
    for name in names:
        flags |= getattr(re, name)
    return flags


@dataclass(frozen=True)
class _Scope:
    """Where a call stands: in the value of a name that the module (or a class in it) has, or in a
    function."""

    name: str = ""
    function: str = ""


def _calls(module: ModuleType) -> Iterator[tuple[_Scope, ast.Call]]:
    """All calls of `re.…`. Raises Escaped for what gets at `re` in another way."""
    tree = tree_of(module)
    for name in _imports(tree):
        if name in ("re", "re as"):
            raise Escaped(f"{module.__name__}: write `import re`")
    known: set[int] = set()
    for scope, call in _within(tree, _Scope(), ""):
        known.add(id(call.func))
        yield scope, call
    for node in ast.walk(tree):
        if _is_re(node) and id(node) not in known:
            name = node.attr  # type: ignore[attr-defined]
            if name not in _HARMLESS - {"compile"} | _CONSTANTS:
                raise Escaped(f"{module.__name__}:{node.lineno}: re.{name} is passed on")  # type: ignore[attr-defined]


def _imports(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported in any way but a plain `import re`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (
                f"{a.name} as" if a.asname else a.name
                for a in node.names
                if a.name != "re" or a.asname
            )


def _is_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "re"
    )


def _within(node: ast.AST, scope: _Scope, prefix: str) -> Iterator[tuple[_Scope, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner, below = scope, prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inner = _Scope(function=getattr(child, "name", "lambda"))
        elif isinstance(child, ast.ClassDef) and not scope.function:
            below = f"{prefix}{child.name}."
        elif isinstance(child, (ast.Assign, ast.AnnAssign)) and not scope.function:
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            inner = _Scope(name=prefix + names[0]) if names else scope
        if isinstance(child, ast.Call) and _is_re(child.func):
            yield inner, child
        yield from _within(child, inner, below)


@cache
def _uses() -> dict[tuple[str, str], frozenset[str]]:
    """For each name of a module, the methods that are called on it (or on a part of it).

    A name that is passed on may be searched with in any way.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for module in modules():
        tree = tree_of(module)
        origin: dict[str, tuple[str, str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                origin |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        followed: set[int] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            base = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(base, ast.Name) and node.attr in _AT_START | _ANYWHERE | _NO_SEARCH:
                followed.add(id(base))
                name = origin.get(base.id, (module.__name__, base.id))
                found.setdefault(name, set()).update({node.attr} - _NO_SEARCH)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
                continue
            if id(node) not in followed:
                name = origin.get(node.id, (module.__name__, node.id))
                found.setdefault(name, set()).update(_ANYWHERE)
    return {name: frozenset(methods) for name, methods in found.items()}
