"""The repr of a value without the fields that must not reach a log or a traceback (I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct


def redacted_repr(*hidden: str) -> Callable[[Struct], str]:
    """A `__repr__` that leaves these fields out."""

    def shown(self: Struct) -> str:
        names = (name for name in self.__struct_fields__ if name not in hidden)
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({fields})"

    return shown
