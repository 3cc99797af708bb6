"""JSON is read strictly, and both ways of reading it accept the same texts (I9)."""

from __future__ import annotations

import gc
import json
import mmap
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.strict_json import (
    MAX_AT_ONCE,
    MAX_DEPTH,
    MAX_MARKS_AT_ONCE,
    MAX_VALUES,
    JsonSlices,
    JsonValue,
    is_quick,
    read_json,
    read_json_in_slices,
)


def drive(slices: JsonSlices) -> tuple[JsonValue, int]:
    """The value, and how often others had their turn."""
    turns = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, turns
        turns += 1


def in_slices(data: bytes) -> JsonValue:
    return drive(read_json_in_slices(data, 1 << 20))[0]


GOOD = [
    b"{}",
    b" [ ] ",
    b"null",
    b'{"a":[1,-2500.0,true,false,null,"x\\n"],"b":{"c":""}}',
    b'{"a":[1,-2.5e3,1E5,-0]}',
    b'{"a":"\\u0041\\/"}',
    b"1" * 64,
    b"-" + b"1" * 63,
    b'{"a": [1, -2.5e3, true, false, null, "x"], "b": {"c": ""}}',
    '{"é": "\U0001f511"}'.encode(),
    b'"\\ud83d\\udd11 \\u00e9 \\n \\/ \\" \\\\"',
    b'"%b\\n%b"' % (b"x" * 5000, b"y" * 5000),
    b"[%b]" % b",".join([b"[]"] * 3000),
    b" " * 70_000 + b"1" + b"\t\r\n",
    b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    b'{"a":%b}' % (b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)),
    b"0",
    b"-0.0",
    b'"\\\\ud800"',
]

BAD = {
    "nothing": b"",
    "spaces": b"  ",
    "a name twice": b'{"type": "a", "type": "b"}',
    "a name twice without spaces": b'{"type":"a","b":{"c":[1,2]},"type":"a"}',
    "a name twice by an escape": b'{"type": "a", "t\\u0079pe": "b"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-16 without its mark": '{"a": 1}'.encode("utf-16-le"),
    "Latin-1": b'{"a": "\xe9"}',
    "half a character": b'"\xc3"',
    "half a character in a long text": b'"%b\xc3"' % (b"x" * 2000),
    "Latin-1 in a long text": b'"%b\xe9x"' % (b"x" * 2000),
    "an overlong form": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "half a surrogate pair": b'{"a": ["\\ud83d"]}',
    "the other half": b'"\\udd11"',
    "half a pair in a name": b'{"\\uD83D": 1}',
    "NaN": b"[NaN]",
    "Infinity": b"-Infinity",
    "a number that is not finite": b"1e999",
    "a long number": b"1" * 65,
    "a longer number": b"1" * 5000,
    "a long number with a sign": b"-" + b"1" * 64,
    "a long fraction": b"0." + b"1" * 64,
    "a number with a zero": b"01",
    "a hexadecimal number": b"0x1",
    "a plus": b"+1",
    "half a number": b"[1.]",
    "trailing bytes": b"{} {}",
    "a comma at the end": b"[1,]",
    "a comma at the end of an object": b'{"a": 1,}',
    "a missing comma": b"[1 2]",
    "no colon": b'{"a" 1}',
    "a name without quotes": b"{a: 1}",
    "single quotes": b"{'a': 1}",
    "a comment": b"{} // x",
    "a line end in a text": b'"a\nb"',
    "a NUL in a long text": b'"%b\x00"' % (b"x" * 2000),
    "a bad escape": b'"\\x41"',
    "a cut escape": b'"\\u00"',
    "a text that does not end": b'"abc',
    "a long text that does not end": b'"' + b"x" * 3000,
    "an object that does not end": b'{"a": 1',
    "a name that does not end": b'{"a',
    "brackets that do not match": b"[}",
    "a word that is none": b"nul",
    "capitals": b"True",
    "too deep": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "far too deep": b"[" * 100_000,
    "far too deep in objects": b'{"a":' * 100_000,
    "a form feed": b"\x0c1",
}


@pytest.mark.parametrize("text", GOOD)
def test_both_ways_of_reading_agree_on_what_is_right(text: bytes) -> None:
    expected = json.loads(text)
    assert read_json(text) == expected
    assert in_slices(text) == expected


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_a_text_with_two_meanings_or_none_is_refused_by_both(text: bytes) -> None:
    """I9."""
    with pytest.raises(Malformed):
        read_json(text)
    with pytest.raises(Malformed):
        in_slices(text)


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**30), 10**30) | st.text(), lambda inner: st.lists(inner)
    | st.dictionaries(st.text(), inner), max_leaves=30), st.booleans())  # fmt: skip
