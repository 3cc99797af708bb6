"""Values that cross a room are frozen and have slots (STYLE 13)."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest

import keyhole.inject
import keyhole.model

MODULES = [
    name
    for room in (keyhole.model, keyhole.inject)
    for _, name, _ in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
]


def values_of(name: str) -> list[type[msgspec.Struct]]:
    module = importlib.import_module(name)
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
        if value.__module__ == name
    ]


@pytest.mark.parametrize("value", [value for name in MODULES for value in values_of(name)])
def test_a_value_is_frozen_and_has_slots(value: type[msgspec.Struct]) -> None:
    assert value.__struct_config__.frozen
    assert not value.__dictoffset__


def test_both_rooms_have_values() -> None:
    """The control: the search above finds them."""
    names = {value.__name__ for name in MODULES for value in values_of(name)}
    assert names >= {"Host", "ServiceTemplate"}
