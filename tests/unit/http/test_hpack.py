"""Field sections of HTTP/2: what is read and refused, and what another reader makes of them."""

from __future__ import annotations

import contextlib

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.http.field import MAX_HEAD, MAX_LINE
from keyhole.http.hpack import (
    EMPTY_TABLE,
    ENTRY_OVERHEAD,
    MAX_INTEGER_BYTES,
    MAX_KNOWN_TEXT,
    MAX_KNOWN_TEXTS,
    MAX_REPEATED,
    MAX_REPEATED_SECTION,
    TABLE_SIZE,
    FieldDecoder,
    encode_field,
    encode_length,
    encode_line,
)
from keyhole.model.errors import Malformed
from tests.rigs.http.http2 import text

CUT_OFF = "a field section is cut off"
NO_ENTRY = "a field section names an entry that the table does not have"
NO_CODE = "a text in a field section has no Huffman code"
ENDLESS = "a number in a field section does not end"
HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def inserted(name: bytes, value: bytes) -> bytes:
    """A field that enters the table."""
    return b"\x40" + text(name) + text(value)


def huffman(value: bytes) -> bytes:
    code = HUFFMAN.encode(value)
    return bytes((0x80 | len(code),)) + code


def coded(size: int) -> bytes:
    """What a text begins with that has so many bytes of Huffman code."""
    length = text(bytes(size))[:-size]
    return bytes((length[0] | 0x80,)) + length[1:]


