"""The Huffman code of HTTP/2: as hpack reads it, and in bounded steps."""

from __future__ import annotations

import contextlib

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_by_halves
from hypothesis import given
from hypothesis import strategies as st

from keyhole.http import huffman
from keyhole.http.huffman import MAX_LEARNED, decode_huffman
from keyhole.model.errors import Malformed

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@pytest.fixture
def untaught(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is known."""
    monkeypatch.setattr(huffman, "_texts", [None] * len(huffman._texts))


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(ENCODER.encode)))
def test_any_code_is_read_as_hpack_reads_it(code: bytes) -> None:
    expected: bytes | None = None
    with contextlib.suppress(hpack.HPACKDecodingError):
        expected = bytes(decode_by_halves(code))
    for _ in range(2):
        found: bytes | None = None
        with contextlib.suppress(Malformed):
            found = decode_huffman(code)
        assert found == expected


@pytest.mark.parametrize(
    "code",
    [b"\xff\xff\xff\xff", b"\x1e", b"\x1f\xff"],
    ids=["the end of strings", "padding that is not of ones", "padding of more than a byte"],
)
def test_what_is_no_code_is_refused(code: bytes) -> None:
    for _ in range(2):
        with pytest.raises(Malformed, match="no Huffman code"):
            decode_huffman(code)


@pytest.mark.usefixtures("untaught")
def test_a_text_teaches_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12. Attack: a text of 16 KiB in which each step is new."""
    learned: list[int] = []
    learn = huffman._learn

    def count(step: int) -> bytes:
        learned.append(step)
        return learn(step)

    monkeypatch.setattr(huffman, "_learn", count)
    text = bytes(range(256)) * 8
    code = ENCODER.encode(text)
    for _ in range(len(code) // MAX_LEARNED + 1):
        learned.clear()
        assert decode_huffman(code) == text
        assert len(learned) <= MAX_LEARNED
    learned.clear()
    assert decode_huffman(code) == text
    assert learned == [], "all are known by now"


@pytest.mark.usefixtures("untaught")
def test_a_code_that_is_wrong_behind_what_is_learned_is_refused() -> None:
    code = ENCODER.encode(bytes(range(256)) * 8) + b"\xff\xff\xff\xff"
    with pytest.raises(Malformed, match="no Huffman code"):
        decode_huffman(code)
