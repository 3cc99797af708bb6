"""A body ends at one place, and its payload is the same however it arrives (I4, I6, I9)."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http.body import (
    MAX_SIZE_DIGITS,
    MAX_SIZE_LINE,
    MAX_TRAILER_BYTES,
    MAX_TRAILERS,
    ChunkedReader,
    LengthReader,
)
from keyhole.http.field import Field
from keyhole.http.request import Treatment
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from keyhole.http.request import Treat

NEXT = b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n"


def treat(name: bytes) -> Treatment:
    """As a service with a key in `X-Api-Key`."""
    if name == b"x-api-key":
        return Treatment.DROP
    return Treatment.COLLECT if name == b"anthropic-beta" else Treatment.KEEP


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The pieces between the places, in order."""
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def halves(data: bytes) -> list[list[bytes]]:
    """Cut in two at every place."""
    return [[data[:place], data[place:]] for place in range(1, len(data))]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


# ── a known length ────────────────────────────────────────────────────────────────────────────────


@given(st.binary(max_size=50), st.binary(max_size=20), CUTS)
def test_a_body_of_known_length_ends_where_it_was_said(
    body: bytes, more: bytes, places: list[int]
) -> None:
    reader = LengthReader(len(body))
    payload = rest = b""
    for piece in cut(body + more, places):
        taken, after = reader.feed(piece)
        assert not after or reader.done
        payload += taken
        rest += after
    assert (payload, rest, reader.done, reader.left) == (body, more, True, 0)


def test_a_body_that_is_cut_short_is_not_done() -> None:
    reader = LengthReader(3)
    assert reader.feed(b"ab") == (b"ab", b"")
    assert not reader.done
    assert LengthReader(0).done
    assert LengthReader(0).feed(NEXT) == (b"", NEXT)


def test_payload_of_known_length_is_not_copied() -> None:
    data = bytes(256 * 1024)
    view = memoryview(data)
    assert LengthReader(len(data)).feed(data)[0] is data
    payload, rest = LengthReader(1000).feed(view)
    assert isinstance(payload, memoryview)
    assert (len(payload), len(rest)) == (1000, len(data) - 1000)


# ── chunks ────────────────────────────────────────────────────────────────────────────────────────

SIDES = pytest.mark.parametrize("side", [treat, None], ids=["request", "response"])


def encode(chunks: list[bytes], trailers: bytes = b"", spell: str = "%x") -> bytes:
    sizes = [(spell % len(chunk)).encode() for chunk in chunks]
    body = b"".join(b"%b\r\n%b\r\n" % pair for pair in zip(sizes, chunks, strict=True))
    return body + b"0\r\n" + trailers + b"\r\n"


def read(data: bytes, *, request: bool = True) -> tuple[bytes, ChunkedReader]:
    reader = ChunkedReader(treat if request else None)
    return reader.feed(data), reader


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"x-a:\r\nX-B: \tb \r\n"]),
    st.sampled_from(["%x", "%X", "%08x"]),
    CUTS,
    st.booleans(),
)
def test_payload_is_the_same_however_it_arrives(
    chunks: list[bytes], trailers: bytes, spell: str, places: list[int], request: bool
) -> None:
    data = encode(chunks, trailers, spell)
    whole, control = read(data + NEXT, request=request)
    assert (whole, control.done, control.rest) == (b"".join(chunks), True, NEXT)
    reader = ChunkedReader(treat if request else None)
    payload = b"".join(reader.feed(part) for part in cut(data + NEXT, places))
    assert payload == whole
    assert (reader.done, reader.rest, reader.trailers) == (True, NEXT, control.trailers)
    assert len(reader.trailers) == trailers.count(b":")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=3), st.integers(1, 1000))
def test_a_body_that_is_cut_short_is_not_done_yet(chunks: list[bytes], short: int) -> None:
    data = encode(chunks, b"X: y\r\n")
    assert read(data)[1].done
    assert not read(data[: -min(short, len(data))])[1].done