def why(section: bytes, decoder: FieldDecoder | None = None) -> str:
    with pytest.raises(Malformed) as caught:
        (decoder or FieldDecoder()).decode(section)
    return caught.value.why


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        # RFC 7541, appendix C.2.
        (
            bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572"),
            [(b"custom-key", b"custom-header")],
        ),
        (bytes.fromhex("040c2f73616d706c652f70617468"), [(b":path", b"/sample/path")]),
        (bytes.fromhex("100870617373776f726406736563726574"), [(b"password", b"secret")]),
        (b"\x82", [(b":method", b"GET")]),
        (b"", []),
        (b"\x00" + huffman(b"a-name") + huffman(b"a value"), [(b"a-name", b"a value")]),
        (b"\x00\x01a\x00", [(b"a", b"")]),
        (b"\x00\x01a\x80", [(b"a", b"")]),
    ],
)
def test_each_form_of_a_field_is_read(section: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    assert FieldDecoder().decode(section) == fields


def test_code_that_is_longer_than_a_line_may_be_is_not_read() -> None:
    """I12: it takes long, and the line would be refused."""
    zeros = bytes(MAX_LINE)
    most = b"\x00\x01a" + coded(MAX_LINE) + zeros
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keyhole.http.hpack.decode_huffman", lambda code: b"%d" % len(code))
        assert FieldDecoder().decode(most) == [(b"a", b"%d" % MAX_LINE)]
        longer = b"\x00\x01a" + coded(MAX_LINE + 1) + zeros + b"0"
        assert why(longer) == "a text in a field section has at most 16384 bytes of code"


def test_the_examples_of_the_standard_are_read_one_after_the_other() -> None:
    """RFC 7541, appendix C.6: responses in Huffman code, with a table of 256 bytes."""
    decoder = FieldDecoder()
    first = decoder.decode(
        b"\x3f\xe1\x01"
        + bytes.fromhex(
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff"
            "6e919d29ad171863c78f0b97c8e9ae82ae43d3"
        )
    )
    assert first[0] == (b":status", b"302")
    second = decoder.decode(bytes.fromhex("4883640effc1c0bf"))
    assert second == [(b":status", b"307"), *first[1:]]
    third = decoder.decode(
        bytes.fromhex(
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821d"
            "d7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b106"
            "3d5007"
        )
    )
    assert third[-1] == (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")


def test_an_entry_of_the_table_is_named_later_and_the_oldest_makes_room() -> None:
    decoder = FieldDecoder()
    decoder.decode(inserted(b"a", b"1") + inserted(b"b", b"2"))
    assert decoder.decode(b"\xbe\xbf") == [(b"b", b"2"), (b"a", b"1")]
    assert decoder.decode(b"\x7e\x013") == [(b"b", b"3")]  # the name of the newest
    big = TABLE_SIZE - 2 * ENTRY_OVERHEAD - 3
    decoder.decode(inserted(b"c", b"x" * big))
    assert decoder.decode(b"\xbf") == [(b"b", b"3")]
    assert why(b"\xc0", decoder) == NO_ENTRY


def test_an_entry_that_is_larger_than_the_table_empties_it() -> None:
    """RFC 7541 §4.4."""
    decoder = FieldDecoder()
    decoder.decode(inserted(b"a", b"1"))
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    large = b"x" * (TABLE_SIZE - ENTRY_OVERHEAD)
    assert decoder.decode(inserted(b"a", large)) == [(b"a", large)]
    assert why(b"\xbe", decoder) == NO_ENTRY


def test_the_table_never_has_more_than_its_size() -> None:
    """I9: whatever a peer inserts."""
    decoder = FieldDecoder()
    for number in range(2000):
        decoder.decode(inserted(b"%d" % number, b"x" * (number % 90)))
        held = sum(len(name) + len(value) + ENTRY_OVERHEAD for name, value in decoder._table)
        assert held == decoder._size <= TABLE_SIZE
    assert len(decoder._table) > 20


def test_a_table_is_resized_at_the_start_of_a_section_alone() -> None:
    decoder = FieldDecoder()
    decoder.decode(inserted(b"a", b"1"))
    assert decoder.decode(b"\x3f\xe1\x1f\xbe") == [(b"a", b"1")]  # 4096 is the most
    assert decoder.decode(b"\x20\x3f\xe1\x1f") == []  # emptied, and as large as before
    assert why(b"\xbe", decoder) == NO_ENTRY
    assert why(b"\x82\x20") == "a table is resized in the midst of a field section"
    assert why(b"\x3f\xe2\x1f") == "the table of field sections has at most 4096 bytes"


def test_a_small_table_holds_little() -> None:
    decoder = FieldDecoder()
    decoder.decode(b"\x3f\x03" + inserted(b"a", b"1"))  # 34 bytes: one entry of two
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    decoder.decode(inserted(b"b", b"2"))
    assert why(b"\xbf", decoder) == NO_ENTRY


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"\x80", NO_ENTRY),
        (b"\xbe", NO_ENTRY),
        (b"\x7e\x01a", NO_ENTRY),
        (b"\xff\xff\xff\xff\x07", NO_ENTRY),
        (b"\xff" + b"\xff" * MAX_INTEGER_BYTES, ENDLESS),
        (b"\xff\x80\x80\x80\x80\x00", ENDLESS),
        (b"\xff", ENDLESS),
        (b"\xff\x80", ENDLESS),
        (b"\x0f", ENDLESS),
        (b"\x3f", ENDLESS),
        (b"\x00", CUT_OFF),
        (b"\x00\x01", CUT_OFF),
        (b"\x00\x01a", CUT_OFF),
        (b"\x00\x01a\x7f\xff\xff\xff\x07", CUT_OFF),
        (b"\x00\x01a\x05abcd", CUT_OFF),
        (b"\x00\x7f", ENDLESS),
        (b"\x00\x01a\x81\x00", NO_CODE),  # padded with zeros
        (b"\x00\x01a\x82\x1f\xff", NO_CODE),  # padded by more than seven bits
        (b"\x00\x01a\x84\xff\xff\xff\xff", NO_CODE),  # the end of the string itself
    ],
)
def test_what_is_no_field_section_is_refused(section: bytes, reason: str) -> None:
    assert why(section) == reason


def test_a_text_of_huffman_code_is_padded_by_ones() -> None:
    """The control of those that are padded otherwise."""
    section = b"\x00\x01a\x81\x1f\x82"
    assert FieldDecoder().decode(section) == [(b"a", b"a"), (b":method", b"GET")]


