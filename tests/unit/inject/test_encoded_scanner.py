"""A compressed answer passes unchanged when it is clean, and is cut before its secret (I7, I9)."""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject import encoded_scanner
from keyhole.inject.encoded_scanner import FED_AT_ONCE, EncodedScanner
from keyhole.inject.scrub import Needles
from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "ghp_Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX"
NEEDLES = Needles.of(SECRET, "ghp_keyhole00000000000000000000000000000")


def deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


PACK: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "gzip by its old name": (b"x-gzip", gzip.compress),
    "zlib": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", lambda data: deflated(data, -15)),
    "raw deflate, stored": (b"deflate", lambda data: stored(data)),
}
UNPACK = {"gzip": 31, "gzip by its old name": 31, "zlib": 15, "raw deflate": -15}
each_form = pytest.mark.parametrize("form", PACK)


def stored(data: bytes) -> bytes:
    packer = zlib.compressobj(level=0, wbits=-15)
    return packer.compress(data) + packer.flush()


def passed(encoding: bytes, pieces: list[bytes]) -> tuple[bytes, str | None]:
    """What goes on, and what ended it."""
    out = b""
    try:
        scanner = EncodedScanner(NEEDLES, encoding)
        for piece in pieces:
            out += scanner.feed(piece)
        out += scanner.end()
    except ResponseUnfit as error:
        return out, error.reason
    return out, None


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


CLEAN = "".join(f'{{"n": {n}, "text": "größe {n * n}"}}\n' for n in range(500)).encode()


@each_form
@pytest.mark.parametrize("size", [1, 7, 1000, FED_AT_ONCE, 1 << 20])
def test_a_clean_answer_passes_unchanged(form: str, size: int) -> None:
    encoding, pack = PACK[form]
    data = pack(CLEAN)
    assert passed(encoding, pieces_of(data, size)) == (data, None)


