"""The one error of this room says what is wrong and, where it can, what to write instead."""

from __future__ import annotations

from keyhole.model.errors import Unparsable


def test_an_unparsable_text_is_a_value_error_with_its_message_and_hint() -> None:
    error = Unparsable("no such thing", "this thing")
    assert isinstance(error, ValueError)
    assert (str(error), error.message, error.hint) == (
        "no such thing",
        "no such thing",
        "this thing",
    )


def test_a_hint_is_not_owed() -> None:
    assert Unparsable("no such thing").hint is None
