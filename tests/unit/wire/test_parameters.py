"""Fields of a query or a form are found under every name that a server may read (I3, I9)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Malformed
from keyhole.wire.parameters import MAX_NAME, MAX_PARAMETERS, Parameter, folded, read_parameters


def only(text: str) -> Parameter:
    (found,) = read_parameters(text)
    return found


def test_a_plain_field_is_read_as_every_server_reads_it() -> None:
    assert only("Action=ListQueues") == Parameter(
        frozenset({"action"}), "Action", "ListQueues", plain=True
    )
    assert only("acl") == Parameter(frozenset({"acl"}), "acl", "", plain=True)
    assert [each.name for each in read_parameters("a=1&&list-type=2&=")] == ["a", "list-type"]
    assert list(read_parameters("")) == []
    assert only("=x").name == ""


@pytest.mark.parametrize(
    "text",
    [
        "%41ction=x",
        "Action=%78",
        "Action=a+b",
        "+Action=x",
        "Action%00=x",
        "Action%00z=x",
        "Action[]=x",
        "Action[0]=x",
        "%EF%BC%A1ction=x",
    ],
)
def test_a_field_that_is_not_plain_is_found_all_the_same(text: str) -> None:
    """I3: a server may read it as `Action`."""
    found = only(text)
    assert "action" in found.names
    assert not found.plain


@pytest.mark.parametrize("text", ["a=1;Action=x", "Action=x;b=1"])
def test_a_semicolon_may_part_fields(text: str) -> None:
    found = {name: each for each in read_parameters(text) for name in each.names}
    assert not found["action"].plain


def test_a_name_is_compared_without_case_width_and_punctuation() -> None:
    assert folded("X-Amz_Acl") == "xamzacl"
    assert folded("Response-*") == "response*"
    assert folded("\uff21cl") == "acl"
    assert only("a*cl=1").names == {"acl"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b=1", "percent-encoded"),
        ("a=%zz", "percent-encoded"),
        ('a="x"', "percent-encoded"),
        ("a=\n", "percent-encoded"),
        ("a=1&" * MAX_PARAMETERS, "fields"),
        ("a" * (MAX_NAME + 1), "characters"),
    ],
)
def test_a_text_that_is_out_of_order_or_too_long_is_refused(text: str, why: str) -> None:
    """I9."""
    with pytest.raises(Malformed, match=why):
        list(read_parameters(text))