def test_payload_in_one_big_chunk_is_not_copied() -> None:
    size = 256 * 1024
    reader = ChunkedReader(None)
    assert reader.feed(b"%x\r\n" % (2 * size)) == b""
    for _ in range(2):
        data = bytes(size)
        assert reader.feed(data) is data
    assert reader.feed(b"\r\n0\r\n\r\n") == b""
    assert reader.done


@SIDES
@pytest.mark.parametrize(
    "data",
    [
        b"0x5\r\nhello\r\n",
        b"0X5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"\t5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\t\r\nhello\r\n",
        b"5_\r\nhello\r\n",
        b"0_5\r\nhello\r\n",
        b"5\x00\r\nhello\r\n",
        b"5h\r\nhello\r\n",
        b"g\r\nhello\r\n",
        b"\xb5\r\nhello\r\n",
        b"5,5\r\nhello\r\n",
        b"5.0\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"\r\n5\r\nhello\r\n",
        b"\n5\r\nhello\r\n",
        # Extensions, and what hides in them
        b"5;\r\nhello\r\n",
        b"5;a\r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b'5;a="\r\n"\r\nhello\r\n',
        b"5;\nxx\r\nhello\r\n",
        b"5;a\rhello\r\n",
        b"0;a\r\n\r\n",
        # Line ends
        b"5\nhello\r\n",
        b"5\rhello\r\n",
        b"5\r\r\nhello\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\r",
        b"5\r\nhello\r\r\n",
        b"5\r\nhello\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhellohello\r\n",
        b"5\r\nhell\r\n",
        b"6\r\nhello\r\n",
        b"0\n\n",
        b"0\r\n\n",
        b"0\r\n\r\r\n",
        # Numbers that someone cannot hold
        b"0" * MAX_SIZE_DIGITS + b"5\r\nhello\r\n",
        b"10000000000000005\r\nhello\r\n",
        b"f" * (MAX_SIZE_DIGITS + 1) + b"\r\n",
        b"5" * MAX_SIZE_LINE,
    ],
)
def test_chunks_that_could_be_read_in_two_ways_are_refused(side: Treat | None, data: bytes) -> None:
    """I4: what one reader takes for payload is the next request to another."""
    assert read(b"5\r\nhello\r\n0\r\n\r\n" + NEXT)[0] == b"hello"
    whole = data + b"0\r\n\r\n" + NEXT
    for pieces in ([whole], cut(whole, list(range(len(whole)))), *halves(whole)):
        reader = ChunkedReader(side)
        with pytest.raises(Malformed):  # noqa: PT012  (somewhere on the way)
            for piece in pieces:
                reader.feed(piece)


@SIDES
def test_a_size_line_is_not_waited_for_beyond_its_bound(side: Treat | None) -> None:
    """I9."""
    reader = ChunkedReader(side)
    reader.feed(b"0" * (MAX_SIZE_LINE - 1))
    with pytest.raises(Malformed):
        reader.feed(b"0")
    assert read(b"f" * MAX_SIZE_DIGITS + b"\r\nx")[0] == b"x"


# ── trailers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_checksum_may_come_at_the_end() -> None:
    for request in (True, False):
        payload, reader = read(encode([b"a"], b"X-Sum:1\r\ngrpc-status: 0\r\n"), request=request)
        assert payload == b"a"
        assert reader.trailers == [
            Field(b"x-sum", b"1", b"X-Sum: 1\r\n"),
            Field(b"grpc-status", b"0", b"grpc-status: 0\r\n"),
        ]


FRAMING = b"""content-length transfer-encoding connection keep-alive te trailer upgrade
proxy-connection proxy-authenticate proxy-authorization http2-settings
content-encoding content-type content-range set-cookie www-authenticate location""".split()