def test_a_small_section_does_not_become_a_large_head() -> None:
    """I9: the HPACK bomb, an entry of 4 KiB that is named again and again."""
    decoder = FieldDecoder()
    value = b"x" * 4000
    decoder.decode(inserted(b"a", value))
    most = MAX_HEAD // (len(value) + 1 + ENTRY_OVERHEAD)
    assert len(decoder.decode(b"\xbe" * most)) == most
    assert why(b"\xbe" * (most + 1), decoder) == f"a field section has at most {MAX_HEAD} bytes"


def test_many_empty_fields_count_by_their_overhead() -> None:
    """I9."""
    most = MAX_HEAD // ENTRY_OVERHEAD
    empty = b"\x00\x00\x00"
    assert len(FieldDecoder().decode(empty * most)) == most
    assert "at most" in why(empty * (most + 1))


def test_a_section_is_remembered_until_the_table_changes() -> None:
    decoder = FieldDecoder()
    decoder.decode(inserted(b"a", b"1"))
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    assert decoder.decode(b"\xbe") is decoder.decode(b"\xbe")
    decoder.decode(inserted(b"b", b"2"))
    assert decoder.decode(b"\xbe") == [(b"b", b"2")]
    decoder.decode(b"\x20\x3f\xe1\x1f")
    assert why(b"\xbe", decoder) == NO_ENTRY


def test_a_section_that_names_no_entry_is_remembered_with_what_it_inserts() -> None:
    """As nginx sends them: each field enters the table, and none is ever named."""
    decoder = FieldDecoder()
    section = b"\x88" + inserted(b"a", b"1") + inserted(b"b", b"2")
    first = decoder.decode(section)
    decoder.decode(inserted(b"c", b"3"))
    assert decoder.decode(section) is first == [(b":status", b"200"), (b"a", b"1"), (b"b", b"2")]
    named = [decoder.decode(bytes((0xBE + back,)))[0][0] for back in range(5)]
    assert named == [b"b", b"a", b"c", b"b", b"a"]
    assert why(b"\xc3", decoder) == NO_ENTRY


def test_few_and_short_sections_are_remembered() -> None:
    """I9: a peer decides how many it sends, and how long they are."""
    decoder = FieldDecoder()
    for number in range(MAX_REPEATED + 5):
        decoder.decode(b"\x00\x01a" + text(b"%d" % number))
    assert len(decoder._repeated) == 5
    decoder = FieldDecoder()
    longest = b"\x00\x01a" + text(b"x" * (MAX_REPEATED_SECTION - 6))
    assert len(longest) == MAX_REPEATED_SECTION
    decoder.decode(longest)
    decoder.decode(b"\x82" + longest)
    assert list(decoder._repeated) == [longest]


def test_few_and_short_texts_are_remembered_by_their_huffman_code() -> None:
    """I9: a peer decides how many it sends, and how long they are."""
    decoder, encoder = FieldDecoder(), hpack.Encoder()
    for number in range(MAX_KNOWN_TEXTS + 5):
        section = encoder.encode([("x-a", f"text-{number}")])
        assert decoder.decode(section) == [(b"x-a", b"text-%d" % number)]
        assert len(decoder._texts) <= MAX_KNOWN_TEXTS
    known = dict(decoder._texts)
    longest = "x" * 2 * MAX_KNOWN_TEXT
    assert decoder.decode(encoder.encode([("x-a", longest)])) == [(b"x-a", longest.encode())]
    assert decoder._texts == known


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        (b":method", b"GET", b"\x82"),
        (b":status", b"200", b"\x88"),
        (b":status", b"418", b"\x18\x03418"),
        (b":authority", b"a", b"\x11\x01a"),
        (b"content-type", b"a", b"\x1f\x10\x01a"),
        (b"x-own", b"", b"\x10\x05x-own\x00"),
        (b"x-own", b"v" * 300, b"\x10\x05x-own\x7f\xad\x01" + b"v" * 300),
    ],
)
def test_a_field_is_written_without_a_table(name: bytes, value: bytes, written: bytes) -> None:
    """No credential enters a compression context: a literal is marked as never indexed (I1)."""
    assert encode_field(name, value) == written
    assert hpack.Decoder().decode(written, raw=True) == [(name, value)]


