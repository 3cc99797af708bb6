"""Git's deltas: an object made of copies from another object and of new bytes (gitformat-pack).

Called by `wire/pack.py` for commits, trees and tags alone. A delta of a few bytes may claim to make
an object of any size, so the size is bounded before the first byte is made (I9).
"""

from __future__ import annotations

from keyhole.model.errors import Malformed

_COPY = 0x80
_MORE = 0x80
_SEVEN_BITS = 0x7F
_MAX_SIZE_BYTES = 9
"""Bytes of a size: 63 bits, so that no server's integer is smaller than what was read here."""
_WHOLE_COPY = 0x10000
"""The size that a copy of size 0 has."""


def apply_delta(base: bytes, delta: bytes, most: int) -> bytes:
    """Make the object; it has at most `most` bytes."""
    claimed, at = read_size(delta, 0)
    if claimed != len(base):
        raise Malformed("a delta is for a base of another size")
    size, at = read_size(delta, at)
    if size > most:
        raise Malformed(f"a delta makes an object of more than {most} bytes")
    pieces: list[bytes] = []
    left, end = size, len(delta)
    try:
        while at < end:
            code = delta[at]
            at += 1
            if code & _COPY:
                start = count = 0
                for bit in range(4):
                    if code & 1 << bit:
                        start |= delta[at] << 8 * bit
                        at += 1
                for bit in range(3):
                    if code & 0x10 << bit:
                        count |= delta[at] << 8 * bit
                        at += 1
                piece = base[start : start + (count or _WHOLE_COPY)]
                if len(piece) != (count or _WHOLE_COPY):
                    raise Malformed("a delta copies from behind its base")
            else:
                piece = delta[at : at + code]
                at += code
                if not code or at > end:
                    raise Malformed("a delta has a code that means nothing, or ends early")
            left -= len(piece)
            if left < 0:
                raise Malformed("a delta makes more than it says")
            pieces.append(piece)
    except IndexError:
        raise Malformed("a delta has a code that means nothing, or ends early") from None
    if left:
        raise Malformed("a delta makes less than it says")
    return b"".join(pieces)


def read_size(data: bytes, at: int) -> tuple[int, int]:
    """A size in groups of seven bits, the lowest first, and the position after it."""
    size = 0
    for number, octet in enumerate(data[at : at + _MAX_SIZE_BYTES]):
        size |= (octet & _SEVEN_BITS) << 7 * number
        if not octet & _MORE:
            return size, at + number + 1
    raise Malformed("a delta's sizes are cut off or too large")
