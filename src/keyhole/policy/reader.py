"""Reads settings from a document: every key known, every value of its type, every fault
collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.policy.kinds import nearest
from keyhole.policy.schema import (
    BY_PATH,
    DESKTOP_KEYS,
    GATEWAY_KEYS,
    SERVICE,
    PolicyKey,
    read_service_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.document import Path, TomlDocument
    from keyhole.policy.fault import PolicyFault

_Node = dict[str, Any]

_USERS_TABLES = frozenset(key.path[0] for key in (*GATEWAY_KEYS, *DESKTOP_KEYS))


class PolicySetting(Struct, frozen=True):
    """A value that someone wrote, and its place. `indices` places the items of a list in the
    file."""

    value: Any
    document: TomlDocument
    path: Path
    indices: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """File and line, for people."""
        span = self.document.values.get(self.path) or self.document.keys[self.path]
        return f"{self.document.file}:{span.line}"


def read_settings(
    document: TomlDocument, keys: Iterable[PolicyKey]
) -> tuple[dict[Path, PolicySetting], list[PolicyFault]]:
    """The settings of a document by path, and all faults in them."""
    reader = _Reader(document)
    reader.table(document.tree, (), _tree_of(keys))
    return reader.settings, reader.faults


def _tree_of(keys: Iterable[PolicyKey]) -> _Node:
    root: _Node = {}
    for key in keys:
        node = root
        for part in key.path[:-1]:
            node = node.setdefault(part, {})
        node[key.path[-1]] = key
    return root


class _Reader:
    def __init__(self, document: TomlDocument) -> None:
        self.document = document
        self.settings: dict[Path, PolicySetting] = {}
        self.faults: list[PolicyFault] = []

    def table(self, table: dict[str, Any], prefix: Path, node: _Node) -> None:
        for name, value in table.items():
            path = (*prefix, name)
            below = node.get(name)
            if below is None and SERVICE in node:
                below = node[SERVICE]
                self._check_service_name(name, path)
            if below is None:
                self._unknown(name, prefix, node)
            elif isinstance(below, PolicyKey):
                self._value(below, path, value)
            elif isinstance(value, dict):
                self.table(value, path, below)
            else:
                self._fault(path, f"'{name}' is a table", f"[{_dotted(path)}]")

    def _value(self, key: PolicyKey, path: Path, value: object) -> None:
        kind = key.kind
        try:
            if kind.items is None:
                self.settings[path] = PolicySetting(kind.read(value), self.document, path)
                return
            items = list(kind.items(value))
        except Unparsable as error:
            self._fault(path, f"{_dotted(path)}: {error.message}", error.hint)
            return
        read: dict[Any, int] = {}
        for index, (where, item) in enumerate(items):
            try:
                result = kind.read(item)
            except Unparsable as error:
                self._fault((*path, *where), f"{_dotted(path)}: {error.message}", error.hint)
                continue
            if result in read:
                self._fault((*path, *where), f"{_dotted(path)}: named twice")
            read.setdefault(result, index)
        # Good items beside a bad one are kept, so that their own faults are found in this pass.
        self.settings[path] = PolicySetting(tuple(read), self.document, path, tuple(read.values()))

    def _check_service_name(self, name: str, path: Path) -> None:
        try:
            read_service_name(name)
        except Unparsable as error:
            self._fault(path, error.message, at_key=True)

    def _unknown(self, name: str, prefix: Path, node: _Node) -> None:
        where = f"in [{_dotted(prefix)}]" if prefix else "at the top of the policy"
        close = nearest(name, list(node))
        if not prefix and name in _USERS_TABLES:
            hint: str | None = "it speaks of all sandboxes, and belongs to your own config.toml"
        elif close:
            hint = f"did you mean '{close}'?"
        else:
            homes = [k.dotted for k in BY_PATH.values() if k.path[-1] == name]
            hint = f"it belongs to {' or '.join(homes)}" if homes else _known(node)
        self._fault((*prefix, name), f"unknown key '{name}' {where}", hint, at_key=True)

    def _fault(
        self, path: Path, message: str, hint: str | None = None, *, at_key: bool = False
    ) -> None:
        span = None if at_key else self.document.values.get(path)
        # A value that was meant as a reference may be the secret itself, and messages end up in CI
        # logs.
        hides = span is not None and path[-1] == "secret"
        where = span or self.document.keys.get(path)
        self.faults.append(self.document.fault(where, message, hint, hides=hides))


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _known(node: _Node) -> str:
    return f"known here: {', '.join(node)}"