@pytest.mark.hypothesis
def test_what_is_written_is_read_in_both_ways(value: JsonValue, ascii_only: bool) -> None:
    for separators in ((", ", ": "), (",", ":")):
        text = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
        assert read_json(text) == value
        assert in_slices(text) == value


@given(st.binary(max_size=40) | st.text('{}[]",:\\ud8a01e.- \n', max_size=30).map(str.encode))
@pytest.mark.hypothesis
def test_both_ways_of_reading_refuse_the_same(text: bytes) -> None:
    def outcome(read: object) -> object:
        try:
            return read_json(text) if read is read_json else in_slices(text)
        except Malformed:
            return Malformed

    assert outcome(read_json) == outcome(in_slices)


@given(st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), min_size=1), st.data())
@pytest.mark.hypothesis
def test_a_second_name_is_found_in_every_way_of_writing(
    members: dict[str, int], data: st.DataObject
) -> None:
    """I9: the control is the same object without it."""
    comma, colon = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (",", " :"), (",\n", ":")]))
    again = data.draw(st.sampled_from(sorted(members)))
    written = [f"{json.dumps(name)}{colon}{value}" for name, value in members.items()]
    once = f"[{{{comma.join(written)}}}]".encode()
    twice = (
        f"[{{{comma.join([*written, f'{json.dumps(again)}{colon}{members[again]}'])}}}]".encode()
    )
    assert read_json(once) == in_slices(once) == [members]
    for read in (read_json, in_slices):
        with pytest.raises(Malformed, match="twice"):
            read(twice)


def test_long_numbers_are_refused_before_they_are_converted() -> None:
    """I12: the time of a conversion grows with the square of the digits."""
    text = b"[%b0]" % (b"%b," % (b"9" * 4200) * ((MAX_AT_ONCE - 4) // 4201))
    assert is_quick(text)
    began = time.thread_time()
    with pytest.raises(Malformed, match="number"):
        read_json(text)
    assert time.thread_time() - began < 0.010


def test_a_long_text_is_cut_without_half_a_character() -> None:
    for tail in ("é", "\\ud83d\\udd11", "\\n", "\U0001f511"):
        for lead in range(8):
            text = ('"' + "x" * (4090 + lead) + tail * 3000 + '"').encode()
            value, _ = drive(read_json_in_slices(text))
            whole = json.loads(text)
            assert isinstance(value, str)
            assert whole.startswith(value)
            assert 4000 < len(value) <= 4096


def test_the_number_of_values_is_bounded() -> None:
    """I9."""
    assert in_slices(b"[%b]" % b",".join([b"0"] * (MAX_VALUES - 1)))
    with pytest.raises(Malformed, match="values"):
        in_slices(b"[%b]" % b",".join([b"0"] * MAX_VALUES))


def test_a_file_in_memory_can_be_read() -> None:
    text = json.dumps({"a": "b" * 100_000, "c": [1, 2]}).encode()
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.flush()
        with mmap.mmap(file.fileno(), len(text), access=mmap.ACCESS_READ) as mapped:
            value, _ = drive(read_json_in_slices(mapped))
    assert isinstance(value, dict)
    assert value["c"] == [1, 2]


def test_only_texts_that_are_read_quickly_are_read_at_once() -> None:
    assert is_quick(b"x" * MAX_AT_ONCE)
    assert not is_quick(b"x" * (MAX_AT_ONCE + 1))
    assert is_quick(b"," * MAX_MARKS_AT_ONCE)
    assert not is_quick(b"[" * (MAX_MARKS_AT_ONCE + 1))


LONG = {
    "one text": b'"%b"' % (b"x" * (3 << 20)),
    "escapes": b'"%b"' % (b"\\n" * (1 << 20)),
    "text with escapes": b'"%b"' % (b"x\\n" * (1 << 20)),
    "spaces": b" " * (3 << 20) + b"1",
    "lists": b"[%b0]" % (b"[]," * (MAX_VALUES // 2)),
    "objects": b"[%b0]" % (b'{"":0},' * (MAX_VALUES // 3)),
}


@pytest.mark.parametrize("text", LONG.values(), ids=list(LONG))
def test_no_slice_takes_long(text: bytes) -> None:
    """I12: of other sessions' turns, the processor's time of a slice counts."""
    slices, worst = read_json_in_slices(text), 0.0
    gc.collect()
    gc.freeze()  # as the data plane does: a collection looks at this text's values alone
    began = time.thread_time()
    try:
        while next(slices, slices) is None:
            now = time.thread_time()
            worst, began = max(worst, now - began), now
    finally:
        gc.unfreeze()
    assert worst < 0.010
