"""Values: the part of `dataclasses` that this project uses, made in a tenth of the time.

`dataclasses` compiles up to eight functions for each class, 0.9 ms on Python 3.11; over the hundred
classes that one run imports, that was a fifth of its start. Here one is compiled, `__init__`, when
the first instance is made; the others are shared. Every room imports it in place of `dataclasses`.

For a type checker this is `dataclasses.dataclass` itself, and so it is for its functions at run
time: `replace`, `fields`, `asdict` and `is_dataclass` take these classes for what they look like.
"""

from __future__ import annotations

from operator import attrgetter, ge, gt, le, lt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = "__value_names__"
_FIELDS = "__value_fields__"
_REQUIRED = object()


class _Field:
    """How one field of a class is made, shown and compared."""

    __slots__ = ("compared", "default", "factory", "shown")

    def __init__(
        self, default: object, factory: Callable[[], object] | None, *, shown: bool, compared: bool
    ) -> None:
        self.default = default
        self.factory = factory
        self.shown = shown
        self.compared = compared


def _field(
    *,
    default: object = _REQUIRED,
    default_factory: Callable[[], object] | None = None,
    repr: bool = True,  # noqa: A002 - as dataclasses.field spells it
    compare: bool = True,
) -> _Field:
    return _Field(default, default_factory, shown=repr, compared=compare)


def _dataclass(
    *,
    slots: bool,
    frozen: bool = False,
    order: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as dataclasses.dataclass spells it
) -> Callable[[type], type]:
    """The decorator. `slots` has to be said, as a reader expects it; there is nothing else."""
    if not slots:
        raise TypeError("a value has slots")
    return lambda cls: _made(cls, frozen=frozen, order=order, eq=eq, shown=repr)


def _made(cls: type, *, frozen: bool, order: bool, eq: bool, shown: bool) -> type:
    own = {name: _as_field(cls.__dict__, name) for name in cls.__annotations__}
    inherited: dict[str, _Field] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= base.__dict__.get(_FIELDS, {})
    every = inherited | own
    given = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in own and name not in ("__dict__", "__weakref__")
    }
    made = {
        _FIELDS: every,
        _NAMES: tuple(every),
        "__slots__": tuple(name for name in own if name not in inherited),
        "__match_args__": tuple(every),
        "__dataclass_fields__": _StandardFields(),
        "__getstate__": _getstate,
        "__setstate__": _setstate,
        "__init__": _first_init,
    }
    if shown:
        made["__repr__"] = _repr
    if eq:
        made |= _comparisons(tuple(n for n, f in every.items() if f.compared), order=order)
        if not frozen:
            made["__hash__"] = None
    if frozen:
        made |= {"__setattr__": _refuse, "__delattr__": _refuse}
    # Whatever the class says itself stands, but for __hash__: defining __eq__ set it to None.
    kept = {name: v for name, v in given.items() if not (name == "__hash__" and v is None)}
    return type(cls)(cls.__name__, cls.__bases__, made | kept)


def _as_field(namespace: Any, name: str) -> _Field:  # noqa: ANN401 - a class's namespace
    default = namespace.get(name, _REQUIRED)
    return default if isinstance(default, _Field) else _field(default=default)


def _first_init(self: object, *args: object, **kwargs: object) -> None:
    """Compile the constructor of a class whose first instance is made, and call it."""
    cls = type(self)
    while "__init__" not in cls.__dict__:
        cls = cls.__mro__[1]
    init = _compiled_init(cls)
    cls.__init__ = init  # type: ignore[method-assign]
    init(self, *args, **kwargs)


def _compiled_init(cls: type) -> Callable[..., None]:
    """`def __init__(self, x, y=d)`: each value goes into its slot, past a frozen `__setattr__`."""
    scope: dict[str, Any] = {"_required": _REQUIRED}
    # Where nothing is to be got past, a plain assignment takes a third of the time.
    plain = cls.__setattr__ is object.__setattr__  # type: ignore[comparison-overlap]
    parameters, lines = ["self"], []
    for number, (name, field) in enumerate(getattr(cls, _FIELDS).items()):
        scope[f"_set{number}"] = getattr(cls, name).__set__
        value = name
        if field.factory is not None:
            scope[f"_make{number}"] = field.factory
            parameters.append(f"{name}=_required")
            value = f"_make{number}() if {name} is _required else {name}"
        elif field.default is not _REQUIRED:
            scope[f"_default{number}"] = field.default
            parameters.append(f"{name}=_default{number}")
        else:
            parameters.append(name)
        lines.append(f"  self.{name} = {value}" if plain else f"  _set{number}(self, {value})")
    source = f"def __init__({', '.join(parameters)}):\n" + ("\n".join(lines) or "  pass")
    exec(source, scope)  # noqa: S102 - made of the identifiers of our own classes
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _comparisons(names: tuple[str, ...], *, order: bool) -> dict[str, object]:
    content: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def equal(self: object, other: object) -> bool:
        return content(self) == content(other) if type(self) is type(other) else NotImplemented

    def hashed(self: object) -> int:
        return hash(content(self))

    def ordered(compare: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
        def compared(self: object, other: object) -> bool:
            same = type(self) is type(other)
            return compare(content(self), content(other)) if same else NotImplemented

        return compared

    made: dict[str, object] = {"__eq__": equal, "__hash__": hashed}
    if order:
        made |= {f"__{each.__name__}__": ordered(each) for each in (lt, le, gt, ge)}
    return made


def _repr(self: object) -> str:
    fields: dict[str, _Field] = getattr(type(self), _FIELDS)
    shown = (f"{name}={getattr(self, name)!r}" for name, field in fields.items() if field.shown)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _getstate(self: object) -> list[object]:
    return [getattr(self, name) for name in getattr(type(self), _NAMES)]


def _setstate(self: object, state: list[object]) -> None:
    for name, value in zip(getattr(type(self), _NAMES), state, strict=True):
        object.__setattr__(self, name, value)


def _refuse(self: object, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{name} of a {type(self).__qualname__} is fixed")


class _StandardFields:
    """`__dataclass_fields__`, made when the standard library asks for it."""

    def __get__(self, _: object, cls: type) -> dict[str, Any]:
        import dataclasses

        while not isinstance(cls.__dict__.get("__dataclass_fields__"), _StandardFields):
            cls = cls.__mro__[1]
        made = {}
        for name, known in getattr(cls, _FIELDS).items():
            said: dict[str, Any] = {"repr": known.shown, "compare": known.compared}
            if known.factory is not None:
                said["default_factory"] = known.factory
            elif known.default is not _REQUIRED:
                said["default"] = known.default
            made[name] = (name, object, dataclasses.field(**said))
        # As keywords: a base's default may come before a field that has none.
        twin: Any = dataclasses.make_dataclass(cls.__name__, made.values(), kw_only=True)
        found: dict[str, Any] = twin.__dataclass_fields__
        cls.__dataclass_fields__ = found  # type: ignore[attr-defined]
        return found


def field_names(value: type) -> tuple[str, ...]:
    """The names of a class's fields, in order."""
    names: tuple[str, ...] = getattr(value, _NAMES)
    return names


def _replace(value: Any, /, **changes: object) -> Any:  # noqa: ANN401 - of whichever class
    kept = {name: getattr(value, name) for name in field_names(type(value))}
    return type(value)(**kept | changes)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    dataclass, field, replace = _dataclass, _field, _replace
