"""A sieve lets nothing through that is searched for (I7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.escaped_secret import MARKS, EscapedSecret
from keyhole.inject.prefilter import MAX_BEGINNING, Prefilter
from keyhole.inject.renderings import renderings, searchable

TEXTS = [b"a-token-of-28-characters-abc", b"YS10b2tlbi1vZi0yOC1jaGFyYWN0", b"612d746f6b656e2d"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [16, 100, 16 * 1024])
def test_each_text_is_caught_wherever_it_is(text: bytes, size: int) -> None:
    """At every place of a vector, at the very beginning and at the very end."""
    sieve = Prefilter(TEXTS)
    filling = (b"a-token-of-28-characters-ab#" * size)[:size]
    for before in (*range(70), size):
        for after in (0, 1, size):
            data = filling[:before] + text + filling[:after]
            assert sieve.catches(data)
            assert sieve.catches(memoryview(bytearray(data)))
            # The control: one byte of it is another.
            assert not sieve.catches(data.replace(text, text[:-1] + b"#"))


@given(
    st.lists(st.binary(min_size=8, max_size=80), min_size=1, max_size=40),
    st.lists(st.one_of(st.binary(max_size=60), st.integers(0, 39)), max_size=12),
)
def test_it_catches_what_is_there_and_nothing_else(
    texts: list[bytes], parts: list[bytes | int]
) -> None:
    texts = [text.replace(b"\0", b"\x01") for text in texts]
    data = b"".join(
        texts[part % len(texts)][: 4 + part] if isinstance(part, int) else part for part in parts
    )
    expected = any(text[:MAX_BEGINNING] in data for text in texts)
    assert Prefilter(texts).catches(data) is expected


def test_of_a_long_text_the_beginning_counts() -> None:
    """Whoever is caught is looked at; nobody who has it whole gets by."""
    text = bytes(range(1, 256)) * 20
    sieve = Prefilter([text])
    assert sieve.catches(text)
    assert sieve.catches(b"x" + text[:MAX_BEGINNING])
    assert not sieve.catches(text[1:MAX_BEGINNING])
    assert not sieve.catches(b"")


def test_short_and_long_texts_are_caught_together_at_every_place() -> None:
    """I7: those that are really searched for. Patterns were missed in texts of some lengths, which
    is why there are none; so every length and place is tried."""
    token = "sk-ant-api03-Yb3_x9-Q2vKc81mT-y7LwRj2sUd94hGfPeAo6iXzzAA"
    hints = EscapedSecret(token, searchable(token)).hints
    probes = {rendering.probe for rendering in renderings(token, "x" * 56)}
    for texts in ([*probes, *MARKS], [*probes, *hints]):
        sieve = Prefilter(texts)
        for text in texts:
            for size in (0, 3, 15, 16, 31, 33, 63, 65, 100, 129, 1000, 5000):
                filling = (b"The quick brown fox jumps over it. " * 150)[:size]
                for after in (0, 1, 17, 70):
                    data = filling + text + filling[:after]
                    assert sieve.catches(data), (text, size, after)
                # The control.
                assert not sieve.catches(filling)
