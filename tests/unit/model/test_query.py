"""The names in a query are read as widely as any server reads them (I4, I6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.query import MAX_QUERY_LENGTH, is_plain_query, parse_query


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ()),
        ("a=1", ("a",)),
        ("a=1&b=2", ("a", "b")),
        ("a", ("a",)),
        ("a=", ("a",)),
        ("=1", ("",)),
        ("&", ("", "")),
        ("a=1&&b=2", ("a", "", "b")),
        # Some servers split at ';' too.
        ("a=1;dns=x", ("a", "dns")),
        ("a=b=c", ("a",)),
        ("a=1&a=2", ("a", "a")),
        # However a name is spelled, it is that name.
        ("API_KEY=x", ("api_key",)),
        ("%61pi%5Fkey=x", ("api_key",)),
        ("%6B%65%79=x", ("key",)),
        ("K%45y=x", ("key",)),
        ("a+b=x", ("a b",)),
        ("a%2Bb=x", ("a+b",)),
        ("a%26key=x", ("a&key",)),
        ("a%3Dkey=x", ("a=key",)),
        ("a%00=x", ("a\0",)),
        ("%ff=x", ("\xff",)),
        ("filter[name]=x", ("filter[name]",)),
        ("q={a|b}^`c`", ("q",)),
        ("u=https://example.org/?x", ("u",)),
        ("%2561=x", ("%61",)),
    ],
)
def test_the_fields_of_a_query_are_named_decoded_and_in_lower_case(
    query: str, names: tuple[str, ...]
) -> None:
    assert parse_query(query) == names


@pytest.mark.parametrize(
    "query",
    ["a b", "a=\t", "a=\n", "a=\r\nX: y", "a=\0", "a=%", "a=%4", "a=%zz", "%u0061=x", "a=é", 'a="',
     "a=<b>", "a=\\", "a#b", "a=\x7f", "a=\u2028", "a=\ud800"],
)  # fmt: skip
def test_a_query_with_a_raw_or_broken_character_is_refused(query: str) -> None:
    """I4: what splits a request line or decodes in two ways never leaves."""
    assert parse_query("a=1%20") == ("a",)
    with pytest.raises(Unparsable, match="percent-encoded"):
        parse_query(query)


def test_a_query_is_bounded() -> None:
    """I9."""
    assert parse_query("a" * MAX_QUERY_LENGTH) == ("a" * MAX_QUERY_LENGTH,)
    with pytest.raises(Unparsable, match="at most"):
        parse_query("a" * (MAX_QUERY_LENGTH + 1))


@given(st.text(max_size=20))
def test_any_text_is_a_query_or_refused(text: str) -> None:
    for typed in (text, f"a={text}"):
        try:
            names = parse_query(typed)
        except Unparsable:
            continue
        assert all(name == name.lower() for name in names)


@given(st.text(st.sampled_from('dnsDNS=&;+%64.[]#" é'), max_size=12))
def test_a_plain_query_is_one_whose_names_are_spelled_as_they_are(text: str) -> None:
    """I4: what is not read further must not have a name that only reading further finds."""
    if is_plain_query(text):
        assert all(name in text.lower() for name in parse_query(text))
    assert is_plain_query("page=2&sort=name")
    assert not is_plain_query("a" * (MAX_QUERY_LENGTH + 1))


@given(st.lists(st.text("keyKEY_", min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_no_spelling_of_a_name_hides_it(names: list[str], data: st.DataObject) -> None:
    """I6: a credential's field is found however it is escaped, in either case of the digits."""
    fields = [
        "".join(data.draw(st.sampled_from([c, f"%{ord(c):02x}", f"%{ord(c):02X}"])) for c in name)
        for name in names
    ]
    query = data.draw(st.sampled_from("&;")).join(f"{field}=1" for field in fields)
    assert parse_query(query) == tuple(name.lower() for name in names)