@pytest.mark.parametrize("length", [0, 7, 4096, 10**15 - 1])
def test_a_length_is_written_as_any_other_field(length: int) -> None:
    assert encode_length(length) == encode_field(b"content-length", b"%d" % length)


def test_a_line_of_http1_is_written_with_a_small_name() -> None:
    assert encode_line(b"X-Own: a: b\r\n") == b"\x10\x05x-own\x04a: b"
    assert encode_line(b"X-Own: \r\n") == b"\x10\x05x-own\x00"


def test_the_first_section_says_that_no_table_is_used() -> None:
    reader = hpack.Decoder()
    reader.decode(EMPTY_TABLE + b"\x82")
    assert reader.header_table_size == 0


# ── against another implementation ────────────────────────────────────────────────────────────────

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-:", min_size=1, max_size=20).map(str.encode)
VALUES = st.binary(max_size=200)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=10)


@given(
    st.lists(FIELDS, max_size=5), st.booleans(), st.lists(st.integers(0, TABLE_SIZE), max_size=5)
)
def test_what_hpack_writes_is_read_as_it_was_meant(
    sections: list[list[tuple[bytes, bytes]]], coded: bool, sizes: list[int]
) -> None:
    encoder, decoder = hpack.Encoder(), FieldDecoder()
    for number, fields in enumerate(sections):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        assert decoder.decode(encoder.encode(fields, huffman=coded)) == fields


@given(FIELDS)
def test_what_is_written_is_read_by_hpack(fields: list[tuple[bytes, bytes]]) -> None:
    section = b"".join(encode_field(name, value) for name, value in fields)
    assert hpack.Decoder().decode(EMPTY_TABLE + section, raw=True) == fields
    assert FieldDecoder().decode(EMPTY_TABLE + section) == fields


PIECES = st.one_of(
    st.binary(max_size=8),
    st.builds(inserted, NAMES, VALUES),
    st.builds(lambda index: bytes((0x80 | index,)), st.integers(0, 126)),
    st.builds(
        lambda index, value: bytes((0x40 | index,)) + text(value), st.integers(1, 62), VALUES
    ),
    st.builds(lambda value: b"\x00\x01a" + huffman(value), st.binary(max_size=20)),
    st.builds(lambda size: bytes((0x20 | size,)), st.integers(0, 30)),
    st.just(b"\x3f\xe1\x1f"),
)


REPEATED = st.lists(st.lists(PIECES, max_size=4).map(b"".join), min_size=1, max_size=3).flatmap(
    lambda few: st.lists(st.sampled_from(few), max_size=12)
)
"""A few sections, again and again."""


@given(st.one_of(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=4), REPEATED))
@example([b"\xff\x80\x80\x80\x80\x00"])
@example([b"\x20\x20\x20\x82"])
@example([inserted(b"a", b"x" * 4000), b"\xbe", inserted(b"a", b"x" * 4000), b"\xbe"])
@example([inserted(b"a", b"1"), b"\xbe\x7e\x012", b"\xbe\x7e\x012", b"\xbe\x7e\x012"])
def test_any_sections_are_read_as_hpack_reads_them_or_refused_by_both(
    sections: list[bytes],
) -> None:
    """The one difference: a number of more bytes than any length here needs is refused by us."""
    ours, theirs = FieldDecoder(), hpack.Decoder()
    for section in sections:
        expected: list[tuple[bytes, bytes]] | None = None
        with contextlib.suppress(hpack.HPACKError):
            expected = [(bytes(n), bytes(v)) for n, v in theirs.decode(section, raw=True)]
        reason = ""
        try:
            found = ours.decode(section)
        except Malformed as error:
            found, reason = None, error.why
        assert found == expected or reason == ENDLESS
        if found is None:
            return