@each_form
@pytest.mark.parametrize("place", [0, 1, len(CLEAN) // 2, len(CLEAN)])
def test_an_answer_with_a_secret_is_cut_before_it(form: str, place: int) -> None:
    """I7: of what was passed until then, nothing decodes to any of it."""
    encoding, pack = PACK[form]
    data = pack(CLEAN[:place] + SECRET.encode() + CLEAN[place:])
    for size in (1, 100, 5000, 1 << 20):
        out, ended = passed(encoding, pieces_of(data, size))
        assert ended is Reason.SECRET_REFLECTED
        assert data.startswith(out)
        if form in UNPACK:
            text = zlib.decompressobj(UNPACK[form]).decompress(out)
            assert CLEAN[:place].startswith(text)


@pytest.mark.parametrize("render", [str.encode, lambda s: s.encode().hex().encode()])
def test_renderings_are_seen_too(render: Callable[[str], bytes]) -> None:
    assert passed(b"gzip", [gzip.compress(b"key=" + render(SECRET))])[1] is Reason.SECRET_REFLECTED
    assert passed(b"gzip", [gzip.compress(b"key=" + render(SECRET[:-1]))])[1] is None


def test_a_piece_waits_until_what_it_decodes_to_is_cleared() -> None:
    """I7: the beginning of the secret is within the first piece, its end in the second."""
    packer = zlib.compressobj(wbits=31)
    half = len(SECRET) // 2
    flush = zlib.Z_SYNC_FLUSH
    first = packer.compress(b"data: ok\n") + packer.flush(flush)
    second = packer.compress(SECRET[:half].encode()) + packer.flush(flush)
    third = packer.compress(SECRET[half:].encode()) + packer.flush()
    scanner = EncodedScanner(NEEDLES, b"gzip")
    assert scanner.feed(first) == first
    assert scanner.feed(second) == b""
    with pytest.raises(ResponseUnfit) as cut:
        scanner.feed(third + gzip.compress(b" "))
    assert cut.value.reason is Reason.SECRET_REFLECTED
    # The control: with another end, all of it goes.
    other = EncodedScanner(NEEDLES, b"gzip")
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(SECRET[:half].encode()) + packer.flush(flush)
    rest = packer.compress(b"!\n") + packer.flush()
    assert other.feed(first) == b""
    assert other.feed(rest) == first + rest
    assert other.end() == b""


def test_an_event_that_is_flushed_leaves_at_once() -> None:
    packer = zlib.compressobj(wbits=31)
    scanner = EncodedScanner(NEEDLES, b"gzip")
    for n in range(50):
        event = packer.compress(b'data: {"n": %d}\n\n' % n) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert scanner.feed(event) == event


def test_a_secret_in_the_header_of_gzip_is_seen() -> None:
    """I7: a file name is not in what the answer decodes to."""

    def packed(name: str) -> bytes:
        written = io.BytesIO()
        with gzip.GzipFile(name, "wb", fileobj=written, mtime=0) as file:
            file.write(CLEAN)
        return written.getvalue()

    for size in (1, 20, 1 << 20):
        out, ended = passed(b"gzip", pieces_of(packed(SECRET), size))
        assert ended is Reason.SECRET_REFLECTED
        assert SECRET[:4].encode() not in out
        assert passed(b"gzip", pieces_of(packed(SECRET[1:]), size)) == (packed(SECRET[1:]), None)


def test_members_of_gzip_follow_one_another() -> None:
    data = gzip.compress(CLEAN[:100]) + gzip.compress(b"") + gzip.compress(CLEAN)
    for size in (1, 30, 1 << 20):
        assert passed(b"gzip", pieces_of(data, size)) == (data, None)
    half = len(SECRET) // 2
    cut = gzip.compress(SECRET[:half].encode()) + gzip.compress(SECRET[half:].encode())
    assert passed(b"gzip", [cut])[1] is Reason.SECRET_REFLECTED


def test_many_tiny_members_are_read_in_bounded_pieces() -> None:
    data = gzip.compress(b"") * 20_000
    assert passed(b"gzip", [data]) == (data, None)


@pytest.mark.parametrize(
    ("encoding", "data", "why"),
    [
        (b"gzip", gzip.compress(CLEAN) + b"garbage", "not compressed as it says"),
        (b"gzip", gzip.compress(CLEAN) + b"\0", "no end"),
        (b"gzip", gzip.compress(CLEAN)[:-1], "no end"),
        (b"gzip", b"\x1f", "no end"),
        (b"gzip", CLEAN, "not compressed as it says"),
        (b"gzip", zlib.compress(CLEAN), "not compressed as it says"),
        (b"gzip", gzip.compress(CLEAN)[:-8] + bytes(8), "not compressed as it says"),
        (b"deflate", zlib.compress(CLEAN) + b"x", "something follows"),
        (b"deflate", zlib.compress(CLEAN) * 2, "something follows"),
        (b"deflate", deflated(CLEAN, -15) + b"x", "something follows"),
        (b"deflate", b"x", "no end"),
        (b"deflate", zlib.compress(CLEAN)[:-1], "no end"),
        (b"deflate", b"\xff" * 20, "not compressed as it says"),
        (b"deflate", b"\x78\xbb" + bytes(20), "not compressed as it says"),
    ],
)
def test_what_cannot_be_decoded_to_its_end_is_cut(encoding: bytes, data: bytes, why: str) -> None:
    """I7: what a lenient client would read there was not searched."""
    for size in (1, 1 << 20):
        scanner = EncodedScanner(NEEDLES, encoding)
        with pytest.raises(ResponseUnfit) as cut:  # noqa: PT012 - either may find it
            for piece in pieces_of(data, size):
                scanner.feed(piece)
            scanner.end()
        assert why in cut.value.message
        assert cut.value.reason is Reason.ENCODING_REFUSED


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"dcb", b"GZIP"])
def test_other_encodings_are_refused_at_once(encoding: bytes) -> None:
    with pytest.raises(ResponseUnfit):
        EncodedScanner(NEEDLES, encoding)
    assert EncodedScanner(NEEDLES, b"gzip")


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_an_empty_body_is_whole(encoding: bytes) -> None:
    """A HEAD, a 304: the encoding is named and nothing follows."""
    assert passed(encoding, []) == (b"", None)
    assert passed(encoding, [b""]) == (b"", None)


