"""A value is what `dataclasses` would have made of it, as far as anyone here looks."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.value import dataclass, field, field_names, replace

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Two numbers and what is not compared."""

    x: int
    y: int = 7
    note: str = field(default="", repr=False, compare=False)

    def far(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Deep(Point):
    """A value on top of another."""

    z: tuple[int, ...] = field(default_factory=lambda: (1, 2))


@dataclass(frozen=True, slots=True)
class Nothing:
    """A value without fields."""


@dataclass(slots=True)
class Pile:
    """Changes."""

    items: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """Compared by identity, and printed in its own words."""

    secret: str

    def __repr__(self) -> str:
        return "Own(…)"


@dataclass(frozen=True, slots=True, repr=False)
class Closed:
    """Not printed by its fields."""

    secret: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Says itself what is equal; the hash is still made."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and self.text.lower() == other.text.lower()


class Heir(Point):
    """Not a value itself: it has the constructor of one."""


def test_a_value_is_built_by_position_by_name_and_from_defaults() -> None:
    assert Point(1) == Point(x=1, y=7)
    assert Point(1, y=2).far() == 3
    assert Deep(1) == Deep(1, 7, "", (1, 2))
    assert Heir(4).x == 4
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


@pytest.mark.parametrize(
    ("value", "args", "named"),
    [(Point, (), {}), (Point, (1, 2, "", 3), {}), (Point, (1,), {"q": 2}), (Nothing, (1,), {})],
)
def test_a_wrong_call_is_a_type_error(
    value: Callable[..., object], args: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        value(*args, **named)


def test_an_heir_may_be_the_first_to_be_made() -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    class Child(Fresh):
        pass

    assert Child(3).x == 3
    assert Fresh(4).x == 4


def test_a_made_default_is_made_for_each() -> None:
    first, second = Pile(), Pile()
    first.items.append(1)
    assert second.items == []
    assert Pile([2]).items == [2]


def test_values_are_equal_by_content_and_class() -> None:
    assert Point(1) != Point(2)
    assert Point(1, note="a") == Point(1, note="b")
    assert Point(1) != Deep(1)
    other: object = (1, 7)
    assert Point(1) != other
    assert len({Point(1), Point(1, note="b"), Point(2)}) == 2
    assert Own("a") != Own("a")
    assert Folded("A") == Folded("a")
    assert isinstance(hash(Folded("a")), int)


def test_what_changes_has_no_hash() -> None:
    pile = Pile()
    pile.items = [3]
    assert pile == Pile([3])
    with pytest.raises(TypeError, match="unhashable"):
        hash(pile)


def test_order_is_by_content_and_within_a_class() -> None:
    assert sorted([Point(2), Point(1, 9), Point(1)]) == [Point(1), Point(1, 9), Point(2)]
    assert Point(1) <= Point(1) >= Point(1)
    assert Point(2) > Point(1)
    with pytest.raises(TypeError):
        assert Point(1) < 3  # type: ignore[operator]


def test_a_frozen_value_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_a_value_shows_its_fields_but_not_those_that_hide() -> None:
    assert repr(Point(1, note="hidden")) == "Point(x=1, y=7)"
    assert repr(Own("hidden")) == "Own(…)"
    assert repr(Nothing()) == "Nothing()"
    assert "hidden" not in repr(Closed("hidden"))


def test_a_value_can_be_matched_copied_and_pickled() -> None:
    match Deep(1, 2):
        case Deep(x, y):
            assert (x, y) == (1, 2)
    for again in (copy.deepcopy(Deep(1)), copy.copy(Deep(1)), pickle.loads(pickle.dumps(Deep(1)))):  # noqa: S301 - our own
        assert again == Deep(1)


def test_the_standard_library_takes_it_for_one_of_its_own() -> None:
    assert dataclasses.is_dataclass(Deep)
    assert [f.name for f in dataclasses.fields(Deep)] == ["x", "y", "note", "z"]
    assert dataclasses.replace(Deep(1), z=(3,)) == Deep(1, z=(3,))
    assert dataclasses.asdict(Deep(1)) == {"x": 1, "y": 7, "note": "", "z": (1, 2)}
    assert [f.name for f in dataclasses.fields(Heir)] == ["x", "y", "note"]
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "note"]
    assert dataclasses.fields(Nothing) == ()


@pytest.mark.parametrize("value", [Point, Deep, Nothing, Pile, Own])
def test_it_says_of_its_fields_what_dataclasses_would(value: Any) -> None:  # noqa: ANN401
    """The control: the same class, as the standard library makes it."""
    twin: Any = dataclasses.make_dataclass(
        "Twin",
        [(f.name, object, dataclasses.field(repr=f.repr)) for f in dataclasses.fields(value)],
    )
    assert [f.repr for f in dataclasses.fields(value)] == [f.repr for f in dataclasses.fields(twin)]
    assert value.__match_args__ == twin.__match_args__


def test_a_value_without_slots_is_refused() -> None:
    with pytest.raises(TypeError, match="slots"):

        @dataclass(frozen=True, slots=False)
        class Loose:
            x: int


def test_a_changed_copy_has_the_rest_as_it_was() -> None:
    assert replace(Deep(1, 2, note="n"), z=(3,)) == Deep(1, 2, "n", (3,))
    assert replace(Point(1, note="n"), x=2).note == "n"
    with pytest.raises(TypeError):
        replace(Point(1), nonsense=2)  # type: ignore[call-arg]
    assert field_names(Deep) == ("x", "y", "note", "z")
