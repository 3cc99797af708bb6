"""The Huffman code of texts in HTTP/2 (RFC 7541 §5.2), read a byte at a time.

Called by `hpack.py`. The table of hpack's goes on by half a byte; what it does with a whole one is
kept for each state and byte that was met, so that a byte takes less than half of the time. What is
kept is of the code alone, and of no text: at most 65,536 steps, 3 MiB.
"""

from __future__ import annotations

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)
from hpack.huffman_table import decode_huffman as decode_by_halves

from keyhole.model.errors import Malformed

MAX_LEARNED = 256
"""Steps that one text may add: each takes a microsecond. Attack: a text that has only new ones."""

_STATES = 256
_texts: list[bytes | None] = [None] * (_STATES << 8)
"""What a byte adds to the text, by the state before it and the byte; None: not met yet."""
_after = bytearray(_STATES << 8)
"""The state behind it."""
_ENDS = frozenset(state for state, flags, _ in HUFFMAN_TABLE if flags & HUFFMAN_COMPLETE) | {0}
"""The states in which a text may end: between two symbols, and in padding."""


def decode_huffman(code: bytes) -> bytes:
    """The text of a code. Raises Malformed."""
    texts, after, parts, state, left = _texts, _after, [], 0, MAX_LEARNED
    try:
        for byte in code:
            step = state << 8 | byte
            text = texts[step]
            if text is None:
                if not left:
                    return decode_by_halves(code)
                left -= 1
                text = _learn(step)
            parts.append(text)
            state = after[step]
        if state in _ENDS:
            return b"".join(parts)
    except HPACKDecodingError:
        pass
    raise Malformed("a text in a field section has no Huffman code")


def _learn(step: int) -> bytes:
    """Keep what a byte does in a state."""
    text, state, byte = b"", step >> 8, step & 0xFF
    for half in (byte >> 4, byte & 0x0F):
        state, flags, symbol = HUFFMAN_TABLE[state << 4 | half]
        if flags & HUFFMAN_FAIL:
            raise HPACKDecodingError
        if flags & HUFFMAN_EMIT_SYMBOL:
            text += bytes((symbol,))
    _after[step] = state
    _texts[step] = text
    return text
