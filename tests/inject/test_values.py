"""Values that cross a room are frozen and have slots (STYLE 13)."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

import keyhole.inject

MODULES = [name for _, name, _ in pkgutil.iter_modules(keyhole.inject.__path__, "keyhole.inject.")]


def values_of(name: str) -> list[type]:
    module = importlib.import_module(name)
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name
    ]


@pytest.mark.parametrize("value", [value for name in MODULES for value in values_of(name)])
def test_a_value_is_frozen_and_has_slots(value: type) -> None:
    made: object = object.__new__(value)
    assert not hasattr(made, "__dict__")
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)


def test_this_room_has_values() -> None:
    """The control: the search above finds them."""
    assert "Template" in [value.__name__ for name in MODULES for value in values_of(name)]