def test_a_bomb_is_cut_soon() -> None:
    """I9. The control: a long blank that is not out of proportion passes."""
    bomb = zlib.compress(bytes(16 << 20), 9)
    assert len(bomb) < 20_000
    out, ended = passed(b"deflate", pieces_of(bomb, 512))
    assert ended is Reason.ENCODING_REFUSED
    assert len(out) < 2_000
    blank = zlib.compress(bytes(encoded_scanner.UNJUDGED))
    assert len(blank) * encoded_scanner.MAX_RATIO < encoded_scanner.UNJUDGED
    assert passed(b"deflate", [blank]) == (blank, None)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr(encoded_scanner, "MAX_DECODED", len(CLEAN))
    assert passed(b"gzip", [gzip.compress(CLEAN)])[1] is None
    assert passed(b"gzip", [gzip.compress(CLEAN + b"\n")])[1] is Reason.ENCODING_REFUSED


def test_an_answer_that_decodes_to_nothing_more_does_not_wait_for_ever() -> None:
    """I9. The control: after the end of a line nothing has to wait."""
    empty = b"\0\0\0\xff\xff" * 3000
    scanner = EncodedScanner(NEEDLES, b"deflate")
    scanner.feed(b"\0\4\0\xfb\xffheld")
    with pytest.raises(ResponseUnfit) as cut:  # noqa: PT012 - some of these feeds
        for _ in range(200):
            assert scanner.feed(empty) == b""
    assert "does not go on" in cut.value.message
    scanner = EncodedScanner(NEEDLES, b"deflate")
    scanner.feed(b"\0\4\0\xfb\xffend\n")
    for _ in range(200):
        assert scanner.feed(empty) == empty


def test_decoding_is_done_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9, where the output of a step ends exactly at its bound as well."""
    monkeypatch.setattr(encoded_scanner, "DECODED_AT_ONCE", 100)
    text = b"0123456789 abcdefghijklmnopqrstuvwxyz" * 1000
    for length in (99, 100, 101, 258, 1000, len(text)):
        data = gzip.compress(text[:length])
        for size in (1, 1 << 20):
            assert passed(b"gzip", pieces_of(data, size)) == (data, None)
    secret = gzip.compress(text + SECRET.encode())
    assert passed(b"gzip", [secret])[1] is Reason.SECRET_REFLECTED


@given(
    st.sampled_from(sorted(PACK)),
    st.lists(
        st.one_of(
            st.sampled_from([b"\n", b" ", SECRET[:20].encode(), SECRET[20:].encode(), b"x" * 400]),
            st.binary(max_size=30),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 600), max_size=6),
)
def test_any_answer_passes_whole_or_is_cut_for_its_secret(
    form: str, parts: list[bytes], cuts: list[int]
) -> None:
    """I7."""
    encoding, pack = PACK[form]
    text = b"".join(parts)
    data = pack(text)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    out, ended = passed(encoding, [data[a:b] for a, b in itertools.pairwise(at)])
    if NEEDLES.found_in(text):
        assert ended is Reason.SECRET_REFLECTED
        if form in UNPACK:
            clear = zlib.decompressobj(UNPACK[form]).decompress(out)
            assert len(clear) <= text.index(SECRET.encode())
    else:
        assert (out, ended) == (data, None)


@given(st.sampled_from([b"gzip", b"deflate"]), st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_decoded_or_cut(encoding: bytes, one: bytes, two: bytes) -> None:
    for data in (one + two, gzip.compress(one) + two, zlib.compress(one) + two):
        out, ended = passed(encoding, [data[: len(one)], data[len(one) :]])
        assert ended is not Reason.SECRET_REFLECTED
        assert out == data if ended is None else data.startswith(out)