@pytest.mark.parametrize(
    "name",
    [
        *FRAMING,
        *b"""host authorization cookie x-api-key anthropic-beta expect range if-match cache-control
        max-forwards accept x_api_key x.api.key Anthropic_Beta content_length transfer_encoding
        """.split(),
    ],
)
def test_a_request_has_no_trailer_that_belongs_in_the_head(name: bytes) -> None:
    """I4, I6: an origin that merges trailers with the head would take a credential from there."""
    assert read(encode([b"a"], b"Y-%b: x\r\n" % name))[1].done
    for spelt in (name.lower(), name.upper()):
        with pytest.raises(Malformed):
            read(encode([b"a"], b"X: y\r\n%b: x\r\n" % spelt))


@pytest.mark.parametrize("name", [b"X-HTTP-Method-Override", b"x_http_method", b"X-Method"])
def test_a_request_has_no_trailer_that_names_another_method(name: bytes) -> None:
    """I3: an origin that merges trailers with the head would do something else than was judged."""
    assert read(encode([b"a"], b"X-Methods: DELETE\r\n"))[1].done
    with pytest.raises(Malformed):
        read(encode([b"a"], name + b": DELETE\r\n"))


@pytest.mark.parametrize("name", [*FRAMING, b"alt-svc", b"sec-websocket-accept"])
def test_a_response_goes_on_without_trailers_that_belong_in_the_head(name: bytes) -> None:
    trailers = b"X: y\r\n%b: x\r\nZ: 1\r\n" % name.title()
    _, reader = read(encode([b"a"], trailers), request=False)
    assert [field.name for field in reader.trailers] == [b"x", b"z"]


@SIDES
@pytest.mark.parametrize(
    "trailers",
    [
        b"X\r\n",
        b": y\r\n",
        b"X : y\r\n",
        b" X: y\r\n",
        b"X: y\n",
        b"X: y\nZ: 1\r\n",
        b"X: y\rZ: 1\r\n",
        b"X: y\r\r\n",
        b"X: y\x00\r\n",
        b"X: y\r\n z\r\n",
    ],
)
def test_a_trailer_that_could_be_read_in_two_ways_is_refused(
    side: Treat | None, trailers: bytes
) -> None:
    """I4."""
    with pytest.raises(Malformed):
        ChunkedReader(side).feed(encode([b"a"], trailers))


@SIDES
def test_trailers_are_bounded(side: Treat | None) -> None:
    """I9: in number, in bytes, and where no line ends."""
    reader = ChunkedReader(side)
    reader.feed(encode([], b"X: y\r\n" * MAX_TRAILERS))
    assert len(reader.trailers) == MAX_TRAILERS
    with pytest.raises(Malformed):
        ChunkedReader(side).feed(encode([], b"X: y\r\n" * (MAX_TRAILERS + 1)))
    fits = b"X: %b\r\n" % (b"y" * (MAX_TRAILER_BYTES - 7))
    assert len(fits) == MAX_TRAILER_BYTES - 2
    reader = ChunkedReader(side)
    reader.feed(encode([], fits))
    assert reader.done
    for long in (fits[:1] + fits, b"X" * MAX_TRAILER_BYTES):
        with pytest.raises(Malformed):
            ChunkedReader(side).feed(b"0\r\n" + long + b"\r\n")


def test_trailers_of_a_response_that_are_dropped_count_as_bytes() -> None:
    """I9."""
    many = b"Connection: x\r\n" * (MAX_TRAILER_BYTES // 15 + 1)
    with pytest.raises(Malformed):
        read(encode([], many), request=False)


@given(
    st.lists(
        st.binary(max_size=20)
        | st.sampled_from([b"5\r\nhello\r\n", b"0\r\n", b"\r\n", b"X: y\r\n"]),
        max_size=8,
    ),
    st.sampled_from([b"", b"1\r\n", b"0\r\n"]),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused(pieces: list[bytes], start: bytes, request: bool) -> None:
    reader = ChunkedReader(treat if request else None)
    with contextlib.suppress(Malformed):
        for piece in [start, *pieces]:
            assert len(reader.feed(piece)) <= len(piece)
