"""One field is one name and one value on one line, or it is refused (I4, I9)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.field import (
    END_OF_HEAD,
    MAX_FIELDS,
    MAX_HEAD,
    MAX_KNOWN,
    MAX_KNOWN_LINE,
    MAX_LENGTH_DIGITS,
    MAX_LINE,
    Field,
    check_chunked,
    find_end,
    folded,
    parse_field,
    parse_length,
    parse_tokens,
    remember,
    split_head,
    values_of,
    without,
)
from keyhole.model.errors import Malformed

ANY = st.binary(max_size=60)
TOKENS = st.from_regex(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,20}", fullmatch=True)
VALUES = st.from_regex(rb"[\t\x20-\x7e\x80-\xff]{0,40}", fullmatch=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Accept: */*", Field(b"accept", b"*/*", b"Accept: */*\r\n")),
        (b"X:y", Field(b"x", b"y", b"X: y\r\n")),
        (b"X:", Field(b"x", b"", b"X: \r\n")),
        (b"X: \t ", Field(b"x", b"", b"X: \r\n")),
        (b"x-a:\t a: \t b\t ", Field(b"x-a", b"a: \t b", b"x-a: a: \t b\r\n")),
        (b"X-Name: caf\xc3\xa9", Field(b"x-name", b"caf\xc3\xa9", b"X-Name: caf\xc3\xa9\r\n")),
        (b"!#$%&'*+-.^_`|~09azAZ: 1", None),
    ],
)
def test_an_honest_field_is_written_anew(line: bytes, expected: Field | None) -> None:
    found = parse_field(line)
    assert expected is None or found == expected
    assert found == parse_field(found.line[:-2])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b":",
        b": x",
        b"X",
        b"X x: y",
        b"X : y",
        b"X\t: y",
        b" X: y",
        b"\tX: y",
        b"X\x00: y",
        b"X\x0b: y",
        b"X\x7f: y",
        b"X\x80: y",
        b"X(y): z",
        b"X/y: z",
        b"X[y]: z",
        b'"X": y',
        b"X,Y: z",
        b"X;Y: z",
        b"X=Y: z",
        b"X@Y: z",
        b"X{Y}: z",
        b"X\\Y: z",
        b"X: a\rb",
        b"X: a\nb",
        b"X: a\n b",
        b"X: a\r",
        b"X: a\n",
        b"X: a\x00",
        b"X: \x00",
        b"X: \x0ba",
        b"X: \x0ca",
        b"X: \x1ba",
        b"X: a\x7f",
        b"X" + b" " * MAX_LINE + b": y",
        b"X:" + b" " * MAX_LINE + b"\x00",
    ],
)
def test_a_field_that_could_be_read_in_two_ways_is_refused(line: bytes) -> None:
    """I4. The control: each of these without its trick is `X: y`."""
    assert parse_field(b"X: y").value == b"y"
    with pytest.raises(Malformed):
        parse_field(line)


@given(ANY)
def test_a_field_is_read_or_refused_and_what_is_read_is_one_line(line: bytes) -> None:
    try:
        found = parse_field(line)
    except Malformed:
        return
    assert re.fullmatch(rb"[^\s:\x00]+: [^\r\n\x00]*\r\n", found.line)
    assert found.value == found.value.strip(b" \t")
    assert parse_field(found.line[:-2]) == found


@given(TOKENS, VALUES)
def test_every_name_and_value_of_the_grammar_is_read(name: bytes, value: bytes) -> None:
    assert parse_field(name + b":" + value)[:2] == (name.lower(), value.strip(b" \t"))


def test_the_words_of_a_refusal_hold_no_byte_of_the_message() -> None:
    """I8: what is written down cannot be forged by whoever is refused."""
    with pytest.raises(Malformed) as refusal:
        parse_field(b"EVIL\nEVIL")
    assert refusal.value.why == str(refusal.value)
    assert "EVIL" not in refusal.value.why


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("cut", range(8))
def test_the_end_of_a_head_is_found_however_it_is_cut(kind: type[bytes], cut: int) -> None:
    whole = b"GET / HTTP/1.1\r\nX: y" + END_OF_HEAD
    part = whole[: len(whole) - cut]
    assert find_end(kind(part)) == (-1 if cut else len(whole) - 4)
    searched = len(part) if cut else 0
    assert find_end(kind(whole + b"more" + END_OF_HEAD), searched) == len(whole) - 4


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: ok.example\n\n",
        b"GET / HTTP/1.1\nHost: ok.example\n\nbody",
        b"GET / HTTP/1.1\r\nHost: ok.example\n\r\n",
        b"GET / HTTP/1.1\r\nHost: ok.example\r\n\n",
        b"\n\n",
    ],
)
def test_a_head_of_bare_line_feeds_is_refused_and_not_waited_for(data: bytes) -> None:
    assert find_end(data.replace(b"\r", b"").replace(b"\n", b"\r\n")) >= 0
    with pytest.raises(Malformed):
        find_end(data)
    with pytest.raises(Malformed):
        find_end(data, data.rindex(b"\n"))


@pytest.mark.parametrize("size", [MAX_HEAD, MAX_HEAD + 1])
@pytest.mark.parametrize("ended", [True, False])
def test_a_head_is_bounded(size: int, ended: bool) -> None:
    """I9."""
    data = b"x" * size + (END_OF_HEAD if ended else b"")
    if size > MAX_HEAD:
        with pytest.raises(Malformed):
            find_end(data)
        with pytest.raises(Malformed):
            split_head(data[:size])
    else:
        assert find_end(data) == (size if ended else -1)


def test_lines_and_their_number_are_bounded() -> None:
    """I9."""
    assert len(split_head(b"\r\n".join([b"x"] * (MAX_FIELDS + 1)))) == MAX_FIELDS + 1
    with pytest.raises(Malformed):
        split_head(b"\r\n".join([b"x"] * (MAX_FIELDS + 2)))
    assert split_head(b"x\r\n" + b"y" * MAX_LINE) == [b"x", b"y" * MAX_LINE]
    for head in (b"x\r\n" + b"y" * (MAX_LINE + 1), b"x" * (MAX_LINE + 1)):
        with pytest.raises(Malformed):
            split_head(head)


@pytest.mark.parametrize(
    "value", [b"0", b"1", b"10", b"18446744", b"9" * MAX_LENGTH_DIGITS], ids=repr
)
def test_a_plain_number_is_a_length(value: bytes) -> None:
    assert parse_length(value) == int(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        *b"-1 +1 1_0 0x1 1e1 1.0 1,1 01 00 18446744073709551617".split(),
        b" 1",
        b"1 ",
        b"1, 1",
        b"1, 2",
        b"0" * 20,
        b"9" * (MAX_LENGTH_DIGITS + 1),
        b"\xb2",
        b"\xd9\xa1",
        b"1\x00",
        b'"1"',
    ],
    ids=repr,
)
def test_whatever_is_not_one_plain_number_is_no_length(value: bytes) -> None:
    """I4."""
    with pytest.raises(Malformed):
        parse_length(value)


@given(ANY)
def test_a_length_is_what_it_looks_like(value: bytes) -> None:
    try:
        assert b"%d" % parse_length(value) == value
    except Malformed:
        return


@pytest.mark.parametrize("value", [b"chunked", b"Chunked", b"CHUNKED"])
def test_chunked_is_the_one_coding(value: bytes) -> None:
    check_chunked(value, has_length=False, http10=False)
    with pytest.raises(Malformed):
        check_chunked(value, has_length=True, http10=False)
    with pytest.raises(Malformed):
        check_chunked(value, has_length=False, http10=True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        *b"identity gzip xchunked chunkedx chunked, ,chunked chunked;q=1".split(),
        b"chunked, chunked",
        b"chunked, identity",
        b"gzip, chunked",
        b'"chunked"',
        b"chun ked",
        b"chunked\x0b",
        b"\x00chunked",
        b"c\xc5\xabunked",
    ],
    ids=repr,
)
def test_another_coding_is_refused(value: bytes) -> None:
    """I4: TE.TE, where one server knows a spelling and the other does not."""
    with pytest.raises(Malformed):
        check_chunked(value, has_length=False, http10=False)


def test_a_list_of_names_is_read_in_lower_case() -> None:
    assert parse_tokens(b"") == set()
    assert parse_tokens(b" , ,") == set()
    assert parse_tokens(b"Close,\tX-A , close") == {b"close", b"x-a"}
    for value in (b"a b", b"a;b", b'"a"', b"a\x00", b"a\xe9"):
        with pytest.raises(Malformed):
            parse_tokens(value)


def test_lines_are_taken_out_by_their_names() -> None:
    lines = [b"X-A: 1\r\n", b"x-a: 2\r\n", b"X-AB: X-A: 3\r\n"]
    assert without(lines, {b"x-a"}) == lines[2:]
    assert without(lines, {b"x", b"x-a:"}) == lines


def test_the_values_of_a_field_are_found_by_its_name() -> None:
    lines = [b"X-A: 1\r\n", b"x-a:2\r\n", b"X-AB: X-A: 3\r\n"]
    assert values_of(lines, b"x-a") == [b"1", b"2"]
    assert values_of(lines, b"x") == []


def test_a_name_is_folded_as_origins_fold_it() -> None:
    assert folded(b"x-api-key") == b"x-api-key"
    assert folded(b"x_api.key") == b"x-api-key"


def test_a_memo_is_bounded_and_starts_anew() -> None:
    """I9."""
    known: dict[bytes, bytes] = {}
    remember(known, b"x" * (MAX_KNOWN_LINE + 1), b"")
    assert not known
    for number in range(MAX_KNOWN):
        remember(known, b"%d" % number, b"")
    assert len(known) == MAX_KNOWN
    remember(known, b"one more", b"kept")
    assert known == {b"one more": b"kept"}
